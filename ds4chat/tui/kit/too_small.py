"""The cover over the chat in a terminal that is too small for it."""

from __future__ import annotations

import textwrap

from textual import events
from textual.geometry import Size
from textual.widgets import Static

from ds4chat.tui.kit.lines import style_sheet

LEAST = Size(20, 5)
"""Columns and rows from which prompt, state and the end of the text are visible."""

SAYINGS = (
    f"This terminal is too small for ds4chat. Make it at least {LEAST.width} columns wide and {LEAST.height} "
    "rows high. What you typed is kept.",
    f"Too small. Make it {LEAST.width}×{LEAST.height} or more: what you typed is kept.",
    f"Too small: make it {LEAST.width}×{LEAST.height}.",
    f"{LEAST.width}×{LEAST.height}!",
)
"""The same sentence, from the longest to the shortest."""


def is_too_small(size: Size) -> bool:
    """The chat cannot be used in a terminal of this size."""
    return size.width < LEAST.width or size.height < LEAST.height


def saying(size: Size) -> str:
    """The longest sentence that fits into these cells; the shortest if none does."""
    for words in SAYINGS:
        rows = textwrap.wrap(words, max(size.width, 1), break_long_words=False)
        if len(rows) <= size.height and max(map(len, rows)) <= size.width:
            return "\n".join(rows)
    return SAYINGS[-1]


class TooSmall(Static):
    """Covers the screen and says what size is needed. The covered widgets keep their state and the focus."""

    DEFAULT_CSS = style_sheet(__package__, "too_small.tcss")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)

    def on_resize(self, event: events.Resize) -> None:
        self.update(saying(event.size))
