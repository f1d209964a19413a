"""The gate before the terminal: what every screen, notice, tooltip, border and picture is drawn through."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from ds4chat.text import still


class PrintableFilter(LineFilter):
    """Leaves out of each row what would act on the terminal instead of being drawn.

    Widgets show names and texts in their visible forms; this holds for those that some widget, ours or
    Textual's, does not. What is left out has no width, so rows keep theirs.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments with their texts as they may be written."""
        texts = [still(text) for text, _, _ in segments]
        if all(new is segment.text for new, segment in zip(texts, segments)):
            return segments
        return [Segment(text, style) for text, (_, style, _) in zip(texts, segments)]
