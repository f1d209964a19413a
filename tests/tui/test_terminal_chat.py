"""A whole session in a pseudo-terminal against the real engine on a constructed model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from terminal import Terminal

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


def test_three_turns_then_tune_stop_and_leave(chat: Terminal) -> None:
    chat.until("ready")
    for word in ("sun", "sea", "fog"):
        chat.enter(f"tell me of the {word}")
        # Below the prompt stands the reply, and below that its counters.
        reply = chat.until(lambda screen, word=word: "tok/s ·" in screen.split(f"of the {word}")[-1])
        assert "yes it is fine." in reply.split(f"of the {word}")[-1]
        assert "thinking · 5 tokens" in reply.split(f"of the {word}")[-1]
    assert "depth 3" in chat.text
    chat.type("\x1b[19~")  # F8: one draft more
    chat.until("depth 4")
    chat.type("\x1b[18~")  # F7: one draft less
    chat.until("depth 3")
    chat.type("\x1b[20~")  # F9: loosen the margin
    chat.until("APPROXIMATE")
    chat.type("\x1b[21~")  # F10: tighten it
    chat.until(lambda screen: "APPROXIMATE" not in screen and "exact" in screen)
    chat.enter("/quit")
    assert chat.leave() == 0
    assert b"\x1b[?1049l" in chat.raw, "the terminal was not given back"


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
        chat.type("\x03")
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
        timeout=60,
    )
    assert done.returncode == 2
    assert "-p" in done.stderr
    assert done.stdout == ""
