"""The list of completions over the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.message import Message

from ds4chat.tui.kit.lines import Line, LinesView
from ds4chat.tui.prompt.completion import Suggestion

ROWS = 8
AROUND = 10
"""Rows of the screen that the list leaves to other widgets."""


class CompletionMenu(LinesView):
    """Suggestions, one of them chosen; hidden while there are none. It never takes the focus."""

    class Picked(Message):
        """The chosen suggestion was clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._suggestions: Sequence[Suggestion] = ()
        self.completed = ""
        """The text that the suggestions complete."""
        self._chosen = 0
        self._first = 0
        self.display = False

    @property
    def is_open(self) -> bool:
        """There are suggestions on the screen."""
        return bool(self._suggestions)

    @property
    def chosen(self) -> Suggestion | None:
        """The suggestion that Tab and Enter accept."""
        return self._suggestions[self._chosen] if self._suggestions else None

    def offer(self, suggestions: Sequence[Suggestion], text: str = "") -> None:
        """Show these suggestions for ``text``; without any the list is closed."""
        self.completed = text
        if suggestions == self._suggestions:
            return
        self._suggestions = suggestions
        self._chosen = self._first = 0
        self.display = bool(suggestions)
        self._draw_rows()

    def move(self, by: int) -> None:
        """Choose another one, wrapping around at the ends."""
        if self._suggestions:
            self._chosen = (self._chosen + by) % len(self._suggestions)
            self._first = min(max(self._first, self._chosen - self._rows + 1), self._chosen)
            self._draw_rows()

    @property
    def _rows(self) -> int:
        """How many suggestions are shown; at least one, so that the prompt does not move."""
        return min(ROWS, max(1, self.screen.size.height - AROUND))

    def on_resize(self) -> None:
        self._draw_rows()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        index = self._first + event.y
        if index < len(self._suggestions):
            self._chosen = index
            self.post_message(self.Picked())

    def _draw_rows(self) -> None:
        shown = self._suggestions[self._first : self._first + self._rows]
        width = max(20, self.size.width)
        label = min(max((cell_len(s.label) for s in self._suggestions), default=0), width // 2)
        lines: list[Line] = []
        for index, suggestion in enumerate(shown, start=self._first):
            here = index == self._chosen
            name = set_cell_size(suggestion.label, label)
            lines.append(
                (
                    ("❯ " if here else "  ", "mark"),
                    (name, "strong" if here else ""),
                    (f"  {suggestion.help}", "muted"),
                )
            )
        if len(self._suggestions) > self._rows > 1:
            lines.append(((f"  {self._chosen + 1} of {len(self._suggestions)}", "muted"),))
        self.set_lines(lines)
