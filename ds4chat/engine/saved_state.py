"""A conversation's KV state on disk, so that it goes on after a restart without being read again.

What is restored is what was saved, byte for byte, under the same model, drafter, library and cache: a file of
anything else, or one that is not whole, is left alone, and the prompt is decoded as ever.

A file is: MAGIC, the length of a JSON object (four bytes, big-endian), that object, then the parts whose
lengths it names one after the other (tokens, target, drafter's cache, drafter's features), and a BLAKE2b
digest of all before it. Text can be read back from the tokens, so the folder and its files are private.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.drafters.base import Drafter, DrafterState
from ds4chat.engine.llama import Context, LlamaError
from ds4chat.settings.files import write_atomically
from ds4chat.settings.paths import FolderError, made

log = logging.getLogger(__name__)

MAGIC = b"ds4chat state 1\n"
MIN_TOKENS = 512
"""Fewer are decoded again sooner than anybody waits for."""
MEASURED = 64
"""Tokens of prefill, in one turn or several, that make a measurement."""
MAX_FILE = 512 << 20
MAX_FILES = 6
MAX_BYTES = 1 << 30
"""Of all files together."""
MAX_AGE_S = 7 * 24 * 3600.0
BYTES_PER_S = 250e6
"""What a restore reads, checks and hands over in a second, until one was measured: a slow disk's rate."""
WORTH = 2.0
"""How many times longer the prefill must take than the restore."""
_SUFFIX = ".state"
_MAX_HEAD = 1 << 20
_STALE_S = 3600.0
"""Age of a half-written file that nobody writes any more."""
_HEAD = struct.Struct(">I")
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class _Found:
    """A file that fits, and how much of a prompt it holds."""

    path: Path
    tokens: list[int]
    common: int
    size: int
    ms_per_token: float


