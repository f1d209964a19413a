"""A sheet over the chat: a framed box with a title and a line of keys, closed with Esc."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

Result = TypeVar("Result")
StyleSheets = list[str | PurePath]


class Sheet(ModalScreen[Result]):
    """Base of the help, log, settings and other screens. A subclass composes ``compose_sheet``."""

    CSS_PATH: ClassVar[StyleSheets] = ["sheet.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close", id="sheet.close")]
    TITLE_TEXT: ClassVar[str]
    HINT: ClassVar[str] = "[b]Esc[/b] closes"
    """Markup of the line at the foot: the keys that matter here."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet") as box:
            box.border_title = self.TITLE_TEXT
            yield from self.compose_sheet()
            yield Static(self.HINT, classes="sheet-hint")

    def compose_sheet(self) -> ComposeResult:
        """The widgets between the title and the line of keys."""
        raise NotImplementedError

    def action_close(self) -> None:
        """Back to the chat, with nothing chosen."""
        self.dismiss(None)
