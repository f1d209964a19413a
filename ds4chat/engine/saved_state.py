"""A conversation's KV state on disk, so that its prompt need not be decoded again after a restart.

A state is restored byte for byte under the same model, drafter, library and cache. A file of anything else,
or one that is not whole, is ignored, and the prompt is decoded as usual.

A file is: MAGIC, the length of a JSON object (four bytes, big-endian), that object (_Head), the parts whose
lengths it gives (tokens, target, drafter's cache, drafter's features), and a BLAKE2b digest of everything
before it. The tokens hold the conversation's text, so the folder and its files are private.

A file is named by the conversation's number in the store. To delete a conversation is to unlink its file,
whatever engines other chats have running: the file is made, empty, when a prompt of the conversation comes,
and a state is only written into a file that exists. What is written into an unlinked file is gone with it,
and what is written in part has no digest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ds4chat.engine.caches import Caches, common_prefix
from ds4chat.engine.drafters.base import Drafter, DrafterState, Stateful
from ds4chat.engine.llama import LlamaError
from ds4chat.files import PRIVATE
from ds4chat.settings.paths import FolderError, made, state_file

log = logging.getLogger(__name__)

MAGIC = b"ds4chat state 2\n"
MIN_TOKENS = 512
"""Fewer are decoded in no time."""
MEASURED = 64
"""Tokens of prefill, in one turn or several, by which its speed is measured."""
MAX_FILE = 512 << 20
MAX_FILES = 6
MAX_BYTES = 1 << 30
"""Of all files together."""
MAX_AGE_S = 7 * 24 * 3600.0
EMPTY_AGE_S = 3600.0
"""A file is empty from a prompt to the end of its reply; an older one was left by an engine that died."""
BYTES_PER_S = 250e6
"""Speed of a restore until one was measured: a slow disk's."""
WORTH = 2.0
"""How many times longer the prefill must take than the restore."""
_PIECE = 8 << 20
"""Bytes written before it is asked again whether somebody waits."""
_STATE = re.compile(r"[1-9][0-9]*\.state")
_OURS = re.compile(r"\.(state|mark)(\.|$)")
_MAX_HEAD = 1 << 20
_START = len(MAGIC) + 4
_DIGEST = 32
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Drafts(msgspec.Struct, frozen=True):
    """A DrafterState but for its cache and features."""

    known: int
    observed: int
    backlog: list[int]
    rows: _Size
    width: _Size


class _Head(msgspec.Struct, frozen=True):
    """What a file holds."""

    identity: str
    ms_per_token: float
    tokens: int
    drafter: _Drafts | None
    parts: list[_Size]
    """Bytes of each."""


_head_decoder = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True)
class _Found:
    """A file that fits, and how much of a prompt it holds."""

    path: Path
    tokens: int
    common: int
    size: int
    ms_per_token: float


class _GivenUp(Exception):
    """A state is not written to its end, because somebody waits."""


