"""How far a command has come: one line on stderr that is redrawn, if that is a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import Self

from ds4chat.text import redraw_line, supports_escapes

CELLS = 24
"""Width of a bar."""


class ProgressLine:
    """A line that is redrawn in place. As a context manager it removes the line at the end, before anything
    else is written to stderr."""

    def __init__(self) -> None:
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replace the line."""
        if text != self._shown and supports_escapes(sys.stderr):
            redraw_line(sys.stderr, text[: max(shutil.get_terminal_size().columns - 1, 1)])
            self._shown = text

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            redraw_line(sys.stderr)
            self._shown = ""


def bar(done: int, total: int) -> str:
    """A bar that is filled to this share."""
    filled = CELLS * done // max(total, 1)
    return "█" * filled + "░" * (CELLS - filled)
