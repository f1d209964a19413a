"""Files that a user names, opened so that nothing hangs, and files that are written whole or not at all.

Pipes and devices are refused, and reads from a disk or mount that does not answer time out. This module
imports nothing else of ds4chat, so that every part may use it.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""How long one operation may take: about as long as a disk needs to spin up."""
_BUFFER = 1 << 18

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(OSError):
    """A regular file was expected and something else is there."""


def user_path(name: str) -> Path:
    """The path that a user means, with ``~`` expanded unless its user is unknown."""
    return Path(os.path.expanduser(name))


def within(seconds: float, work: Callable[[], T], *, too_late: Callable[[T], object] | None = None) -> T:
    """What ``work`` returns or raises; TimeoutError, whose strerror says why, if it takes longer.

    A system call cannot be interrupted, so it runs in a thread that nothing waits for; ``too_late`` gets its
    result if it still returns one.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            with suppress(InvalidStateError):
                outcome.set_exception(error)
            return
        try:
            outcome.set_result(result)
        except InvalidStateError:
            if too_late is not None:
                too_late(result)

    threading.Thread(target=run, name="file", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if not outcome.cancel():  # it ended just now, or with this error
            return outcome.result()
    raise TimeoutError(
        errno.ETIMEDOUT, f"The disk or network that it is on did not answer within {seconds:g} seconds"
    )


def open_regular(path: str | os.PathLike[str], *, seconds: float = ANSWER_SECONDS) -> BinaryIO:
    """The regular file at ``path``, opened for reading. Opening it and each read take ``seconds`` at most.

    Raises OSError, with a strerror fit for a sentence, for anything but a regular file, which is not opened,
    and for a disk that does not answer; reads raise the latter too.
    """
    descriptor = within(seconds, lambda: _opened(path), too_late=os.close)
    return io.BufferedReader(_Answering(descriptor, seconds), _BUFFER)


def read_regular(path: str | os.PathLike[str], most: int, *, seconds: float = ANSWER_SECONDS) -> bytes:
    """The contents of a regular file, in ``seconds`` at most. Raises OSError as open_regular does, and for a
    file of more than ``most`` bytes."""

    def read() -> bytes:
        with open(_opened(path), "rb") as file:
            return file.read(most + 1)

    data = within(seconds, read)
    if len(data) > most:
        size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"It has more than {size}", os.fspath(path))
    return data


def is_regular(path: str | os.PathLike[str], *, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether a regular file is there; True as well if its disk does not answer, which opening it reports."""
    try:
        return within(seconds, lambda: os.path.isfile(path))
    except TimeoutError:
        return True


def _opened(path: str | os.PathLike[str]) -> int:
    """A descriptor of the regular file at ``path``. Raises OSError."""
    try:
        # Opening a device can have side effects, and opening a pipe waits for its writer.
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
        what = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise NotRegularError(errno.EINVAL, f"It is {what}, not a regular file", os.fspath(path))


def open_to_append(path: str | os.PathLike[str]) -> int:
    """A descriptor to append to ``path``, which is created, readable by its owner only, if it is missing.
    Raises OSError, also for a named pipe: writes to it would block until somebody reads."""
    if Path(path).is_fifo():
        raise NotRegularError(errno.EINVAL, "It is a named pipe", os.fspath(path))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOCTTY", 0), 0o600)


class _Answering(io.RawIOBase):
    """A file with a time limit for each read."""

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


# ---------------------------------------------------------------------------------------- writing

PRIVATE = 0o600
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, readable by its owner only, that is complete on disk before it appears under its
    name.

    Raises OSError; FileExistsError for an existing file, unless ``overwrite``. On an error, and if the block
    raises, the folder is left as it was; a process that is killed while it writes leaves
    ``.NAME.xxxxxxxx.part``.
    """
    _refuse_to_replace(path)
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
    descriptor, temporary = _beside(path)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put(temporary, path, overwrite)
        _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, chunks: Iterable[bytes], *, overwrite: bool = False) -> None:
    """Write a ``whole_file`` of these bytes. Raises as that does."""
    with whole_file(path, overwrite=overwrite) as file:
        file.writelines(chunks)


def try_place(path: Path) -> None:
    """Raise the OSError that writing ``path`` would raise, without changing anything."""
    _refuse_to_replace(path)
    descriptor, temporary = _beside(path)
    os.close(descriptor)
    temporary.unlink()


def _refuse_to_replace(path: Path) -> None:
    """Raise OSError for anything but a regular file: a rename would replace a device, such as /dev/null."""
    if path.exists() and not path.is_file():
        raise NotRegularError(errno.EINVAL, "It is not a regular file", os.fspath(path))


def _beside(path: Path) -> tuple[int, Path]:
    """A new file beside ``path``, to be renamed to it: its open descriptor and its path. Raises OSError."""
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    # The umask restricts this further.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.open(temporary, flags, PRIVATE), temporary


def _put(temporary: Path, path: Path, overwrite: bool) -> None:
    if overwrite:
        temporary.replace(path)
        return
    try:
        # Unlike a rename, a link fails if a file of that name was created in the meantime.
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a file renamed into it is found there after a power cut.

    Where that is impossible (a folder that may be written but not read, a system that cannot open folders)
    the system does it within seconds. The file is in place already, so nothing is raised.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
