"""A conversation's KV state on disk, so that it goes on after a restart without being read again.

What is restored is what was saved, byte for byte, under the same model, drafter, library and cache: a file of
anything else, or one that is not whole, is left alone, and the prompt is decoded as usual.

A file is: MAGIC, the length of a JSON object (four bytes, big-endian), that object, then the parts whose
lengths it names one after the other (tokens, target, drafter's cache, drafter's features), and a BLAKE2b
digest of all before it. Text can be read back from the tokens, so the folder and its files are private.

Its name is the conversation's number in the store. Whoever deletes a conversation unlinks that file, and need
not ask the engines, of which other chats may have some: the file is made, empty, when a prompt of the
conversation comes, and a state is only ever written into a file that is there. What is written into one that
was unlinked meanwhile goes with it, and what is written in part has no digest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.drafters.base import Drafter, DrafterState, Stateful
from ds4chat.engine.llama import Context, LlamaError
from ds4chat.files import PRIVATE
from ds4chat.settings.paths import FolderError, made, state_file

log = logging.getLogger(__name__)

MAGIC = b"ds4chat state 2\n"
MIN_TOKENS = 512
"""Fewer are decoded again sooner than anybody waits for."""
MEASURED = 64
"""Tokens of prefill, in one turn or several, that make a measurement."""
MAX_FILE = 512 << 20
MAX_FILES = 6
MAX_BYTES = 1 << 30
"""Of all files together."""
MAX_AGE_S = 7 * 24 * 3600.0
EMPTY_AGE_S = 3600.0
"""A file stays empty from a prompt until its reply is over; an older one was left by an engine that died."""
BYTES_PER_S = 250e6
"""What a restore reads, checks and hands over in a second, until one was measured: a slow disk's rate."""
WORTH = 2.0
"""How many times longer the prefill must take than the restore."""
_PIECE = 8 << 20
"""Bytes that are written between two looks whether somebody waits."""
_STATE = re.compile(r"[1-9][0-9]*\.state")
_OURS = re.compile(r"\.(state|mark)(\.|$)")
_MAX_HEAD = 1 << 20
_HEAD = struct.Struct(">I")
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class _Found:
    """A file that fits, and how much of a prompt it holds."""

    path: Path
    tokens: int
    common: int
    size: int
    ms_per_token: float


class _GivenUp(Exception):
    """Somebody waits, and a state is not written to its end."""


