"""ds4chat in a terminal with its engine and its database at hand, to do harm to them."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import tiny
from kits.terminal import Terminal

from ds4chat.store import open_store
from ds4chat.tui.controller import Chat

PATIENCE = 120.0
"""Seconds to wait for what must come; only a fault makes a test wait that long."""

ENDLESS = "go on in a loop"
"""A prompt that the constructed target answers without an end."""
SHORT = "now say stop"
"""A prompt that it answers with " all done"."""


def runs(pid: int) -> bool:
    """The process exists and is not merely waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something; only a fault makes it wait long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)


def frames_until(chat: Chat, condition: Callable[[], object], what: str) -> None:
    """Draw one frame after the other until something is the case."""

    def look() -> object:
        chat.frame()
        return condition()

    until(look, what)


class Victim(Terminal):
    """A chat with a constructed target, lookup drafts and a home of its own."""

    def __init__(
        self,
        folder: Path,
        home: Path,
        *more: str | Path,
        model: Path | None = None,
        columns: int = 120,
        rows: int = 40,
        **env: str,
    ) -> None:
        self.home = home
        super().__init__(
            *("-m", model or tiny.build("llama", folder), "--lookup", "-c", "200000", "-t", "1", *more),
            columns=columns,
            rows=rows,
            DS4CHAT_HOME=str(home),
            **env,
        )

    @property
    def pid(self) -> int:
        """Of the process with the screen."""
        return int(self.child.pid)

    @property
    def engine(self) -> int:
        """Of the engine process."""
        until(lambda: self._engines(), "an engine process")
        return self._engines()[0]

    def _engines(self) -> list[int]:
        try:
            tasks = Path(f"/proc/{self.pid}/task").iterdir()
            found = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
            return [
                pid for pid in found if b"ds4chat.engine.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
        except OSError:
            return []

    def writing(self) -> None:
        """Ask for an endless reply and wait until it comes."""
        self.enter(ENDLESS)
        self.until("▶ writing")
        self.until(lambda screen: screen.count(" we ") > 3)

    def answered(self) -> None:
        """Ask something and wait for the whole answer."""
        self.enter(SHORT)
        self.until(lambda screen: "all done" in screen.rsplit(SHORT, 1)[-1] and "● ready" in screen)

    def kill(self, number: signal.Signals, pid: int) -> None:
        """Send a signal, and wait until the process is gone."""
        os.kill(pid, number)
        until(lambda: not runs(pid), f"the end of {pid}")

    def messages(self) -> list[tuple[str, str, str]]:
        """Role, state and text of every message on disk, as another process sees them."""
        return stored(self.home)


def context_stored(home: Path) -> int:
    """Tokens in the context at the newest message, as another process sees it on disk."""
    with sqlite3.connect(home / "conversations.db") as connection:
        (used,) = connection.execute("SELECT context_used FROM messages ORDER BY id DESC LIMIT 1").fetchone()
    return int(used)


def stored(home: Path) -> list[tuple[str, str, str]]:
    """Role, state and text of every message of a home's database, whose soundness is checked."""
    with sqlite3.connect(home / "conversations.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store = open_store(home / "conversations.db", read_only=True)
    try:
        found = [m for c in store.conversations.listed() for m in store.conversations.messages(c.id)]
        return [(m.role, m.state, m.text) for m in sorted(found, key=lambda message: message.id)]
    finally:
        store.close()
