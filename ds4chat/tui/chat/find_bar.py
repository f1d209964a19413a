"""The field in which the conversation is searched."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from ds4chat.tui.kit.lines import style_sheet


class FindBar(Horizontal):
    """Posts Wanted for words to be found, and Moved from one place to another."""

    DEFAULT_CSS = style_sheet(__package__, "find_bar.tcss")
    HELP_GROUP = "Find in the conversation"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,up,shift+f3", "move(-1)", "The place before", id="find.before", priority=True),
        Binding("down,f3", "move(1)", "The place after", id="find.after", priority=True),
    ]

    class Wanted(Message):
        """The words to find; empty: stop finding."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Moved(Message):
        """To the previous (-1) or next match (1)."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.field = Input(placeholder="find in the conversation", id="find-words", compact=True)
        self._state = Static(id="find-state", markup=False)
        self.display = False

    def compose(self) -> ComposeResult:
        yield self.field
        yield self._state

    def say(self, text: str) -> None:
        """Say how many matches there are, and which one is shown."""
        self._state.update(text)

    @on(Input.Changed)
    def words_changed(self, event: Input.Changed) -> None:
        """Search while the user types."""
        event.stop()
        self.post_message(self.Wanted(event.value))

    def action_move(self, by: int) -> None:
        """Go to another match."""
        self.post_message(self.Moved(by))