class SavedStates:
    """The states of one model under one set of settings. ``identity``: all that shapes a cache's content."""

    def __init__(self, identity: dict[str, Any]) -> None:
        self._identity = identity
        self._file: Path | None = None
        """Where what the caches hold belongs, if that was not decided since the last prompt."""
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
        interrupted: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Put the state into the conversation's file if that is worth it; True when it was written. It is
        given up, to be tried anew by the next call, when ``interrupted``, asked between two pieces, says so.
        Raises nothing: without the file the conversation is read again."""
        path, written = self._file, False
        if path is None:
            return False
        try:
            if self._worth_it(target, len(tokens)):
                written = self._write(path, target, drafter, tokens, interrupted)
        except _GivenUp:
            log.info("the conversation's state is not kept: there was no time")
            return False
        except FileNotFoundError:
            log.info("the conversation's state is not kept: it was deleted")
        except (OSError, LlamaError, MemoryError) as error:
            log.warning("the conversation's state is not kept: %s", error)
            self._usable = False
        self._settle()
        return written

    def _begin(self, conversation: int) -> None:
        """From here on the caches are to hold this conversation, which is kept in its file."""
        path = state_file(conversation)
        if path != self._file:
            self._settle()
        if not self._usable or not conversation:
            return
        try:
            made(path.parent)
            path.touch(PRIVATE)
            self._file = path
        except (OSError, FolderError) as error:
            log.info("the conversation's state will not be kept: %s", error)

    def _settle(self) -> None:
        """Nothing more is written for the last prompt."""
        path, self._file = self._file, None
        with suppress(OSError):
            if path is not None and not path.stat().st_size:
                path.unlink()

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
        tokens: Sequence[int],
        interrupted: Callable[[], bool],
    ) -> bool:
        """Write the state into ``path``, which must be there; False where it is too large. Raises _GivenUp,
        OSError, and then the file is empty, and LlamaError."""
        if interrupted():
            raise _GivenUp
        drafts = drafter.state() if isinstance(drafter, Stateful) else None
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
        _make_room(total, path)
        # Never a new file renamed into its place: that would bring back what was deleted meanwhile.
        with path.open("r+b") as file:
            file.truncate(0)
            try:
                file.writelines(_with_digest([begin, *parts], interrupted))
                file.flush()
            except BaseException:
                file.truncate(0)
                raise
        log.info("kept the state of %d tokens in %d bytes", len(tokens), total)
        return True

    # ---------------------------------------------------------------------------------- restoring

    def restore(
        self,
        conversation: int,
        target: Context,
        drafter: Drafter | None,
        tokens: list[int],
        prompt: Sequence[int],
        *,
        whole: bool,
    ) -> int:
        """Have both caches, and ``tokens`` with them, hold the saved beginning of ``prompt`` where that is
        more than they hold; how many of its tokens that is, 0 where nothing was restored. With it begins what
        ``save`` can put on disk: the caller brings the caches to hold the prompt.

        conversation: its number in the store; 0 for one that is not there, whose state is not kept. whole:
        the state must be the prompt's beginning to its end; else its tokens may go on differently, and are to
        be cut. Where a restore fails, the caches may be empty.
        """
        found = self._restore(conversation, target, drafter, tokens, prompt, whole) if conversation else 0
        self._begin(conversation)
        return found

    def _restore(
        self,
        conversation: int,
        target: Context,
        drafter: Drafter | None,
        tokens: list[int],
        prompt: Sequence[int],
        whole: bool,
    ) -> int:
        have = _common(np.array(tokens, "<i4"), prompt)
        if whole and have < len(tokens):
            have = 0
        if not self._usable or len(prompt) - have < MIN_TOKENS:
            return 0
        found = self._found(state_file(conversation), prompt)
        if found is None or (whole and found.common < found.tokens):
            return 0
        gain = found.common - have
        if gain < MIN_TOKENS or not self._pays(gain, found.size, self._ms_per_token or found.ms_per_token):
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
        drafts = None if head["drafter"] is None else _drafter_state(head["drafter"], parts[2:])
        tokens = [int(token) for token in np.frombuffer(parts[0], "<i4")]
        target.clear()
        if drafter is not None:
            drafter.rewind(0)
        if target.load_state(parts[1]) and target.used == len(tokens) and _taken(drafter, drafts):
            return tokens
        target.clear()
        if drafter is not None:
            drafter.rewind(0)
        return None

    def _found(self, path: Path, prompt: Sequence[int]) -> _Found | None:
        """A file of this identity, with what it shares with a prompt; only its beginning is read. None where
        there is no such file."""
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head, at = self._parse(file.read(_MAX_HEAD + 64), size)
                if head is None:
                    return None
                file.seek(at)
                ids = np.frombuffer(_exactly(file, head["parts"][0]), "<i4")
        except (OSError, ValueError):
            return None
        return _Found(path, len(ids), _common(ids, prompt), size, float(head["ms_per_token"]))

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


def _make_room(size: int, path: Path) -> None:
    """Delete the oldest beyond the budget, so that ``path`` may have ``size`` bytes."""
    room, files = MAX_BYTES - size, MAX_FILES - 1
    for other, status in sorted(_states(path.parent), key=lambda item: -item[1].st_mtime):
        if other == path or not status.st_size:
            continue
        room -= status.st_size
        files -= 1
        if room < 0 or files < 0:
            other.unlink(missing_ok=True)


def tidy(folder: Path, *, keep: bool = True) -> None:
    """Delete states that are old, what killed processes left, and what is named by no conversation, so that
    deleting one would not delete it; with ``keep`` False all that is ours. Raises nothing."""
    try:
        now = time.time()
        for path, status in _files(folder):
            age = now - status.st_mtime
            old = age > (MAX_AGE_S if status.st_size else EMPTY_AGE_S)
            if not keep or old or not _STATE.fullmatch(path.name):
                path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the folder of states cannot be tidied: %s", error)


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """What this module put into a folder."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _OURS.search(entry.name) and entry.is_file(follow_symlinks=False):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
    except OSError:
        pass
    return found


def _states(folder: Path) -> list[tuple[Path, os.stat_result]]:
    return [(path, status) for path, status in _files(folder) if _STATE.fullmatch(path.name)]


def _taken(drafter: Drafter | None, state: DrafterState | None) -> bool:
    """Hand a drafter what was saved of it; False where it does not go on from there."""
    if state is None:
        # Of a drafter that needs the tokens alone, or none.
        return not isinstance(drafter, Stateful) or drafter.state() is None
    return isinstance(drafter, Stateful) and drafter.restore(state)


def _with_digest(
    parts: Sequence[bytes | memoryview], interrupted: Callable[[], bool]
) -> Iterator[memoryview]:
    """The parts piece by piece, then the digest of all. Raises _GivenUp as soon as somebody waits."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        whole = memoryview(part)
        for at in range(0, len(whole), _PIECE):
            if interrupted():
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
