"""The field in which the conversation is searched."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from ds4chat.tui.kit.lines import style_sheet
from ds4chat.tui.transcript import Transcript
from ds4chat.tui.transcript.find import Finder


class FindBar(Horizontal):
    """Shows the places of the typed words in the transcript, one at a time."""

    DEFAULT_CSS = style_sheet(__package__, "find_bar.tcss")
    HELP_GROUP = "Find in the conversation"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,up,shift+f3", "move(-1)", "The previous place", id="find.before", priority=True),
        Binding("down,f3", "move(1)", "The next place", id="find.after", priority=True),
    ]

    def __init__(self, transcript: Transcript, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._transcript = transcript
        self._shown = 0
        """Index of the place shown."""
        self._field = Input(placeholder="find in the conversation", id="find-words", compact=True)
        self._state = Static(id="find-state", markup=False)
        self.display = False

    def compose(self) -> ComposeResult:
        yield self._field
        yield self._state

    def open(self, words: str = "") -> None:
        """Find these words, or those of the last time."""
        self.display = True
        self._field.value = words or self._field.value
        self._field.focus()
        self._field.select_all()
        self._find()

    @on(Input.Changed)
    def words_changed(self, event: Input.Changed) -> None:
        """Find while the user types."""
        event.stop()
        if self.display:
            self._find()

    def _find(self) -> None:
        finder = Finder(self._transcript, self._field.value)
        self._show(finder, finder.nearest())

    def action_move(self, by: int) -> None:
        """Go to the previous (-1) or next place, around the end, in the conversation as it is now."""
        self._show(Finder(self._transcript, self._field.value), self._shown + by)

    def _show(self, finder: Finder, number: int) -> None:
        if not finder.places:
            self.screen.clear_selection()
            self._state.update("not found" if self._field.value.strip() else "")
            return
        self._shown = number % len(finder.places)
        finder.show(self._shown)
        self._state.update(f"{self._shown + 1} of {len(finder.places)} · ↑ ↓ move · Esc closes")
