"""Files that a user names, opened so that nothing hangs, and files that are written whole or not at all.

A pipe or a device is refused, and a disk or a mount that does not answer is given up. This module imports
nothing else of ds4chat, so that every part may use it.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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


# ---------------------------------------------------------------------------------------- writing

PRIVATE = 0o600
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, its owner's alone, which is complete on disk before it shows under its name.

    Raises OSError, FileExistsError for a file that is there, unless it is to be replaced. Then, and where the
    block raises, what was there is as it was, and nothing stays beside it; a process that is killed meanwhile
    leaves ``.NAME.xxxxxxxx.part``.
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
    """Raise the OSError with which ``path`` could not be written; leaves everything as it was."""
    _refuse_to_replace(path)
    descriptor, temporary = _beside(path)
    os.close(descriptor)
    temporary.unlink()


def _refuse_to_replace(path: Path) -> None:
    """Raise OSError for what is no regular file: a rename would replace a device, such as /dev/null."""
    if path.exists() and not path.is_file():
        raise NotRegularError(errno.EINVAL, "It is no regular file", os.fspath(path))


def _beside(path: Path) -> tuple[int, Path]:
    """A new file beside ``path``, to be renamed to it: its open descriptor and its path. Raises OSError."""
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    # The system takes away what the umask forbids, and nothing adds to it.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.open(temporary, flags, PRIVATE), temporary


def _put(temporary: Path, path: Path, overwrite: bool) -> None:
    if overwrite:
        temporary.replace(path)
        return
    try:
        # A link, unlike a rename, fails where a file of that name came up meanwhile.
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder reach the disk: a file that was renamed into it is found there after a power
    cut.

    Where that cannot be had (a folder that may be written but not read, a system that opens no folders) it is
    left to the system, which does it within seconds: the file is in its place already, so nothing is raised.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
