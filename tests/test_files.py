"""Files that a user names: only regular ones are opened, and what does not answer is given up."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ds4chat import files
from ds4chat.files import (
    NotRegularError,
    is_regular,
    open_regular,
    open_to_append,
    read_regular,
    user_path,
    within,
)

OPENERS: tuple[Callable[[Path], object], ...] = (open_regular, lambda path: read_regular(path, 1 << 20))


def pipe(folder: Path) -> Path:
    path = folder / "pipe"
    os.mkfifo(path)
    return path


def bound_socket(folder: Path) -> Path:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as server:
        # A path of a socket is short, and the test's folder is not.
        before = Path.cwd()
        os.chdir(folder)
        try:
            server.bind("s")
        finally:
            os.chdir(before)
    return path


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (pipe, "It is a named pipe, not a regular file"),
        (bound_socket, "It is a socket, not a regular file"),
        (lambda folder: Path("/dev/zero"), "It is a device, not a regular file"),
    ],
)
def test_what_is_no_regular_file_is_refused(
    opener: Callable[[Path], object], make: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    with pytest.raises(NotRegularError) as refused:
        opener(make(tmp_path))
    assert refused.value.strerror == said


@pytest.mark.parametrize("opener", OPENERS)
def test_folders_missing_files_and_impossible_names_are_told_apart(
    opener: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(IsADirectoryError):
        opener(tmp_path)
    with pytest.raises(FileNotFoundError):
        opener(tmp_path / "none")
    with pytest.raises(OSError, match="No file can have this name"):
        opener(Path("a\0b"))


def test_a_link_to_a_file_is_read_and_one_to_a_pipe_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-pipe").symlink_to(pipe(tmp_path).name)
    assert read_regular(tmp_path / "to-file", 1000) == b"x" * 1000
    with pytest.raises(NotRegularError):
        read_regular(tmp_path / "to-pipe", 1000)


def test_a_file_of_more_than_the_most_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 2049)
    assert len(read_regular(file, 2049)) == 2049
    with pytest.raises(OSError, match="It has more than 2 KiB") as refused:
        read_regular(file, 2048)
    assert refused.value.errno == errno.EFBIG


def test_an_opened_file_reads_and_seeks_as_any_other(tmp_path: Path) -> None:
    data = os.urandom(700_000)
    (tmp_path / "file").write_bytes(data)
    with open_regular(tmp_path / "file") as file:
        assert file.read(10) == data[:10]
        assert file.seek(500_000) == 500_000
        assert file.read() == data[500_000:]
        assert file.seek(-3, os.SEEK_END) == len(data) - 3
        assert file.read(9) == data[-3:]
        assert os.fstat(file.fileno()).st_size == len(data)
        descriptor = file.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_work_gives_its_result_or_its_error() -> None:
    assert within(60, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0)


def test_work_that_hangs_in_the_system_is_given_up_and_its_late_result_handed_over() -> None:
    """A read of an empty pipe stands for a mount that is gone: it cannot be interrupted either."""
    reader, writer = os.pipe()
    late: list[bytes] = []
    came = threading.Event()

    def take(data: bytes) -> None:
        late.append(data)
        came.set()

    with pytest.raises(TimeoutError) as given_up:
        within(0.05, lambda: os.read(reader, 1), too_late=take)
    assert given_up.value.strerror == ("The disk or network that it is on did not answer within 0.05 seconds")
    os.write(writer, b"x")
    assert came.wait(60)
    assert late == [b"x"]
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("opener", [open_regular, read_regular, is_regular])
def test_a_file_on_a_disk_that_hangs_is_given_up(
    opener: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    answers = threading.Event()
    look = os.stat

    def hang(path: object, *args: object, **more: object) -> os.stat_result:
        if path == file:
            answers.wait()
        return look(path, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(files.os, "stat", hang)
    monkeypatch.setattr(files.os.path, "isfile", hang)
    arguments = (1000,) if opener is read_regular else ()
    try:
        if opener is is_regular:
            assert is_regular(file, seconds=0.05)
        else:
            with pytest.raises(TimeoutError):
                opener(file, *arguments, seconds=0.05)
    finally:
        answers.set()


def test_a_log_is_appended_to_and_a_pipe_is_no_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text in (b"one", b"two"):
        descriptor = open_to_append(log)
        os.write(descriptor, text)
        os.close(descriptor)
    assert log.read_bytes() == b"onetwo"
    assert log.stat().st_mode & 0o777 == 0o600
    with pytest.raises(NotRegularError):
        open_to_append(pipe(tmp_path))


def test_the_home_of_a_user_who_is_not_known_is_a_name_like_any_other() -> None:
    assert user_path("~/a") == Path.home() / "a"
    assert user_path("~no-such-user-here/a") == Path("~no-such-user-here/a")
