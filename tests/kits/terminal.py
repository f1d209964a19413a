"""ds4chat in a pseudo-terminal, with its screen as text."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pyte

PATIENCE = 120.0
"""Seconds to wait for what must appear; only a fault makes a test wait that long."""

# pyte does not know the queries for private modes that Textual sends, and would print them.
QUERY = re.compile(rb"\x1b\[\?\d*\$p")
BEGUN_QUERY = re.compile(rb"\x1b(\[(\?\d*\$?)?)?\Z")


def one_line(screen: str) -> str:
    """What is said on the screen, without the frames and line ends in it."""
    return " ".join("".join(c if c.isprintable() and c not in "│█▌·─╭╮╰╯" else " " for c in screen).split())


class Terminal:
    """One run of ds4chat on a screen of ``columns`` by ``rows``."""

    def __init__(
        self, *args: str | Path, columns: int = 100, rows: int = 32, script: str = "", **env: str
    ) -> None:
        """``script``: Python code that is run instead of ds4chat's command."""
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._begun = b""
        """What may be the beginning of a query, whose rest has not come yet."""
        self.raw = b""
        """Every byte that came, for what a screen does not keep (modes, sequences)."""
        # Rich and Textual believe these two, which pytest-xdist sets, instead of asking the terminal.
        surroundings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.child: Any = pexpect.spawn(
            sys.executable,
            [*(["-c", script] if script else ["-m", "ds4chat"]), *map(str, args)],
            dimensions=(rows, columns),
            env={**surroundings, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env},
            timeout=PATIENCE,
            echo=False,
        )
        self.child.delaybeforesend = None

    def read(self, seconds: float = 0.05) -> None:
        """Take in what the program draws."""
        try:
            data = self.child.read_nonblocking(1 << 16, timeout=seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.raw += data
        data = QUERY.sub(b"", self._begun + data)
        begun = BEGUN_QUERY.search(data)
        self._begun = begun.group() if begun else b""
        self._stream.feed(data.removesuffix(self._begun))

    @property
    def text(self) -> str:
        """The screen, line by line."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, condition: str | Callable[[str], bool]) -> str:
        """The screen as soon as it shows the text, wherever it wraps if no frame is part of it, or meets the
        condition. Raises AssertionError."""

        def shows(text: str) -> bool:
            assert isinstance(condition, str)
            said = one_line(condition)
            return condition in text or (said == " ".join(condition.split()) and said in one_line(text))

        met = condition if callable(condition) else shows
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.read()
            if met(self.text):
                return self.text
            if not self.child.isalive():
                self.read(0.2)
                if met(self.text):
                    return self.text
                break
        raise AssertionError(f"never seen: {condition}\n{self.text}")

    def type(self, text: str) -> None:
        """Send keys."""
        self.child.send(text)

    def enter(self, text: str) -> None:
        """Type a line and send it off."""
        self.child.send(text)
        self.until(lambda screen: text.split()[-1][-8:] in screen)
        self.child.send("\r")

    def leave(self) -> int:
        """Wait for the end of the program; its exit code, or minus the signal's number. Raises AssertionError
        if it does not end."""
        deadline = time.monotonic() + PATIENCE
        while self.child.isalive():
            assert time.monotonic() < deadline, f"did not end\n{self.text}"
            self.read()
        taken = -1
        while len(self.raw) > taken:  # what was drawn last comes in several pieces
            taken = len(self.raw)
            self.read(0.2)
        self.close()
        status = self.child.exitstatus
        return int(status) if status is not None else -int(self.child.signalstatus or 0)

    def close(self) -> None:
        """End the program by force, if it still runs."""
        if self.child.isalive():
            # pexpect's own way gives a killed process a tenth of a second to be gone, and raises after that.
            self.child.kill(signal.SIGKILL)
            os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        self.child.close(force=True)
