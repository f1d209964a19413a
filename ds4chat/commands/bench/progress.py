"""The progress bar of a bench, on stderr where that is a terminal."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from ds4chat.text import redraw_line, takes_escapes

BAR = 24


class ProgressLine:
    """One line that is drawn anew; draws nothing where ``out`` is no terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._on = takes_escapes(out)
        self._started = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Show that ``done`` of ``total`` parts are done and ``what`` is being measured."""
        if not self._on:
            return
        filled = round(BAR * done / max(total, 1))
        seconds = int(time.monotonic() - self._started)
        line = f"bench [{'#' * filled}{'.' * (BAR - filled)}] {done}/{total}  {seconds} s  {what}"
        width = shutil.get_terminal_size().columns
        redraw_line(self._out, line[: max(width - 1, 1)])

    def clear(self) -> None:
        """Take the line away."""
        if self._on:
            redraw_line(self._out)
