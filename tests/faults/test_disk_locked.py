"""Another program holds the database: the screen stays alive, and nothing is lost once it lets go."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kits.chat import PIECES, ReplayEngine, ended, steps_of
from kits.faults import SHORT, Victim, frames_until, runs, stored, until
from kits.terminal import one_line

from ds4chat.engine.events import Load, Tuning
from ds4chat.store import open_store
from ds4chat.tui.controller import Chat
from ds4chat.tui.recorder import Recorder

# Whole programs that are killed, locked out or left without a disk, one process or more each.
pytestmark = pytest.mark.slow

NARROW = 100
"""Columns at which no panel stands beside the sentences."""
LOCKED = "is locked by another program"
KEYS = 4

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that holds the exclusive lock until it is told to let go."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        """Roll back and leave."""
        self._process.communicate("")


@pytest.fixture
def hold(home: Path) -> Iterator[Callable[[], Holder]]:
    """Takes the lock of the home's database."""
    held: list[Holder] = []

    def take() -> Holder:
        held.append(Holder(home / "conversations.db"))
        return held[-1]

    yield take
    for holder in held:
        if holder._process.poll() is None:
            holder.let_go()


def test_keys_are_answered_while_the_prompt_waits_and_nothing_is_lost(
    victim: Callable[..., Victim], home: Path, hold: Callable[[], Holder], tmp_path: Path
) -> None:
    # The lock is waited for longer than by default, so that some keys come meanwhile on a busy machine too.
    (tmp_path / "sitecustomize.py").write_text(
        "from ds4chat.store import database\ndatabase.PATIENCE_MS = 20_000\n"
        "from ds4chat.tui import recorder\nrecorder.SILENCE = 60.0\n"
    )
    chat = victim(home, columns=NARROW, PYTHONPATH=str(tmp_path))
    chat.until("● ready")
    chat.answered()
    holder = hold()
    chat.enter(SHORT)
    chat.until("◐ saving")
    # One key after the other, each once the one before shows: none has to wait for the lock.
    for count in range(1, KEYS + 1):
        chat.type("~")
        assert "◐ saving" in chat.until(lambda screen, count=count: screen.count("~") == count)
    # The engine is asked only after this was said.
    chat.until(lambda screen: LOCKED in one_line(screen))
    # Unsaved as it is, the prompt is answered.
    chat.until(lambda screen: screen.count("all done") == 2 and "● ready" in screen)
    assert len(stored(home)) == 2
    chat.type("\x7f" * KEYS)
    chat.until(lambda screen: "~" not in screen)
    chat.answered()
    assert one_line(chat.text).count(LOCKED) == 1
    holder.let_go()
    chat.until("written to disk again")
    chat.enter("/quit")
    assert chat.leave() == 0
    assert stored(home) == [("user", "complete", SHORT), ("assistant", "complete", " all done")] * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_told_to_leave_under_a_lock_that_ends_it_keeps_everything(
    victim: Callable[..., Victim], home: Path, hold: Callable[[], Holder], number: signal.Signals
) -> None:
    chat = victim(home, columns=NARROW)
    chat.until("● ready")
    chat.writing()
    engine = chat.engine
    holder = hold()
    before = stored(home)[-1][2]
    # More is on the screen than on the disk.
    chat.until(lambda screen: screen.count(" we ") > before.count(" we ") or len(before) > 2_000)
    chat.child.kill(number)
    holder.let_go()
    assert chat.leave() == 128 + number
    until(lambda: not runs(engine), "the end of the engine")
    role, state, text = stored(home)[-1]
    assert (role, state) == ("assistant", "stopped")
    assert len(text) > len(before)
    assert text.startswith(before)


@pytest.mark.parametrize("way", ["in order", "by force"])
def test_told_to_leave_under_a_lock_that_stays_it_leaves_and_says_what_is_lost(
    victim: Callable[..., Victim], home: Path, hold: Callable[[], Holder], tmp_path: Path, way: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from ds4chat.tui import app, process_exit, recorder\n"
        + (
            "process_exit.LEAVE_SECONDS = 60.0\n"
            if way == "in order"
            else "app.ChatApp.exit = lambda self, *more: None\n"
        )
        + "recorder.LAST_WAIT = 1.0\n"
    )
    chat = victim(home, columns=NARROW, PYTHONPATH=str(tmp_path))
    chat.until("● ready")
    chat.writing()
    engine = chat.engine
    hold()
    before = stored(home)
    chat.child.kill(signal.SIGTERM)
    assert chat.leave() == 128 + signal.SIGTERM
    until(lambda: not runs(engine), "the end of the engine")
    assert "could not be stored" in one_line(chat.raw.decode(errors="replace"))
    assert stored(home) == before
    store = open_store(home / "conversations.db", read_only=True)
    store.close()


def test_a_lock_that_ends_in_time_is_waited_for_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds4chat.store.database.PATIENCE_MS", 120_000)
    path = tmp_path / "conversations.db"
    engine = ReplayEngine(answer=False)
    chat = Chat(engine, Recorder(open_store(path)), Tuning(depth=2))
    chat.load(Load("/models/tiny.gguf"))
    frames_until(chat, lambda: chat.state == "ready", "the model")
    recorder = chat.recorder
    assert recorder.settle(30)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    chat.submit("One")
    notices = [notice for _ in range(50) for notice in chat.frame().notices]
    assert (chat.state, engine.generates) == ("saving", [])
    blocker.execute("ROLLBACK")
    frames_until(chat, lambda: chat.state == "reading", "the engine to be asked")
    (asked,) = engine.generates
    rows = blocker.execute("SELECT role, text FROM messages ORDER BY id").fetchall()
    assert rows == [("user", "One"), ("assistant", "")]
    engine.push(*steps_of(asked.reply, PIECES), ended(asked.reply))
    notices += chat.frame().notices
    assert chat.recorder.close() == ""
    assert notices == []
    (state,) = blocker.execute("SELECT state FROM messages WHERE role = 'assistant'").fetchone()
    assert state == "complete"
    blocker.close()
