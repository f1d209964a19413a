"""Finds GGUF files on this machine, and the support files among them that fit a target.

It only lists names and reads headers, and may run in a thread.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds4chat.files import read_regular, user_path
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header, read_header
from ds4chat.models.kinds import KINDS, kind_of
from ds4chat.models.naming import display_name
from ds4chat.models.pairing import check_pair, check_target
from ds4chat.models.summary import quantisation

MAX_DEPTH = 6
MAX_FILES = 2000
MAX_FOLDERS = 20_000
"""Most entries that are visited: a home folder given by mistake must not keep the disk busy."""

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")
"""Where Ollama keeps its models when it runs as a system service."""
MAX_MANIFEST = 1 << 20
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.I)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One GGUF file. ``problem``: a sentence that says why its header cannot be used; then the rest is
    empty."""

    path: Path
    size: int
    kind: str = ""
    architecture: str = ""
    quantisation: str = ""
    problem: str = ""
    title: str = ""
    """The model's display name."""
    name: str = ""
    """The name of a file whose own name is a hash: in Ollama's store, "llama3:8b"."""

    @property
    def label(self) -> str:
        """The file's name in a list."""
        return self.name or self.path.name

    @property
    def is_target(self) -> bool:
        return bool(self.kind) and KINDS[self.kind].whole

    @property
    def may_support(self) -> bool:
        return bool(self.kind) and (KINDS[self.kind].check is not None or KINDS[self.kind].converts)


@dataclass(frozen=True, slots=True)
class SupportChoice:
    """A drafter for a target: ``support`` and ``lookup`` as in ModelChosen."""

    support: str
    lookup: bool
    label: str
    note: str
    fits: bool = True


def search_folders(
    setting: str, current_model: str, environ: Mapping[str, str], home: Path
) -> list[tuple[Path, int]]:
    """Folders to search and how deep: the setting's, the current model's own, and the usual caches."""
    folders = [(user_path(part), MAX_DEPTH) for part in setting.split(os.pathsep) if part.strip()]
    if current_model:
        folders.append((user_path(current_model).parent, 0))
    hub = environ.get("HF_HUB_CACHE") or str(
        Path(environ.get("HF_HOME") or home / ".cache/huggingface") / "hub"
    )
    usual = ("models", ".cache/llama.cpp", ".lmstudio/models", ".cache/lm-studio/models")
    folders += [(home / name, MAX_DEPTH) for name in usual]
    folders.append((Path(hub), MAX_DEPTH))
    return list(dict.fromkeys(folders))


def ollama_models(environ: Mapping[str, str], home: Path) -> dict[Path, str]:
    """The models in Ollama's stores: path of the file -> the name that Ollama gives it, "llama3:8b".

    Its manifests (``manifests/HOST/USER/NAME/TAG``, JSON) name blobs by their digests. Unreadable ones are
    skipped.
    """
    stores = [user_path(environ["OLLAMA_MODELS"])] if environ.get("OLLAMA_MODELS") else []
    stores += [home / ".ollama/models", OLLAMA_SERVICE]
    found: dict[Path, str] = {}
    for store in stores:
        for manifest in _manifests(store / "manifests"):
            path = manifest.relative_to(store / "manifests").as_posix()
            name, _, tag = path.removeprefix("registry.ollama.ai/").removeprefix("library/").rpartition("/")
            for digest in _model_digests(manifest):
                blob = store / "blobs" / f"sha256-{digest}"
                if blob.is_file():
                    found.setdefault(blob, f"{name}:{tag}")
    return found


def _manifests(folder: Path) -> list[Path]:
    """The files HOST/USER/NAME/TAG below a folder, sorted."""
    try:
        return sorted(path for path in folder.glob("*/*/*/*") if path.is_file())[:MAX_FILES]
    except OSError:
        return []


def _model_digests(manifest: Path) -> Iterator[str]:
    """The digests of the models that a manifest names."""
    try:
        layers = json.loads(read_regular(manifest, MAX_MANIFEST))["layers"]
        kinds = [(layer["mediaType"], layer["digest"]) for layer in layers]
    except (OSError, ValueError, LookupError, TypeError):
        return
    for kind, digest in kinds:
        if kind == _MODEL_LAYER and isinstance(digest, str) and (match := _DIGEST.fullmatch(digest)):
            yield match[1]


