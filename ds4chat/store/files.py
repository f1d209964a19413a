"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ds4chat.durable import refuse_special, sync_folder
from ds4chat.store.errors import StoreError, from_system
from ds4chat.text import one_line

PRIVATE = 0o600

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False) -> Iterator[TextIO]:
    """A file to write to, its owner's alone, which is complete on disk before it shows under its name.

    Raises OSError, FileExistsError for a file that is there, unless it is to be replaced. Then, and where the
    block raises, what was there is as it was, and nothing stays beside it.
    """
    refuse_special(path)
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        # The system takes away what the umask forbids, and nothing adds to it.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with open(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put(temporary, path, overwrite)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, chunks: Iterable[str], *, overwrite: bool = False) -> None:
    """Write a ``whole_file``. Raises StoreError, and then leaves what was there as it was."""
    if path.is_dir():
        raise StoreError(f"{one_line(path)} is a folder. Give the name of a file in it.", "input")
    try:
        with whole_file(path, overwrite=overwrite) as file:
            for chunk in chunks:
                file.write(chunk)
    except FileExistsError:
        raise StoreError(f"{one_line(path)} exists already. Give another name.", "exists") from None
    except OSError as error:
        raise from_system(
            error, f"{one_line(path)} cannot be written. Choose another place. The system says"
        ) from error


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
