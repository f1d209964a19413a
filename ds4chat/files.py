"""Files that a user names, opened so that nothing hangs: a pipe or a device is refused, and a disk or a mount
that does not answer is given up. It stands on nothing of ours, so that every part may use it."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""How long a disk may take for one answer: one that has to spin up first takes about as long."""
_BUFFER = 1 << 18

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "It is a named pipe"),
    (stat.S_ISSOCK, "It is a socket"),
    (stat.S_ISCHR, "It is a device"),
    (stat.S_ISBLK, "It is a device"),
)


class NotRegularError(OSError):
    """What is to be a regular file is something else."""


def user_path(name: str) -> Path:
    """The path that a user means, ``~`` written out; one of a user who is not known stays as it is."""
    return Path(os.path.expanduser(name))


def within(seconds: float, work: Callable[[], T], *, too_late: Callable[[T], object] | None = None) -> T:
    """What ``work`` gives, or raises, unless it takes longer: then TimeoutError, whose strerror says why.

    A system call cannot be interrupted, so it is left to a thread that nothing waits for; ``too_late`` gets
    what that gives in the end.
    """
    done: list[T] = []
    failed: list[BaseException] = []
    lock = threading.Lock()
    given_up = False

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            failed.append(error)
            return
        with lock:
            if not given_up:
                done.append(result)
                return
        if too_late is not None:
            too_late(result)

    thread = threading.Thread(target=run, name="file", daemon=True)
    thread.start()
    thread.join(seconds)
    with lock:
        given_up = not done
    if done:
        return done[0]
    if failed:
        raise failed[0]
    raise TimeoutError(
        errno.ETIMEDOUT, f"The disk or network that it is on did not answer within {seconds:g} seconds"
    )


def open_regular(path: str | os.PathLike[str], *, seconds: float = ANSWER_SECONDS) -> BinaryIO:
    """The regular file at ``path``, to be read. Opening it and each read take ``seconds`` at most.

    Raises OSError, its strerror fit for a sentence: for what is no regular file, which is not even opened, as
    for what does not answer, which a read raises too.
    """
    descriptor = within(seconds, lambda: _opened(path), too_late=os.close)
    return io.BufferedReader(_Answering(descriptor, seconds), _BUFFER)


def read_regular(path: str | os.PathLike[str], most: int, *, seconds: float = ANSWER_SECONDS) -> bytes:
    """All of a regular file, in ``seconds`` at most. Raises OSError as open_regular does, and where the file
    has more than ``most`` bytes."""

    def read() -> bytes:
        with open(_opened(path), "rb", buffering=0) as file:
            data = bytearray()
            while len(data) <= most and (chunk := file.read(most + 1 - len(data))):
                data += chunk
            return bytes(data)

    data = within(seconds, read)
    if len(data) > most:
        size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"It has more than {size}", os.fspath(path))
    return data


def is_regular(path: str | os.PathLike[str], *, seconds: float = ANSWER_SECONDS) -> bool:
    """A regular file is there. Raises TimeoutError."""
    return within(seconds, lambda: os.path.isfile(path))


def _opened(path: str | os.PathLike[str]) -> int:
    """A descriptor of the regular file at ``path``. Raises OSError."""
    try:
        # To open a device can do something by itself, and to open a pipe waits for its writer.
        _refuse_special(os.stat(path).st_mode, path)
        flags = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
        descriptor = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in flags))
    except ValueError as error:  # a NUL or a lone surrogate in it
        raise OSError(errno.EINVAL, "No file can have this name", os.fspath(path)) from error
    try:
        _refuse_special(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_special(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        what = next((name for is_kind, name in _KINDS if is_kind(mode)), "It is something else")
        raise NotRegularError(errno.EINVAL, f"{what} and no regular file", os.fspath(path))


def open_to_append(path: str | os.PathLike[str]) -> int:
    """A descriptor to append to ``path``, which is made, for its owner alone, where it is missing. Raises
    OSError, for a named pipe too: it would hold up everything that is written until somebody reads."""
    if stat.S_ISFIFO(_mode(path)):
        raise NotRegularError(errno.EINVAL, "It is a named pipe", os.fspath(path))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOCTTY", 0), 0o600)


def _mode(path: str | os.PathLike[str]) -> int:
    """The mode of what is at ``path``; 0 where nothing is."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0


class _Answering(io.RawIOBase):
    """A file each of whose answers has a time limit."""

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor = descriptor
        self._seconds = seconds

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = within(self._seconds, lambda: os.read(self._descriptor, len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return within(self._seconds, lambda: os.lseek(self._descriptor, offset, whence))

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
