"""A conversation's KV state on disk, so that it goes on after a restart without being read again.

What is restored is what was saved, byte for byte, under the same model, drafter, library and cache: a file of
anything else, or one that is not whole, is left alone, and the prompt is decoded as ever.

A file is: MAGIC, the length of a JSON object (four bytes, big-endian), that object, then the parts whose
lengths it names one after the other (tokens, target, drafter's cache, drafter's features), and a BLAKE2b
digest of all before it. Text can be read back from the tokens, so the folder and its files are private.

Whoever deletes a conversation removes every file of the folder, and need not ask the engines, of which other
chats may have some. From the beginning of a prompt until the caches are saved, an engine has an empty file
there, its mark. Once that is gone, what the caches hold may be what was deleted, and is not saved; where it
goes while a state is written, that state is removed again. ``remove_files`` goes through the folder twice, so
that a state which came under its name before the mark was gone is found.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.drafters.base import Drafter, DrafterState
from ds4chat.engine.llama import Context, LlamaError
from ds4chat.settings.files import PRIVATE, write_atomically
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
_PIECE = 8 << 20
"""Bytes that are written between two looks whether somebody waits."""
_SUFFIX = ".state"
_MARK = ".mark"
_PROCESS = re.compile(r"\.([0-9]+)\.[^.]+(?:\.mark)?$")
"""The process in the name of a half-written file (write_atomically) or of a mark."""
_MAX_HEAD = 1 << 20
_STALE_S = 3600.0
"""Age of a half-written file that nobody writes any more, where its writer cannot be asked."""
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


class _GivenUp(Exception):
    """Somebody waits, and a state is not written to its end."""


class SavedStates:
    """The states of one model under one set of settings. ``identity``: all that shapes a cache's content."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self._folder = folder
        self._identity = identity
        name = hashlib.blake2b(_canonical(identity), digest_size=8).hexdigest()
        self._prefix = f"{name}-"
        self._mark = folder / f".{os.getpid()}.{secrets.token_hex(4)}{_MARK}"
        self._marked = False
        """The caches hold what was not saved since the last prompt."""
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

    def save(
        self,
        target: Context,
        drafter: Drafter | None,
        tokens: Sequence[int],
        hurried: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Put the state on disk if that is worth it; True when it was written. It is given up, to be tried
        anew by the next call, when ``hurried``, asked between two pieces, says so. Raises nothing: without
        the file the conversation is read again."""
        path = self._path(tokens)
        written = False
        try:
            if self._marked and self._worth_it(target, len(tokens)) and self._mark.exists():
                written = not path.exists() and self._write(path, target, drafter, list(tokens), hurried)
                if written and not self._mark.exists():
                    written = False
                    path.unlink(missing_ok=True)
        except _GivenUp:
            log.info("the conversation's state is not kept: there was no time")
            return False
        except (OSError, LlamaError, MemoryError) as error:
            # Who deletes conversations also takes away what is half-written, which is no fault of the folder.
            if not isinstance(error, FileNotFoundError) or self._mark.exists():
                log.warning("the conversation's state is not kept: %s", error)
                self._usable = False
        self._unmark()
        return written

    def _begin(self) -> None:
        """From here on the caches are to hold what can be saved: a prompt, and what follows it."""
        self._marked = False
        if not self._usable:
            return
        try:
            made(self._folder)
            self._mark.touch(PRIVATE)
            self._marked = True
        except (OSError, FolderError) as error:
            log.info("the conversation's state will not be kept: %s", error)

    def _unmark(self) -> None:
        self._marked = False
        with suppress(OSError):
            self._mark.unlink(missing_ok=True)

    def _path(self, tokens: Sequence[int]) -> Path:
        name = hashlib.blake2b(np.array(tokens, "<i4").tobytes(), digest_size=8).hexdigest()
        return self._folder / f"{self._prefix}{name}{_SUFFIX}"

    def _worth_it(self, target: Context, tokens: int) -> bool:
        if tokens < MIN_TOKENS:
            return False
        size = target.state_size()
        return size <= MAX_FILE and self._pays(tokens, size, self._ms_per_token)

    def _pays(self, tokens: int, size: int, ms_per_token: float) -> bool:
        return tokens * ms_per_token > WORTH * 1000 * size / self._bytes_per_s

    def _write(
        self,
        path: Path,
        target: Context,
        drafter: Drafter | None,
        tokens: list[int],
        hurried: Callable[[], bool],
    ) -> bool:
        """Write the state to ``path`` in the place of what it continues; False where it is too large."""
        if hurried():
            raise _GivenUp
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
        total = len(begin) + sum(head["parts"]) + _DIGEST
        if total > MAX_FILE:
            return False
        continued = {
            found.path: found.size
            for found in self._candidates(tokens)
            if found.common == len(found.tokens) and found.path != path
        }
        self._make_room(total, continued)
        write_atomically(path, _with_digest([begin, *parts], hurried), durable=False)
        log.info("kept the state of %d tokens in %d bytes", len(tokens), total)
        # Only now: a new state that is not written to its end must not cost the one that it continues.
        for old in continued:
            old.unlink(missing_ok=True)
        return True

    def _make_room(self, size: int, continued: Mapping[Path, int]) -> None:
        """Delete the oldest beyond the budget, but not those that the new one continues."""
        room, files = MAX_BYTES - size - sum(continued.values()), MAX_FILES - 1
        for path, status in sorted(_files(self._folder), key=lambda item: -item[1].st_mtime):
            if path in continued:
                continue
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
        than they hold; how many of its tokens that is, 0 where nothing was restored. With it begins what
        ``save`` can put on disk: the caller brings the caches to hold the prompt.

        whole: the caches cannot be cut, so that a state must be the prompt's beginning to its end; else its
        tokens may go on differently, and are to be cut. Where a restore fails, the caches may be empty.
        """
        self._begin()
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
    """Delete states that are old, and what killed processes left; with ``keep`` False all that is ours.
    Raises nothing."""
    try:
        now = time.time()
        for path, status in _files(folder, everything=True):
            age = now - status.st_mtime
            if not keep or age > MAX_AGE_S or (path.name.startswith(".") and _left_behind(path, age)):
                path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the folder of states cannot be tidied: %s", error)


def _left_behind(path: Path, age_s: float) -> bool:
    """Whether nobody writes a half-written state any more, or stands behind a mark: the process whose number
    is in the name is gone."""
    process = _PROCESS.search(path.name)
    if os.name != "posix" or process is None:
        return age_s > _STALE_S
    try:
        os.kill(int(process[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def _files(folder: Path, *, everything: bool = False) -> list[tuple[Path, os.stat_result]]:
    """The states in a folder; with ``everything`` also marks and what is half written."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                ours = entry.name.endswith((_SUFFIX, _MARK)) or f"{_SUFFIX}." in entry.name
                if not everything and (entry.name.startswith(".") or not entry.name.endswith(_SUFFIX)):
                    continue
                if ours and entry.is_file(follow_symlinks=False):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
    except OSError:
        pass
    return found


def _with_digest(parts: Sequence[bytes | memoryview], hurried: Callable[[], bool]) -> Iterator[memoryview]:
    """The parts piece by piece, then the digest of all. Raises _GivenUp as soon as somebody waits."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        whole = memoryview(part)
        for at in range(0, len(whole), _PIECE):
            if hurried():
                raise _GivenUp
            piece = whole[at : at + _PIECE]
            digest.update(piece)
            yield piece
    yield memoryview(digest.digest())


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
