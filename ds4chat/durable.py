"""What puts a file under its name for good. It stands on nothing of ours, so that every part may use it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Have the names in a folder reach the disk: a file that was renamed into it, or made in it, is found
    there after a power cut.

    Where that cannot be had (a folder that may be written but not read, a system that opens no folders) it is
    left to the system, which does it within seconds: the file is in its place already, so nothing is raised.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refuse_special(path: Path) -> None:
    """Raise OSError where something stands that is no regular file: a rename would put a file in the place of
    a device, such as /dev/null."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "It is no regular file", os.fspath(path))