class SavedStates:
    """The states of one model under one set of settings. ``identity``: all that shapes a cache's content."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self._folder = folder
        self._identity = identity
        name = hashlib.blake2b(_canonical(identity), digest_size=8).hexdigest()
        self._prefix = f"{name}-"
        self._kept: tuple[int, ...] = ()
        """Tokens that are on disk already."""
        self._ms_per_token = 0.0
        self._counted = (0, 0.0)
        """Tokens and seconds of prefill since the last measurement."""
        self._bytes_per_s = BYTES_PER_S
        self._usable = True

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Learn what a token of prefill costs here."""
        tokens, seconds = self._counted[0] + tokens, self._counted[1] + seconds
        if tokens >= MEASURED:
            self._ms_per_token = 1000 * seconds / tokens
            tokens, seconds = 0, 0.0
        self._counted = tokens, seconds

    # ---------------------------------------------------------------------------------- saving

    def save(self, target: Context, drafter: Drafter | None, tokens: Sequence[int]) -> bool:
        """Put the state on disk if that is worth it; True when it was written. Raises nothing: without the
        file the conversation is read again."""
        if not self._usable or len(tokens) < MIN_TOKENS or tuple(tokens) == self._kept:
            return False
        size = target.state_size()
        if size > MAX_FILE or not self._pays(len(tokens), size, self._ms_per_token):
            return False
        try:
            made(self._folder)
            self._write(target, drafter, list(tokens))
        except (OSError, FolderError, LlamaError, MemoryError) as error:
            log.warning("the conversation's state is not kept: %s", error)
            self._usable = False
            return False
        self._kept = tuple(tokens)
        return True

    def _pays(self, tokens: int, size: int, ms_per_token: float) -> bool:
        return tokens * ms_per_token > WORTH * 1000 * size / self._bytes_per_s

    def _write(self, target: Context, drafter: Drafter | None, tokens: list[int]) -> None:
        drafts = drafter.state() if drafter else None
        ids = np.array(tokens, "<i4").tobytes()
        parts: list[bytes | memoryview] = [ids, target.save_state()]
        head: dict[str, Any] = {
            "identity": self._identity,
            "ms_per_token": self._ms_per_token,
            "tokens": len(tokens),
            "drafter": None,
        }
        if drafts is not None:
            head["drafter"] = {
                "known": drafts.known,
                "observed": drafts.observed,
                "backlog": drafts.backlog,
                "rows": drafts.features.shape[0],
                "width": drafts.features.shape[1],
            }
            parts += [memoryview(drafts.cache), drafts.features.astype("<f4").tobytes()]
        head["parts"] = [len(part) for part in parts]
        described = _canonical(head)
        begin = MAGIC + _HEAD.pack(len(described)) + described
        digest = hashlib.blake2b(begin, digest_size=_DIGEST)
        for part in parts:
            digest.update(part)
        total = len(begin) + sum(head["parts"]) + _DIGEST
        if total > MAX_FILE:
            return
        name = hashlib.blake2b(ids, digest_size=8).hexdigest()
        path = self._folder / f"{self._prefix}{name}{_SUFFIX}"
        self._make_room(total, tokens)
        write_atomically(path, [begin, *parts, digest.digest()], durable=False)
        log.info("kept the state of %d tokens in %d bytes", len(tokens), total)

    def _make_room(self, size: int, tokens: list[int]) -> None:
        """Delete what the new file continues, and the oldest beyond the budget."""
        for found in list(self._candidates(tokens)):
            if found.common == len(found.tokens):
                found.path.unlink(missing_ok=True)
        room, files = MAX_BYTES - size, MAX_FILES - 1
        for path, status in sorted(_files(self._folder), key=lambda item: -item[1].st_mtime):
            room -= status.st_size
            files -= 1
            if room < 0 or files < 0:
                path.unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------- restoring

    def restore(
        self,
        target: Context,
        drafter: Drafter | None,
        tokens: list[int],
        prompt: Sequence[int],
        *,
        whole: bool,
    ) -> int:
        """Have both caches, and ``tokens`` with them, hold a saved beginning of ``prompt`` where that is more
        than they hold; how many of its tokens that is, 0 where nothing was restored.

        whole: the caches cannot be cut, so that a state must be the prompt's beginning to its end; else its
        tokens may go on differently, and are to be cut. Where a restore fails, the caches may be empty.
        """
        have = _common(np.array(tokens, "<i4"), prompt)
        if whole and have < len(tokens):
            have = 0
        found = self._best(prompt, have, whole)
        if found is None:
            return 0
        started = time.perf_counter()
        restored = self._read(found, target, drafter)
        if restored is None:
            log.warning("the state in %s cannot be used", found.path)
            try:
                found.path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("nor can it be removed, so none is looked for any more: %s", error)
                self._usable = False
            if target.used != len(tokens):
                target.clear()
                tokens.clear()
                if drafter is not None:
                    drafter.rewind(0)
            return 0
        self._bytes_per_s = found.size / max(time.perf_counter() - started, 1e-3)
        tokens[:] = restored
        self._kept = tuple(restored)
        with suppress(OSError):
            os.utime(found.path)  # the last to be deleted
        return found.common

    def _best(self, prompt: Sequence[int], have: int, whole: bool) -> _Found | None:
        """The file that saves the most of a prefill, if one is worth it."""
        if not self._usable or len(prompt) - have < MIN_TOKENS:
            return None
        best: _Found | None = None
        for found in self._candidates(prompt):
            gain = found.common - have
            if (whole and found.common < len(found.tokens)) or gain < MIN_TOKENS:
                continue
            if self._pays(gain, found.size, self._ms_per_token or found.ms_per_token) and (
                best is None or found.common > best.common
            ):
                best = found
        return best

    def _read(self, found: _Found, target: Context, drafter: Drafter | None) -> list[int] | None:
        """Load a file that is whole. None where it is not, or llama.cpp does not take it: then the caches
        are empty, or as they were."""
        try:
            content = bytearray(found.path.stat().st_size)
            with found.path.open("rb") as file:
                file.readinto(content)
        except (OSError, MemoryError):
            return None
        body = memoryview(content)[:-_DIGEST]
        if hashlib.blake2b(body, digest_size=_DIGEST).digest() != content[-_DIGEST:]:
            return None
        head, at = self._parse(content[: _MAX_HEAD + 64], len(content))
        if head is None:
            return None
        parts = []
        for length in head["parts"]:
            parts.append(body[at : at + length])
            at += length
        drafts = None
        if drafter is not None:
            if head["drafter"] is None:
                return None
            drafts = _drafter_state(head["drafter"], parts[2:])
        tokens = [int(token) for token in np.frombuffer(parts[0], "<i4")]
        target.clear()
        if drafter is not None:
            drafter.rewind(0)
        if (
            target.load_state(parts[1])
            and target.used == len(tokens)
            and (drafter is None or (drafts is not None and drafter.restore(drafts)))
        ):
            return tokens
        target.clear()
        if drafter is not None:
            drafter.rewind(0)
        return None

    def _candidates(self, prompt: Sequence[int]) -> Iterator[_Found]:
        """The files of this identity, with what they share with a prompt. Only their beginning is read."""
        for path, status in _files(self._folder):
            if not path.name.startswith(self._prefix):
                continue
            try:
                with path.open("rb") as file:
                    head, at = self._parse(file.read(_MAX_HEAD + 64), status.st_size)
                    if head is None:
                        continue
                    file.seek(at)
                    ids = np.frombuffer(_exactly(file, head["parts"][0]), "<i4")
            except (OSError, ValueError):
                continue
            common = _common(ids, prompt)
            yield _Found(path, ids.tolist(), common, status.st_size, float(head["ms_per_token"]))

    def _parse(self, begin: bytes | bytearray, size: int) -> tuple[dict[str, Any] | None, int]:
        """The header of a file of ``size`` bytes, and where its parts begin; None for any other file."""
        start = len(MAGIC) + _HEAD.size
        if len(begin) < start or begin[: len(MAGIC)] != MAGIC:
            return None, 0
        (length,) = _HEAD.unpack_from(begin, len(MAGIC))
        if length > min(_MAX_HEAD, len(begin) - start):
            return None, 0
        try:
            head = json.loads(begin[start : start + length])
            identity, parts, tokens = head["identity"], head["parts"], head["tokens"]
            float(head["ms_per_token"])
            drafter = head["drafter"]
        except (ValueError, KeyError, TypeError):
            return None, 0
        if identity != self._identity or not isinstance(parts, list):
            return None, 0
        if not all(isinstance(n, int) and n >= 0 for n in parts) or len(parts) != (
            2 if drafter is None else 4
        ):
            return None, 0
        whole = start + length + sum(parts) + _DIGEST == size
        return (head, start + length) if whole and parts[0] == 4 * tokens else (None, 0)


