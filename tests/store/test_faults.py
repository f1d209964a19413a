"""What a fault costs: killed writers, copied files, full disks, locks, and files that are not ours to use.

The disk is a real one that is full (a small tmpfs, or a limit on the file size where nothing can be mounted),
the read-only folder a real read-only mount, and the processes are real processes that are really killed.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from kits.mounts import mounted
from kits.stored_replies import WRITER, ended, keep, python, said, step, text

from ds4chat.store import StoreError, open_or_in_memory, open_store
from ds4chat.store.owner import STALE_MS, lives, this_process
from ds4chat.store.recording import INTERVAL, Request
from ds4chat.store.schema import VERSION


def sound(path: Path) -> bool:
    """Whether SQLite, the search index and the references find nothing wrong with a file."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    finally:
        connection.close()
    return True


# ---------------------------------------------------------------------------------------- killed


class Progress:
    """What a WRITER has done, by its own clock, however late this process hears of it."""

    def __init__(self, writer: subprocess.Popen[str]) -> None:
        self.writer = writer
        self.steps: list[tuple[float, float]] = []
        """When it began to take each step and when it had taken it."""
        self.writes: list[tuple[float, float]] = []
        """The same of each write to the disk."""

    def hear(self, line: str) -> None:
        what, begin, end = line.split()
        (self.writes if what == "written" else self.steps).append((float(begin), float(end)))

    def until(self, seconds: float) -> None:
        """Until it has taken steps for so long, and written some of them."""
        while not self.steps or self.steps[-1][0] - self.steps[0][0] < seconds or not self.has_written:
            self.hear(said(self.writer))

    @property
    def has_written(self) -> bool:
        """A write began after the first step, and is over."""
        return bool(self.writes) and self.writes[-1][0] >= self.steps[0][1]


