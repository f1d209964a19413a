"""The last filter before the terminal, which every screen, notice, tooltip, border and picture passes
through."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from ds4chat.text import unmoving


class PrintableFilter(LineFilter):
    """Removes from each row what would control the terminal instead of being drawn.

    Widgets should show special characters visibly; this covers those that do not, ours or Textual's. The
    removed characters have no width, so rows keep theirs.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments with safe texts."""
        texts = [unmoving(text) for text, _, _ in segments]
        if all(new is segment.text for new, segment in zip(texts, segments)):
            return segments
        return [Segment(text, style) for text, (_, style, _) in zip(texts, segments)]