def tidy(folder: Path, *, keep: bool = True) -> None:
    """Delete states that are old or half-written; with ``keep`` False all of them. Raises nothing."""
    try:
        now = time.time()
        for path, status in _files(folder, everything=True):
            age = now - status.st_mtime
            half = path.name.startswith(".")
            if not keep or age > (_STALE_S if half else MAX_AGE_S):
                path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the folder of states cannot be tidied: %s", error)


def _files(folder: Path, *, everything: bool = False) -> list[tuple[Path, os.stat_result]]:
    """The states in a folder; with ``everything`` also those that are half written."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                ours = entry.name.endswith(_SUFFIX) or (everything and f"{_SUFFIX}." in entry.name)
                if ours and entry.is_file(follow_symlinks=False):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
    except OSError:
        pass
    return [item for item in found if everything or not item[0].name.startswith(".")]


def _common(ids: NDArray[np.int32], prompt: Sequence[int]) -> int:
    """Length of the common beginning."""
    n = min(len(ids), len(prompt))
    differs = np.flatnonzero(ids[:n] != np.array(prompt[:n], "<i4"))
    return int(differs[0]) if len(differs) else n


def _exactly(file: BinaryIO, n: int) -> bytes:
    content = file.read(n)
    if len(content) != n:
        raise ValueError("the file ends too early")
    return content


def _drafter_state(head: dict[str, Any], parts: Sequence[memoryview]) -> DrafterState | None:
    """The drafter's part, None when its numbers do not agree."""
    try:
        rows, width = int(head["rows"]), int(head["width"])
        backlog = [int(token) for token in head["backlog"]]
        features = np.frombuffer(parts[1], "<f4").astype(np.float32).reshape(rows, width)
        return DrafterState(int(head["known"]), int(head["observed"]), backlog, features, parts[0])
    except (ValueError, KeyError, TypeError):
        return None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
