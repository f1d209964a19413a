"""The chat itself dies or is told to leave: what is on disk, what is left running, and the terminal."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from kits.faults import SHORT, Victim, context_stored, runs, stored, until

from ds4chat.store import open_store

# Whole programs that are killed, locked out or left without a disk, one process or more each.
pytestmark = pytest.mark.slow

LEFT_MODES = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?2004l")
"""The first screen, the cursor, no mouse reports, no marks around pastes."""


def context_used(text: str) -> int:
    """Tokens in the context, as the status line shows them."""
    found = re.search(r"ctx ([\d,]+)/", text)
    assert found is not None, text
    return int(found.group(1).replace(",", ""))


def test_killed_in_a_reply_it_keeps_what_it_wrote_and_leaves_no_engine(
    victim: Callable[..., Victim], home: Path
) -> None:
    chat = victim(home)
    chat.until("● ready")
    chat.answered()
    chat.writing()
    chat.until(lambda screen: context_used(screen) > 500)
    engine, shown = chat.engine, context_used(chat.text)
    # Within a second where the machine is not busy (tests/store/test_faults.py holds that by the writer's own
    # clock); here, while the reply runs on.
    chat.until(lambda _: context_stored(home) >= shown)
    chat.kill(signal.SIGKILL, chat.pid)
    until(lambda: not runs(engine), "the end of the engine")
    found = stored(home)
    assert [row[:2] for row in found] == [
        ("user", "complete"),
        ("assistant", "complete"),
        ("user", "complete"),
        ("assistant", "streaming"),
    ]
    store = open_store(home / "conversations.db")
    try:
        (conversation,) = store.conversations.listed()
        reply = store.conversations.path(conversation.id)[-1]
        assert reply.state == "crashed"
        assert reply.context_used >= shown
        tokens = [token for step in store.steps(reply.id) for token in step.tokens]
        assert "".join(token.text for token in tokens) == reply.text == found[-1][2]
    finally:
        store.close()
    again = victim(home)
    again.until("● ready")
    again.type("\x02")
    again.until("4 messages")
    again.type("\r")
    again.until("cut off")
    again.answered()
    again.enter("/quit")
    assert again.leave() == 0
    assert len(stored(home)) == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("way", ["in order", "by force"])
def test_told_to_leave_it_keeps_the_reply_and_gives_the_terminal_back(
    victim: Callable[..., Victim], home: Path, tmp_path: Path, number: signal.Signals, way: str
) -> None:
    """By force: as where leaving in order takes too long, here because it does not wait at all."""
    seconds = 0.0 if way == "by force" else 60.0
    (tmp_path / "sitecustomize.py").write_text(
        f"from ds4chat.tui import app, process_exit\nprocess_exit.LEAVE_SECONDS = {seconds}\n"
        + ("app.ChatApp.exit = lambda self, *more: None\n" if way == "by force" else "")
    )
    chat = victim(home, PYTHONPATH=str(tmp_path))
    chat.until("● ready")
    chat.writing()
    engine = chat.engine
    chat.child.kill(number)
    assert chat.leave() == 128 + number
    until(lambda: not runs(engine), "the end of the engine")
    assert [mode for mode in LEFT_MODES if mode not in chat.raw.split(b"\x1b[?1049h")[-1]] == []
    (_, reply) = stored(home)
    assert reply[:2] == ("assistant", "stopped")
    assert reply[2].startswith(" we go up to the old red hut")


def test_a_closed_terminal_leaves_nothing_behind(victim: Callable[..., Victim], home: Path) -> None:
    chat = victim(home)
    chat.until("● ready")
    chat.writing()
    pid, engine = chat.pid, chat.engine
    chat.child.ptyproc.fileobj.close()
    until(lambda: not runs(pid), "the end of the chat")
    until(lambda: not runs(engine), "the end of the engine")
    (_, reply) = stored(home)
    assert reply[:2] == ("assistant", "stopped")
    assert reply[2].startswith(" we go up to the old red hut")


def test_two_chats_on_one_database_leave_each_others_replies_alone(
    victim: Callable[..., Victim], home: Path
) -> None:
    one, two = victim(home), victim(home)
    one.until("● ready")
    one.writing()
    two.until("● ready")
    two.answered()
    assert "assistant streaming" in {" ".join(row[:2]) for row in stored(home)}
    two.enter("/quit")
    assert two.leave() == 0
    one.type("\x1b")
    one.until("stopped")
    one.answered()
    one.enter("/quit")
    assert one.leave() == 0
    assert sorted(row[:2] for row in stored(home)) == [
        ("assistant", "complete"),
        ("assistant", "complete"),
        ("assistant", "stopped"),
        *[("user", "complete")] * 3,
    ]
    assert sum(text == SHORT for _, _, text in stored(home)) == 2
