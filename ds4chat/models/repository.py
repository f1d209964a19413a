"""Interprets the file names of a model repository: which models it contains, in which quantisations, and
which of them may draft."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.naming import PART, QUANTISATION, stem_of
from ds4chat.text import one_line, shortened

PREFERRED = ("Q4_K_M", "Q8_0")
"""Quantisations used if none is requested, as in llama.cpp's -hf."""
MOST_NAMED = 12
"""Files that a sentence names."""

_OTHER = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix)(?=[-._/]|$)", re.IGNORECASE)
_NEXTN = re.compile(r"(?:^|[-._/ ])(?:mtp|nextn)(?=[-._/ ]|\d|$)", re.IGNORECASE)
_EAGLE3 = re.compile(r"eagle-?_?3", re.IGNORECASE)
_DRAFT = re.compile(r"(?:^|[-._/])(?:draft(?:er)?|assistant|speculator)(?=[-._/]|$)", re.IGNORECASE)


class HubError(ModelFileError):
    """A repository or one of its files is unavailable. The text is a sentence: what is wrong, what to do."""


@dataclass(frozen=True, slots=True)
class Reference:
    """USER/REPO[:QUANT]; ``wanted`` is a quantisation or a file's name, "" if none is given."""

    repo: str
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class HubModel:
    """One model of a repository: one file, or all parts of a split one, in order.

    ``size``: bytes of all parts, None if unknown. ``missing``: parts that are not there.
    """

    repo: str
    names: tuple[str, ...]
    size: int | None
    quantisation: str
    missing: int = 0

    @property
    def name(self) -> str:
        """The file's name without the folder, that of the first part for a split one."""
        return PurePosixPath(self.names[0]).name

    @property
    def family(self) -> str:
        """The name without part and quantisation, which the quantisations of one model share."""
        return QUANTISATION.sub("", _stem(self.names[0])[0]).lower()

    @property
    def may_draft(self) -> bool:
        """The name looks like a support file's. A whole model with a NextN block may have such a name too."""
        path = self.names[0]
        return any(kind.search(_stem(path)[0]) for kind in (_NEXTN, _EAGLE3, _DRAFT))

    @property
    def reference(self) -> str:
        """The argument of ``get`` for this model: with its quantisation or its file's name."""
        return f"{self.repo}:{self.name}"


def parse_reference(text: str) -> Reference:
    """The repository and the file that ``USER/REPO[:QUANT]`` means. Raises HubError for anything else."""
    repo, _, wanted = text.strip().removeprefix("https://huggingface.co/").strip("/").partition(":")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo, re.ASCII):
        raise HubError(
            f"{shortened(text)} is not a repository of the hub. Give USER/REPO or USER/REPO:QUANT, such as "
            "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M, or search with ds4chat get --search WORDS."
        )
    return Reference(repo, wanted)


def models_of(repo: str, files: Mapping[str, int | None]) -> list[HubModel]:
    """The models among a repository's files (path -> bytes, None if unknown), in the order of their names.

    Projectors, importance matrices and paths that lead out of the repository are left out.
    """
    groups: dict[tuple[str, int], dict[int, str]] = {}
    for path in sorted(files):
        stem, part, count = _stem(path)
        if not path.lower().endswith(".gguf") or _OTHER.search(stem) or not _is_inside(path):
            continue
        groups.setdefault((stem, count), {})[part] = path
    models = []
    for (stem, count), parts in groups.items():
        names = tuple(parts[number] for number in sorted(parts))
        sizes = [files[name] for name in names]
        size = None if None in sizes else sum(size or 0 for size in sizes)
        found = QUANTISATION.findall(stem)
        models.append(HubModel(repo, names, size, found[-1].upper() if found else "", count - len(parts)))
    return models


def choose(models: Iterable[HubModel], reference: Reference, *, default: bool = False) -> HubModel:
    """The model that a reference means: by quantisation, or by file name.

    ``default``: without a quantisation, choose the usual one, as llama.cpp's -hf does. Raises HubError if
    none or several match.
    """
    models = list(models)
    if not models:
        raise no_models(reference.repo)
    if reference.wanted:
        matching = _named(models, reference.wanted.lower())
    elif len(models) == 1 or not default:
        matching = models
    else:
        whole = [model for model in models if not model.may_draft] or models
        order = {quantisation: at for at, quantisation in enumerate(PREFERRED)}
        matching = [min(whole, key=lambda model: order.get(model.quantisation, len(order)))]
    if len(matching) > 1:
        matching = [model for model in matching if not model.may_draft] or matching
    if len(matching) != 1:
        how_many = "several of them" if matching else "none of them"
        asked = f"{shortened(reference.wanted)} names {how_many}" if reference.wanted else "Say which"
        raise HubError(
            f"{reference.repo} holds {_listed(matching or models)}. {asked}: give {reference.repo}:FILE.gguf."
        )
    if matching[0].missing:
        raise HubError(
            f"{one_line(matching[0].name)} is split, and {matching[0].missing} of its parts are not in "
            f"{reference.repo}. Choose another quantisation."
        )
    return matching[0]


def no_models(repo: str) -> HubError:
    """The error for a repository without a GGUF file."""
    return HubError(
        f"{one_line(repo)} has no GGUF files. Look for a repository with some: ds4chat get --search "
        f"{one_line(repo.split('/')[-1])}"
    )


def marks(repo: str, models: Iterable[HubModel]) -> list[str]:
    """The kinds of drafters that the names suggest: "NextN", "EAGLE-3"."""
    text = " ".join([repo, *(name for model in models for name in model.names)])
    return [mark for mark, kind in (("NextN", _NEXTN), ("EAGLE-3", _EAGLE3)) if kind.search(text)]


def marks_of_keys(keys: Mapping[str, object]) -> list[str]:
    """The same from the metadata at a file's beginning: its architecture and its count of NextN blocks."""
    architecture = str(keys.get("general.architecture", ""))
    nextn = keys.get(f"{architecture}.nextn_predict_layers")
    if architecture == "eagle3":
        return ["EAGLE-3"]
    if architecture == "deepseek4_mtp_support" or (isinstance(nextn, int) and nextn > 0):
        return ["NextN"]
    return []


def _named(models: list[HubModel], wanted: str) -> list[HubModel]:
    by_name = [m for m in models if wanted in (m.name.lower(), *(name.lower() for name in m.names))]
    exact = by_name or [m for m in models if m.quantisation.lower() == wanted]
    # For llama.cpp, too, Q4_K_XL means UD-Q4_K_XL.
    return exact or [m for m in models if m.quantisation.lower().removeprefix("ud-") == wanted]


def _listed(models: list[HubModel]) -> str:
    names = [
        f"{one_line(model.name)}{f' ({shown_size(model.size)})' if model.size is not None else ''}"
        for model in models[:MOST_NAMED]
    ]
    more = len(models) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _stem(path: str) -> tuple[str, int, int]:
    """A path without suffix and part; the part's number and the count of parts, 1 and 1 for whole files."""
    stem = stem_of(path)
    found = PART.search(stem)
    return (stem[: found.start()], int(found[1]), int(found[2])) if found else (stem, 1, 1)


def _is_inside(path: str) -> bool:
    """The path stays within its folder, and is valid on every system."""
    return "\\" not in path and not path.startswith("/") and ".." not in path.split("/") and "\0" not in path
