"""GGUF files on this machine: where to look, what each file is, and which support files fit a target.

Only names are listed and headers read. Made for a thread: it touches no widget.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds4chat.files import user_path
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header, read_header
from ds4chat.models.kinds import KINDS, classify, kind_of
from ds4chat.models.pairing import check_pair, check_target
from ds4chat.models.summary import quantisation

MAX_DEPTH = 6
MAX_FILES = 2000
MAX_FOLDERS = 20_000
"""A folder of models is small; a home folder given by mistake must not keep the disk busy."""

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.I)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One GGUF file. ``problem`` is why its header cannot be used, as a sentence; then the rest is empty."""

    path: Path
    size: int
    kind: str = ""
    architecture: str = ""
    quantisation: str = ""
    problem: str = ""

    @property
    def is_target(self) -> bool:
        return bool(self.kind) and KINDS[self.kind].whole

    @property
    def may_support(self) -> bool:
        return bool(self.kind) and (KINDS[self.kind].check is not None or KINDS[self.kind].converts)


@dataclass(frozen=True, slots=True)
class SupportChoice:
    """What can stand beside a target: ``support`` and ``lookup`` as ModelChosen takes them."""

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


def gguf_files(
    folders: Iterable[tuple[Path, int]], cancelled: Callable[[], bool] = lambda: False
) -> Iterator[Path]:
    """Paths of the GGUF files in the folders, each file once, later parts of split models left out.

    Folders that cannot be read are passed over. Linked folders are not entered, linked files are taken.
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


def describe_file(path: Path) -> FoundModel:
    """What a file is, from its header. Never raises: a bad file is found with its problem."""
    try:
        header = read_header(path)
        return FoundModel(path, header.file_size, classify(header), header.architecture, quantisation(header))
    except ModelFileError as error:
        return FoundModel(path, 0, problem=str(error))


def support_choices(target_path: Path, found: Sequence[FoundModel]) -> Iterator[SupportChoice]:
    """What can draft for a target, the ones without a file first. Raises ModelFileError if the target
    itself cannot be used."""
    target = check_target(target_path)
    yield SupportChoice("", False, "none", "plain decoding, one token a pass")
    yield SupportChoice("", True, "lookup", "drafts are continuations found in the conversation; no file")
    if kind_of(target).inside:
        yield _pair_choice(target, "embedded", "NextN block inside")
    for model in found:
        if model.may_support and not _same_file(model.path, target_path) and _smaller(model, target):
            yield _pair_choice(target, str(model.path), model.path.name)


def _pair_choice(target: Header, support: str, label: str) -> SupportChoice:
    try:
        pair = check_pair(target, support)
    except ModelFileError as error:
        return SupportChoice(support, False, label, str(error), fits=False)
    if pair.off_reason:
        return SupportChoice(support, False, label, pair.off_reason, fits=False)
    return SupportChoice(support, False, label, " ".join([f"{pair.kind}, fits.", *pair.notes]))


def _smaller(model: FoundModel, target: Header) -> bool:
    """A whole model drafts only for a larger one; a support file is what it is."""
    return not model.is_target or model.size < target.file_size


def _same_file(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return a == b