def distinct_names(models: Sequence[FoundModel]) -> dict[Path, str]:
    """Each file's name in a list; files that share a name get their folders too: "a.gguf · user/repo"."""
    counts = Counter(model.label for model in models)
    names: dict[Path, str] = {}
    for name in counts:
        alike = [model.path for model in models if model.label == name]
        if len(alike) == 1:
            names[alike[0]] = name
            continue
        places = {path: _places(path) for path in alike}
        for depth in range(1, max(map(len, places.values())) + 1):
            labels = {path: "/".join(reversed(parts[:depth])) for path, parts in places.items()}
            if len(set(labels.values())) == len(alike):
                break
        names |= {path: f"{name} · {labels[path]}" for path in alike}
    return names


def _places(path: Path) -> list[str]:
    """The folders of a file, nearest first; in the hub's cache the repository, then the revision."""
    parts = list(path.parent.parts)
    for at in range(len(parts) - 2):
        if parts[at].startswith("models--") and parts[at + 1] == "snapshots":
            repo = parts[at].removeprefix("models--").replace("--", "/")
            return [*reversed(parts[at + 3 :]), repo, parts[at + 2][:8], *reversed(parts[:at])]
    return parts[::-1]


def gguf_files(
    folders: Iterable[tuple[Path, int]], cancelled: Callable[[], bool] = lambda: False
) -> Iterator[Path]:
    """Paths of the GGUF files in the folders, each file once, later parts of split models left out.

    Unreadable and linked folders are skipped; linked files are included.
    """
    seen: set[tuple[int, int]] = set()
    budget = MAX_FOLDERS
    for top, depth in folders:
        level = [top]
        for _ in range(depth + 1):
            deeper: list[Path] = []
            for folder in level:
                budget -= 1
                if cancelled() or budget < 0 or len(seen) >= MAX_FILES:
                    return
                files, below = _listing(folder)
                deeper += below
                for path, identity in files:
                    if identity not in seen:
                        seen.add(identity)
                        yield path
            level = deeper


def _listing(folder: Path) -> tuple[list[tuple[Path, tuple[int, int]]], list[Path]]:
    """The GGUF files of one folder with their identity, and its own folders, both sorted."""
    files: list[tuple[Path, tuple[int, int]]] = []
    below: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(Path(entry.path))
                elif entry.name.lower().endswith(".gguf") and not _LATER_PART.search(entry.name):
                    info = os.stat(entry.path)
                    files.append((Path(entry.path), (info.st_dev, info.st_ino)))
    except OSError:
        pass  # An unreadable folder or a link into nothing holds no model that could be chosen.
    return sorted(files), sorted(below)


def describe_file(path: Path, name: str = "") -> FoundModel:
    """Describe a file by its header. Never raises: a bad file is returned with its problem.

    ``name``: its name if the file's own name is a hash.
    """
    try:
        header = read_header(path)
        return FoundModel(
            path,
            header.file_size,
            kind_of(header).name,
            header.architecture,
            quantisation(header),
            title=display_name(str(path), header.text("general.name")),
            name=name,
        )
    except ModelFileError as error:
        return FoundModel(path, 0, problem=str(error), name=name)


def support_choices(target_path: Path, found: Sequence[FoundModel]) -> Iterator[SupportChoice]:
    """What can draft for a target, the ones without a file first. Raises ModelFileError if the target
    itself cannot be used."""
    target = check_target(target_path)
    yield SupportChoice("", False, "none", "plain decoding, one token per pass")
    yield SupportChoice("", True, "lookup", "drafts are continuations found in the conversation; no file")
    if kind_of(target).inside:
        yield _pair_choice(target, "embedded", "NextN block inside")
    for model in found:
        if model.may_support and not _same_file(model.path, target_path) and _smaller(model, target):
            yield _pair_choice(target, str(model.path), model.label)


def _pair_choice(target: Header, support: str, label: str) -> SupportChoice:
    try:
        pair = check_pair(target, support)
    except ModelFileError as error:
        return SupportChoice(support, False, label, str(error), fits=False)
    if pair.off_reason:
        return SupportChoice(support, False, label, pair.off_reason, fits=False)
    return SupportChoice(support, False, label, " ".join([f"{pair.kind}, fits.", *pair.notes]))


def _smaller(model: FoundModel, target: Header) -> bool:
    """The file may draft for the target: it is a support file, or a smaller whole model."""
    return not model.is_target or model.size < target.file_size


def _same_file(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return a == b
