"""The log screen: the tail of the log file of ds4chat and llama.cpp, following, with a search."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import BinaryIO, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from ds4chat.files import open_regular
from ds4chat.tui.kit.sheet import Sheet, StyleSheets
from ds4chat.tui.log.view import LogView

TAIL_BYTES = 2 << 20
"""A log can be large; the screen begins this far before its end."""
POLL_SECONDS = 0.5


class LogTail:
    """Reads what was appended to a file since the last read, in whole lines."""

    def __init__(self, path: Path, tail_bytes: int = TAIL_BYTES) -> None:
        self.path = path
        self._tail_bytes = tail_bytes
        self._at: int | None = None
        self._identity: tuple[int, int] | None = None
        self._rest = b""
        self.problem = ""
        """Why the file cannot be read, as a sentence; empty when it can."""

    def read(self) -> tuple[list[str], bool]:
        """The new lines, and True if the file was replaced, and with it the earlier lines."""
        try:
            with open_regular(self.path) as file:
                return self._read_from(file)
        except OSError as error:
            self.problem = f"The log cannot be read: {error.strerror}"
            return [], False

    def _read_from(self, stream: BinaryIO) -> tuple[list[str], bool]:
        info = os.fstat(stream.fileno())
        identity = (info.st_dev, info.st_ino)
        replaced = self._at is not None and (info.st_size < self._at or identity != self._identity)
        skip_partial = False
        if self._at is None or replaced:
            self._at = max(0, info.st_size - self._tail_bytes)
            skip_partial = self._at > 0
            self._rest = b""
        self._identity = identity
        stream.seek(self._at)
        data = stream.read(self._tail_bytes)
        self._at += len(data)
        self.problem = ""
        if skip_partial:
            data = data.partition(b"\n")[2]
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace").rstrip("\r") for line in whole], replaced


class LogScreen(Sheet[None]):
    """The log file as it grows."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "Log"
    FIELD_HINT = "[b]Enter[/b] searches · [b]Esc[/b] goes back"
    HINT = "[b]/[/b] search · [b]n N[/b] next, previous · [b]f[/b] follow · drag to copy · [b]Esc[/b] closes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close the search, then the log", id="log.close"),
        Binding("slash,ctrl+f", "search", "Search", id="log.search"),
        Binding("n", "hit(1)", "Next hit", id="log.next"),
        Binding("N,shift+n", "hit(-1)", "Previous hit", id="log.previous"),
        Binding("f,G", "follow", "Follow the end", id="log.follow"),
    ]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._tail = LogTail(path)
        self._view = LogView(id="log-view")
        self._search = Input(placeholder="search", id="log-search")
        self._search.display = False
        self._state = Static(id="log-state", markup=False)

    def compose_sheet(self) -> ComposeResult:
        yield self._view
        with Horizontal(id="log-foot"):
            yield self._search
            yield self._state

    def on_mount(self) -> None:
        self.retitle(f"Log  {self._tail.path}")
        self._view.focus()
        self._read_more()

    @work
    async def _read_more(self) -> None:
        """Show what was appended since the last look, and look again later."""
        lines, replaced = await asyncio.to_thread(self._tail.read)
        if replaced:
            self._view.replace(lines)
        elif lines:
            self._view.extend(lines)
        self._show_state()
        self.set_timer(POLL_SECONDS, self._read_more)

    def _show_state(self) -> None:
        view = self._view
        state = self._tail.problem or f"{len(view.lines):,} lines"
        if self._search.value:
            state = f"{view.hit + 1} of {len(view.hits)} hits · {state}"
        state += " · following" if view.following else " · f follows"
        self._state.update(state)

    def action_search(self) -> None:
        self._search.display = True
        self.set_focus(self._search)

    def action_hit(self, by: int) -> None:
        self._view.step_hit(by)
        self._show_state()

    def action_follow(self) -> None:
        self._view.follow()
        self._show_state()

    def action_close(self) -> None:
        """Close the search field if it is open, else the screen."""
        if self._search.display:
            self._search.value = ""
            self._search.display = False
            self._view.focus()
        else:
            self.dismiss(None)

    @on(Input.Changed, "#log-search")
    def search_as_typed(self, event: Input.Changed) -> None:
        """Mark the hits of the typed words."""
        self._view.search(event.value)
        self._show_state()

    @on(Input.Submitted, "#log-search")
    def leave_field(self) -> None:
        """Go back to the lines, where n and N step through the hits."""
        self._view.focus()
