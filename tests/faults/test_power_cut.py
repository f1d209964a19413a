"""What a power cut leaves of the files that are written whole: the old content or the new one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ds4chat.files import write_whole
from ds4chat.models.gguf_write import text_value, write_gguf

WRITERS: dict[str, Callable[[Path], None]] = {
    "settings": lambda path: write_whole(path, [b"new"], overwrite=True),
    "an export": lambda path: write_whole(path, [b"new"]),
    "an export instead of another": lambda path: write_whole(path, [b"new"], overwrite=True),
    "a model": lambda path: write_gguf(
        path, [text_value("a", "b")], [], lambda done, total: None, force=False
    ),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    path = tmp_path / "file"
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(("folder" if folder else "file", path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write(path)
    assert synced == [("file", False), ("folder", True)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_folder_that_cannot_be_synced_is_no_failure_of_a_file_that_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    """An error would say that nothing was changed."""
    path = tmp_path / "file"
    sync = os.fsync

    def refused(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)
    write(path)
    assert path.read_bytes()[:4] in (b"new", b"GGUF")
    assert list(tmp_path.iterdir()) == [path]
