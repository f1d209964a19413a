"""A sheet over the chat: a framed box with a title and a line of keys, closed with Esc."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar, TypeVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ds4chat.text import one_line, with_short_paths

Result = TypeVar("Result")
StyleSheets = list[str | PurePath]

MAX_WIDTH = 120
"""Of a sheet, as in its style sheet."""
FRAME_WIDTH = 8
"""Columns of a sheet beside its title."""


class Sheet(ModalScreen[Result]):
    """Base of the help, log, settings and other screens. A subclass composes ``compose_sheet``."""

    CSS_PATH: ClassVar[StyleSheets] = ["sheet.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close", id="sheet.close")]
    TITLE_TEXT: ClassVar[str]
    HINT: ClassVar[str] = "[b]Esc[/b] closes"
    """Markup of the line at the foot: the keys that matter here."""
    FIELD_HINT: ClassVar[str] = ""
    """Markup of that line while a field has the focus and takes the keys that HINT names; empty: the same."""

    def __init__(self) -> None:
        super().__init__()
        self._hint = self.HINT

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet") as box:
            box.border_title = self.TITLE_TEXT
            yield from self.compose_sheet()
            yield Static(self.HINT, classes="sheet-hint")

    def compose_sheet(self) -> ComposeResult:
        """The widgets between the title and the line of keys."""
        raise NotImplementedError

    def retitle(self, title: str) -> None:
        """Show this title, which may name a file, in the frame."""
        title = one_line(title)
        if cell_len(title) > min(self.app.size.width, MAX_WIDTH) - FRAME_WIDTH:
            title = with_short_paths(title)
        self.query_one(".sheet").border_title = Content(title)

    def show_hint(self, hint: str) -> None:
        """Show this in the line at the foot while no field has the focus."""
        self._hint = hint
        self._draw_hint()

    def on_descendant_focus(self) -> None:
        self._draw_hint()

    def on_descendant_blur(self) -> None:
        self._draw_hint()

    def _draw_hint(self) -> None:
        typing = self.FIELD_HINT and isinstance(self.focused, Input)
        for line in self.query(".sheet-hint").results(Static):  # none while the screen is being removed
            line.update(self.FIELD_HINT if typing else self._hint)

    def action_close(self) -> None:
        """Close the sheet without a result."""
        self.dismiss(None)