class SavedStates:
    """The states of one model under one set of settings. ``identity``: what the content of a cache depends
    on, as JSON."""

    def __init__(self, identity: dict[str, Any]) -> None:
        self._identity = hashlib.blake2b(json.dumps(identity).encode("ascii"), digest_size=32).hexdigest()
        self._file: Path | None = None
        """The file for what the caches hold, until it is written or given up."""
        self._ms_per_token = 0.0
        self._counted = (0, 0.0)
        """Tokens and seconds of prefill since the last measurement."""
        self._bytes_per_s = BYTES_PER_S
        self._usable = True

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Measure what a token of prefill costs."""
        tokens, seconds = self._counted[0] + tokens, self._counted[1] + seconds
        if tokens >= MEASURED:
            self._ms_per_token = 1000 * seconds / tokens
            tokens, seconds = 0, 0.0
        self._counted = tokens, seconds

    # ---------------------------------------------------------------------------------- saving

    def save(self, caches: Caches, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Write the state into the conversation's file if that is worthwhile; True when it was. Given up, for
        the next call to try again, when ``interrupted``, which is asked between two pieces, says so. Raises
        nothing: without the file the prompt is decoded again."""
        path, written = self._file, False
        if path is None:
            return False
        try:
            if self._worth_it(caches):
                written = self._write(path, caches, interrupted)
        except _GivenUp:
            log.info("the conversation's state is not kept: there was no time")
            return False
        except FileNotFoundError:
            log.info("the conversation's state is not kept: it was deleted")
        except (OSError, LlamaError, MemoryError) as error:
            log.warning("the conversation's state is not kept: %s", error)
            self._usable = False
        self._drop_file()
        return written

    def _begin(self, conversation: int) -> None:
        """Have what the caches hold from now on saved in this conversation's file."""
        path = state_file(conversation)
        if path != self._file:
            self._drop_file()
        if not self._usable or not conversation:
            return
        try:
            made(path.parent)
            path.touch(PRIVATE)
            self._file = path
        except (OSError, FolderError) as error:
            log.info("the conversation's state will not be kept: %s", error)

    def _drop_file(self) -> None:
        """Write nothing more for the last prompt; an empty file is deleted."""
        path, self._file = self._file, None
        with suppress(OSError):
            if path is not None and not path.stat().st_size:
                path.unlink()

    def _worth_it(self, caches: Caches) -> bool:
        if len(caches.tokens) < MIN_TOKENS:
            return False
        size = caches.target.state_size()
        return size <= MAX_FILE and self._pays(len(caches.tokens), size, self._ms_per_token)

    def _pays(self, tokens: int, size: int, ms_per_token: float) -> bool:
        return tokens * ms_per_token > WORTH * 1000 * size / self._bytes_per_s

    def _write(self, path: Path, caches: Caches, interrupted: Callable[[], bool]) -> bool:
        """Write the state into ``path``, which must exist; False where it is too large. Raises LlamaError,
        and _GivenUp and OSError, after which the file is empty."""
        if interrupted():
            raise _GivenUp
        drafter = caches.drafter
        state = drafter.state() if isinstance(drafter, Stateful) else None
        ids = np.array(caches.tokens, "<i4").tobytes()
        parts: list[bytes | memoryview] = [ids, caches.target.save_state()]
        drafts = None
        if state is not None:
            drafts = _Drafts(state.known, state.observed, state.backlog, *state.features.shape)
            parts += [memoryview(state.cache), state.features.astype("<f4").tobytes()]
        sizes = [len(part) for part in parts]
        head = _Head(self._identity, self._ms_per_token, len(caches.tokens), drafts, sizes)
        described = msgspec.json.encode(head)
        begin = MAGIC + len(described).to_bytes(4, "big") + described
        total = len(begin) + sum(sizes) + _DIGEST
        if total > MAX_FILE:
            return False
        _make_room(total, path)
        # A new file renamed to this name would bring back what was deleted meanwhile.
        with path.open("r+b") as file:
            file.truncate(0)
            try:
                file.writelines(_with_digest([begin, *parts], interrupted))
                file.flush()
            except BaseException:
                file.truncate(0)
                raise
        log.info("kept the state of %d tokens in %d bytes", len(caches.tokens), total)
        return True

    # ---------------------------------------------------------------------------------- restoring

    def restore(self, conversation: int, caches: Caches, prompt: Sequence[int]) -> int:
        """Have the caches hold the saved beginning of ``prompt`` where that is more than they hold; how many
        tokens of it were restored, 0 for none. The caller then brings the caches to hold the whole prompt,
        and ``save`` saves what they hold.

        conversation: its number in the store; 0 for one that is not there, whose state is not kept. The
        tokens restored may go on after the prompt's beginning, and are to be cut. Where a restore fails, the
        caches may be empty.
        """
        found = self._restore(conversation, caches, prompt) if conversation else 0
        self._begin(conversation)
        return found

    def _restore(self, conversation: int, caches: Caches, prompt: Sequence[int]) -> int:
        whole = caches.only_whole
        have = common_prefix(caches.tokens, prompt)
        if whole and have < len(caches.tokens):
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
        if not self._read(found.path, caches):
            log.warning("the state in %s cannot be used", found.path)
            try:
                found.path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("nor can it be removed, so no state is looked for any more: %s", error)
                self._usable = False
            return 0
        self._bytes_per_s = found.size / max(time.perf_counter() - started, 1e-3)
        with suppress(OSError):
            os.utime(found.path)  # the last to be deleted
        return found.common

    def _read(self, path: Path, caches: Caches) -> bool:
        """Load a file. False where it is not whole, or llama.cpp refuses it: then the caches are empty, or as
        they were."""
        try:
            content = bytearray(path.stat().st_size)
            with path.open("rb") as file:
                file.readinto(content)
        except (OSError, MemoryError):
            return False
        body = memoryview(content)[:-_DIGEST]
        if hashlib.blake2b(body, digest_size=_DIGEST).digest() != content[-_DIGEST:]:
            return False
        head, at = self._parse(content[: _MAX_HEAD + _START], len(content))
        if head is None:
            return False
        parts = []
        for length in head.parts:
            parts.append(body[at : at + length])
            at += length
        caches.clear()
        target, drafter = caches.target, caches.drafter
        tokens = np.frombuffer(parts[0], "<i4").tolist()
        if (
            target.load_state(parts[1])
            and target.used == len(tokens)
            and _restore_drafter(drafter, head.drafter, parts[2:])
        ):
            caches.hold(tokens)
            return True
        caches.clear()
        return False

    def _found(self, path: Path, prompt: Sequence[int]) -> _Found | None:
        """A file of this identity, and what it shares with a prompt; only its beginning is read. None where
        there is no such file."""
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head, at = self._parse(file.read(_MAX_HEAD + _START), size)
                if head is None:
                    return None
                file.seek(at)
                ids = np.frombuffer(file.read(head.parts[0]), "<i4")
        except (OSError, ValueError):
            return None
        return _Found(path, len(ids), common_prefix(ids, prompt), size, head.ms_per_token)

    def _parse(self, begin: bytes | bytearray, size: int) -> tuple[_Head | None, int]:
        """The head of a file of ``size`` bytes, and where its parts begin; None for any other file."""
        if len(begin) < _START or begin[: len(MAGIC)] != MAGIC:
            return None, 0
        length = int.from_bytes(begin[len(MAGIC) : _START], "big")
        if length > _MAX_HEAD:
            return None, 0
        at = _START + length
        try:
            head = _head_decoder.decode(begin[_START:at])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None, 0
        fits = (
            head.identity == self._identity
            and len(head.parts) == (2 if head.drafter is None else 4)
            and head.parts[0] == 4 * head.tokens
            and at + sum(head.parts) + _DIGEST == size
        )
        return (head, at) if fits else (None, 0)


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
    """Delete states that are old, what killed processes left, and what no conversation's number names, since
    deleting the conversation would leave it; with ``keep`` False all of our files. Raises nothing."""
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
    """The files that this module made in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [
            (Path(entry.path), entry.stat(follow_symlinks=False))
            for entry in entries
            if _OURS.search(entry.name) and entry.is_file(follow_symlinks=False)
        ]
    return []


def _states(folder: Path) -> list[tuple[Path, os.stat_result]]:
    return [(path, status) for path, status in _files(folder) if _STATE.fullmatch(path.name)]


def _restore_drafter(drafter: Drafter | None, head: _Drafts | None, parts: Sequence[memoryview]) -> bool:
    """Have a drafter go on from what was saved of it; False where it does not."""
    if head is None:
        # Saved with a drafter that needs the tokens alone, or with none.
        return not isinstance(drafter, Stateful) or drafter.state() is None
    try:
        features = np.frombuffer(parts[1], "<f4").astype(np.float32).reshape(head.rows, head.width)
    except ValueError:
        return False
    state = DrafterState(head.known, head.observed, head.backlog, features, parts[0])
    return isinstance(drafter, Stateful) and drafter.restore(state)


def _with_digest(
    parts: Sequence[bytes | memoryview], interrupted: Callable[[], bool]
) -> Iterator[memoryview]:
    """The parts in pieces, then the digest of them all. Raises _GivenUp as soon as somebody waits."""
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
