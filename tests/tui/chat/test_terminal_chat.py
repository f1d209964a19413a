"""A whole session in a pseudo-terminal against the real engine on a constructed model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from kits.terminal import Terminal

SIZES = [(80, 24), (150, 45)]


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def chat(request: pytest.FixtureRequest, tiny_dir: Path, tmp_path: Path) -> Iterator[Terminal]:
    columns, rows = request.param
    target = tiny.build("deepseek4", tiny_dir)
    support = tiny.build("deepseek4-support", tiny_dir, wrong_every=4)
    terminal = Terminal(
        *("-m", target, "--mtp", support, "--mtp-draft", "3", "-c", "8192", "-t", "1", "-n", "40"),
        columns=columns,
        rows=rows,
        DS4CHAT_HOME=str(tmp_path),
    )
    yield terminal
    terminal.close()


@pytest.mark.slow  # a chat in a terminal of its own
def test_three_turns_then_tune_stop_and_leave(chat: Terminal) -> None:
    chat.until("ready")
    for word in ("sun", "sea", "fog"):
        chat.enter(f"tell me of the {word}")
        # Below the prompt stands the reply, and below that its counters.
        reply = chat.until(lambda screen, word=word: "tok/s ·" in screen.split(f"of the {word}")[-1])
        assert "yes it is fine." in reply.split(f"of the {word}")[-1]
        assert "thinking · 5 tokens" in reply.split(f"of the {word}")[-1]
    assert "depth 3" in chat.text
    chat.type("\x1b[18~")  # F7: one draft less
    chat.until("depth 2")
    chat.type("\x1b[19~")  # F8: one draft more
    chat.until("depth 3")
    chat.type("\x1b[20~")  # F9: loosen the margin
    chat.until("APPROXIMATE")
    chat.type("\x1b[21~")  # F10: tighten it
    chat.until(lambda screen: "APPROXIMATE" not in screen and "exact" in screen)
    chat.enter("/quit")
    assert chat.leave() == 0
    assert b"\x1b[?1049l" in chat.raw, "the terminal was not given back"


@pytest.mark.slow  # a chat in a terminal of its own
def test_a_stop_keeps_what_came(tiny_dir: Path, tmp_path: Path) -> None:
    target = tiny.build("llama", tiny_dir)
    chat = Terminal("-m", target, "--lookup", "-c", "200000", "-t", "1", DS4CHAT_HOME=str(tmp_path))
    try:
        chat.until("ready")
        chat.enter("go on in a loop")
        chat.until("tok/s")
        chat.type("\x1b")
        chat.until("stopped")
        assert " we" in chat.text
        chat.type("\x03")
        chat.until("again leaves")
        chat.type("\x03\x03")  # where the machine is busy, the first may come too late for the one before
        assert chat.leave() == 0
    finally:
        chat.close()


def test_without_a_terminal_it_says_to_use_p(tiny_dir: Path) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "ds4chat", "-m", str(tiny.build("llama", tiny_dir))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "-p" in done.stderr
    assert done.stdout == ""


@pytest.mark.slow  # a chat in a terminal of its own
def test_the_mouse_of_a_terminal_drags_and_turns_a_number(tiny_dir: Path, tmp_path: Path) -> None:
    """The bytes that a terminal sends for it (SGR mouse reports), on a value of the Tuning panel."""
    (tmp_path / "config.toml").write_text('panels = "tuning"\n', encoding="utf-8")
    target = tiny.build("llama", tiny_dir)
    chat = Terminal("-m", target, "--lookup", "-t", "1", columns=140, rows=30, DS4CHAT_HOME=str(tmp_path))
    try:
        screen = chat.until(lambda text: "ready" in text and "gate   −" in text).splitlines()
        row = next(i for i, line in enumerate(screen, 1) if "gate   −" in line)
        x = screen[row - 1].index("gate   −") + 13

        def mouse(button: int, column: int, up: bool = False) -> None:
            chat.type(f"\x1b[<{button};{column};{row}{'m' if up else 'M'}")

        mouse(0, x)
        for column in range(x + 1, x + 7):
            mouse(32, column)
        mouse(0, x + 6, up=True)
        chat.until("3.00   + stop below this d.gap")
        mouse(35, x + 1)
        mouse(64, x + 1)
        chat.until("3.50   + stop below this d.gap")
        chat.type("\x12")  # ctrl+r: undo the turn of the wheel, then the drag
        chat.until("3.00   + stop below this d.gap")
        chat.type("\x12")
        chat.until("0.00   + off: drafts up to depth")
    finally:
        chat.close()


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_only_writes_lines_gets_no_screen(term: str, tiny_dir: Path, tmp_path: Path) -> None:
    target = tiny.build("llama", tiny_dir)
    chat = Terminal("-m", target, DS4CHAT_HOME=str(tmp_path), TERM=term)
    assert chat.leave() == 2
    assert b"-p TEXT" in chat.raw and b"\x1b" not in chat.raw
    shot = Terminal("-m", target, "-n", "3", "-p", "hi", DS4CHAT_HOME=str(tmp_path), TERM=term)
    assert shot.leave() == 0
    assert b"\x1b" not in shot.raw


@pytest.mark.slow  # a chat in a terminal of its own
def test_a_chat_can_be_left_whatever_it_waits_for(tiny_dir: Path, tmp_path: Path) -> None:
    """A thread that hangs in a read is not waited for; a pipe that stays empty stands for a dead disk."""
    script = (
        "import os, sys\n"
        "from ds4chat.settings.load import load\n"
        "from ds4chat.tui.app import ChatApp, run\n"
        "ends = os.pipe()\n"
        "show = ChatApp.on_ready\n"
        "def hang(app):\n"
        "    show(app)\n"
        "    app.run_worker(lambda: os.read(ends[0], 1), thread=True, exit_on_error=False)\n"
        "ChatApp.on_ready = hang\n"
        "sys.exit(run(load({})))\n"
    )
    chat = Terminal(DS4CHAT_HOME=str(tmp_path), script=script)
    try:
        chat.until("no model")
        chat.enter("/quit")
        assert chat.leave() == 0
        assert b"\x1b[?1049l" in chat.raw, "the terminal was not given back"
    finally:
        chat.close()


@pytest.mark.slow  # a chat in a terminal of its own
def test_a_chat_that_was_stopped_by_the_shell_draws_its_whole_screen_again(chat: Terminal) -> None:
    chat.until("ready")
    chat.child.kill(signal.SIGTSTP)
    # It stops once all that it has drawn is read.
    while os.waitid(os.P_PID, chat.child.pid, os.WSTOPPED | os.WNOHANG) is None:
        chat.read()
    chat.read()
    # The second screen of a terminal, which the chat enters again, is blank; pyte has only one.
    chat.screen.reset()
    chat.child.kill(signal.SIGCONT)
    chat.until(lambda screen: all(part in screen for part in ("F1 help", "╭───", "╰───", "● ready")))


@pytest.mark.slow  # a chat in a terminal of its own
def test_a_chat_that_was_held_draws_its_screen_again_and_takes_keys(chat: Terminal) -> None:
    """By SIGSTOP, which it cannot see: it has not left its screen, and must not enter it a second time."""
    chat.until("ready")
    chat.child.kill(signal.SIGSTOP)
    os.waitid(os.P_PID, chat.child.pid, os.WSTOPPED)
    chat.read()
    chat.screen.reset()  # others have written over it
    chat.child.kill(signal.SIGCONT)
    chat.until(lambda screen: all(part in screen for part in ("F1 help", "╭───", "╰───", "● ready")))
    chat.enter("/quit")
    assert chat.leave() == 0
    assert chat.raw.count(b"\x1b[?1049h") == 1