def test_a_killed_writer_loses_only_what_came_after_its_last_write(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = python(WRITER, path)
    message = int(said(writer).split()[1])
    progress = Progress(writer)
    progress.until(2.2)
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate()
    for line in rest.splitlines(keepends=True):
        if line.endswith("\n"):
            progress.hear(line)

    store = open_store(path)
    found = store.conversations.message(message)
    assert (found.state, found.detail) == ("crashed", "ds4chat ended while this reply was written.")
    assert store.conversations.path(found.conversation)[0].text == "What is written here?"
    assert found.steps > 0
    assert found.text == text([step(index) for index in range(found.steps)])
    assert store.steps(message) == [step(index) for index in range(found.steps)]
    # Every step that had been taken when the last write began is there. Writes begin every INTERVAL.
    last, _ = progress.writes[-1]
    assert sum(end <= last for _, end in progress.steps) <= found.steps
    assert INTERVAL < 1
    assert [hit.message for hit in store.search("t000")] == [message]
    store.close()
    assert sound(path)


def test_a_reply_that_another_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = python(WRITER, path)
    message = int(said(writer).split()[1])
    try:
        store = open_store(path)
        assert store.conversations.message(message).state == "streaming"
        # A process that is stopped is not dead.
        writer.send_signal(signal.SIGSTOP)
        assert store.recover() == []
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert store.recover() == [message]
        assert store.conversations.message(message).state == "crashed"
        store.close()
    finally:
        writer.kill()
        writer.communicate()


@pytest.mark.parametrize(
    ("change", "age_ms", "expected"),
    [
        ({}, 10 * STALE_MS, True),
        ({1: "another-boot"}, 0, False),
        ({3: str(2**22 + 5)}, 0, False),
        ({3: "1"}, 0, False),  # the process id exists, and belongs to another process
        ({3: "x"}, 0, True),
        ({0: "another-host"}, 0, True),
        ({0: "another-host"}, STALE_MS, False),
        ({2: "another-container"}, 0, True),
        ({2: "another-container"}, STALE_MS, False),
        ({4: ""}, 0, True),
        ({4: ""}, STALE_MS, False),
    ],
)
def test_a_writer_is_alive_if_its_process_is_or_it_wrote_recently(
    change: dict[int, str], age_ms: int, expected: bool
) -> None:
    parts = this_process().split("|")
    for place, value in change.items():
        parts[place] = value
    assert lives("|".join(parts), 1_000, 1_000 + age_ms) is expected


@pytest.mark.parametrize("owner", [None, "", "nonsense", "a|b"])
def test_an_invalid_owner_is_not_alive(owner: str | None) -> None:
    assert not lives(owner, 1_000, 1_000)


# ---------------------------------------------------------------------------------------- power cut


def test_copies_of_the_files_taken_while_a_writer_writes_open_and_are_sound(tmp_path: Path) -> None:
    """As after a power cut: what is on the disk at some moment, a torn write at the log's end included."""
    path = tmp_path / "c.db"
    writer = python(WRITER, path)
    message = int(said(writer).split()[1])
    begun = (tmp_path / "c.db-wal").stat().st_size  # the exchange was said to be on the disk
    seen = []
    progress = Progress(writer)
    try:
        for number in range(5):
            progress.until((number + 1) * INTERVAL / 2)
            copy = tmp_path / f"copy{number}"
            copy.mkdir()
            writer.send_signal(signal.SIGSTOP)
            os.waitpid(writer.pid, os.WUNTRACED)
            for name in ("c.db", "c.db-wal", "c.db-shm"):
                shutil.copyfile(tmp_path / name, copy / name)
            writer.send_signal(signal.SIGCONT)
            log = copy / "c.db-wal"
            if number % 2:
                # What the system had not yet put on the disk.
                os.truncate(log, max(begun, log.stat().st_size - 1000))
            store = open_store(copy / "c.db")
            found = store.conversations.message(message)
            assert found.text == text([step(index) for index in range(found.steps)])
            if number % 2 == 0:  # a torn copy may lack the last write
                seen.append(found.steps)
            store.close()
            assert sound(copy / "c.db")
    finally:
        writer.kill()
        writer.communicate()
    assert seen == sorted(seen) and seen[-1] > 0


# ---------------------------------------------------------------------------------------- full disk


@pytest.mark.mounts
def test_a_full_disk_keeps_the_reply_in_memory_and_writes_it_when_there_is_room(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=1m") as folder:
        store = open_store(folder / "c.db")
        first = store.record(Request("before"))
        keep(first, step(0), ended())
        ballast = folder / "ballast"
        with pytest.raises(OSError), ballast.open("wb") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        second, request = store.recorder(), Request("during", parent=first.message)
        second.append(*(step(index) for index in range(200)), ended(tail="end"))
        with pytest.raises(StoreError, match="disk is full"):
            second.open(request)
        assert not second.saved
        with pytest.raises(StoreError, match="disk is full") as error:
            store.conversations.add(first.conversation, None, "user", "x" * 500_000)
        assert error.value.kind == "full"
        # What was written before is there and can be read meanwhile.
        assert store.conversations.message(first.message).text == text([step(0)])

        ballast.unlink()
        second.open(request)
        second.flush()
        assert second.saved
        assert store.steps(second.message) == [step(index) for index in range(200)]
        store.close()
        assert sound(folder / "c.db")


@pytest.mark.mounts
def test_a_disk_without_room_for_the_database_means_a_chat_in_memory(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=8k") as folder:
        store = open_or_in_memory(folder / "c.db")
        assert store.path is None
        assert "disk is full" in store.trouble
        recorder = store.record(Request("x"))
        keep(recorder, step(0), ended())
        assert store.conversations.message(recorder.message).text == text([step(0)])
        store.close()


def test_a_limit_on_the_file_size_is_a_sentence(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from ds4chat.store import StoreError, open_store
store = open_store(Path(sys.argv[1]))
conversation = store.conversations.create("t")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    store.conversations.add(conversation, None, "user", "x" * 1_000_000)
except StoreError as error:
    print(error)
print(len(store.conversations.messages(conversation)))
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    process = python(code, tmp_path / "c.db")
    sentence, count = (process.communicate()[0]).strip().splitlines()
    assert process.returncode == 0
    assert sentence.startswith("The database ") and sentence.endswith(".")
    assert count == "0"
    assert sound(tmp_path / "c.db")


# ---------------------------------------------------------------------------------------- read-only


@pytest.mark.mounts
def test_a_read_only_folder_can_be_read_and_is_otherwise_a_sentence(tmp_path: Path) -> None:
    with mounted(tmp_path / "fixed", "size=4m") as folder:
        store = open_store(folder / "c.db")
        conversation = store.conversations.create("kept")
        store.conversations.add(conversation, None, "user", "hello")
        store.close()
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)

        with pytest.raises(StoreError, match="cannot be opened for writing") as error:
            open_store(folder / "c.db")
        assert error.value.kind == "read-only"
        with pytest.raises(StoreError) as error:
            open_store(folder / "new.db")
        assert error.value.kind == "read-only"

        reader = open_store(folder / "c.db", read_only=True)
        assert [m.text for m in reader.conversations.path(conversation)] == ["hello"]
        assert len(reader.search("hello")) == 1
        with pytest.raises(StoreError, match="cannot be written") as error:
            reader.conversations.rename(conversation, "x")
        assert error.value.kind == "read-only"
        reader.close()

        memory = open_or_in_memory(folder / "c.db")
        assert memory.path is None
        assert "kept in memory only" in memory.trouble
        memory.close()


def test_a_folder_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"cannot be opened for writing.*: (not a directory|file exists)\."):
        open_store(tmp_path / "file" / "c.db")
    assert (tmp_path / "file").read_text() == "x"


def test_a_database_that_is_a_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        open_store(tmp_path)


# ---------------------------------------------------------------------------------------- others at it


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
connection.execute("CREATE TABLE mine (x)")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_locked_database_is_a_sentence_and_the_chat_goes_on_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    holder = python(HOLDER, path, stdin=subprocess.PIPE)
    assert said(holder) == "held"
    try:
        with pytest.raises(StoreError, match="locked by another program") as error:
            open_store(path)
        assert error.value.kind == "locked"
    finally:
        holder.communicate("")
    # It rolled back as it left.
    store = open_store(path)
    store.close()
    assert sound(path)


PATIENT = "from ds4chat.store import database; database.PATIENCE_MS = 120_000"
"""How long they wait for each other is not what is tested, and a busy machine's disk may take seconds."""

TWO_WRITERS = f"""
import sys
from pathlib import Path
from ds4chat.store import open_store
from ds4chat.store.recording import Request
from kits.mounts import mounted
from kits.stored_replies import ended, keep, step
{PATIENT}
store = open_store(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
for number in range(15):
    recorder = store.record(Request(sys.argv[2] + " " + str(number)))
    for index in range(20):
        keep(recorder, step(index))
    keep(recorder, ended())
store.close()
"""


def test_two_chats_write_one_database_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    # Both also find it new, and make it.
    writers = [python(TWO_WRITERS, path, name, stdin=subprocess.PIPE) for name in ("left", "right")]
    for writer in writers:
        assert said(writer) == "open"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    store = open_store(path)
    titles = {found.title for found in store.conversations.listed()}
    assert titles == {f"{name} {number}" for name in ("left", "right") for number in range(15)}
    wanted = [step(index) for index in range(20)]
    for found in store.conversations.listed():
        assert found.active_leaf is not None
        assert store.steps(found.active_leaf) == wanted
    store.close()
    assert sound(path)


def test_many_processes_make_one_database(tmp_path: Path) -> None:
    code = f"import sys; from pathlib import Path; from ds4chat.store import open_store\n{PATIENT}\n"
    code += "store = open_store(Path(sys.argv[1])); store.conversations.create('x'); store.close()"
    processes = [python(code, tmp_path / "deep" / "er" / "c.db") for _ in range(4)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    store = open_store(tmp_path / "deep" / "er" / "c.db")
    assert len(store.conversations.listed()) == 4
    store.close()


# ---------------------------------------------------------------------------------------- the file itself


def test_the_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "c.db"
    store = open_store(path)
    store.conversations.create("t")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"c.db", "c.db-wal", "c.db-shm"}
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    store.close()
    # One that was made readable for others is closed again.
    path.chmod(0o644)
    open_store(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_newer_database_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    open_store(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer version of ds4chat") as error:
        open_store(path)
    assert error.value.kind == "newer"
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["c.db"]


def test_another_programs_database_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="database of another program"):
        open_store(path)
    assert path.read_bytes() == before


def test_a_file_that_is_not_a_database_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(b"These are the notes of somebody. " * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is damaged") as error:
        open_store(path)
    assert error.value.kind == "corrupt"
    assert path.read_bytes() == before
    memory = open_or_in_memory(path)
    assert memory.path is None and "is damaged" in memory.trouble


def test_an_odd_path_is_only_a_path(tmp_path: Path) -> None:
    path = tmp_path / "50% #1?mode=memory&x" / "c d.db"
    store = open_store(path)
    store.conversations.create("here")
    store.close()
    assert path.is_file()
    assert sys.platform == "win32" or len(list(tmp_path.iterdir())) == 1
