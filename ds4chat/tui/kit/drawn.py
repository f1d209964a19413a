"""Widgets that draw their own lines: their styles, and text in them that is selected and copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget


class DrawnLines(Widget):
    """Base of widgets that draw line by line. A subclass gives ``draw_line`` and ``lines_drawn``; lines are
    counted from the first one, not from the first in sight.

    A widget that scrolls names ScrollView before this base: Textual takes style sheets from the first alone.
    """

    STYLES: ClassVar[str] = ""
    """Prefix of its component classes: the style of role ``x`` is that of ``<prefix>--x``."""
    PARTIAL: ClassVar[frozenset[str]] = frozenset()
    """Roles that have only what their rules set, to be laid over another style."""
    SELECT_FROM: ClassVar[int] = 0
    """Characters of a line before those that can be selected."""

    def __init__(self, *children: Widget, **options: Any) -> None:
        super().__init__(*children, **options)
        self._style_by_role: dict[str, Style] = {}
        self._drawing = False

    def draw_line(self, y: int) -> Strip:
        """A line as it looks while nothing of it is selected."""
        raise NotImplementedError

    def lines_drawn(self) -> range:
        """The numbers of the lines that have content."""
        raise NotImplementedError

    def style_of(self, role: str) -> Style:
        """The style of a role; of the widget itself for the role ""."""
        found = self._style_by_role.get(role)
        if found is None:
            found = self._style_by_role[role] = (
                self.get_component_rich_style(f"{self.STYLES}--{role}", partial=role in self.PARTIAL)
                if role
                else self.rich_style
            )
        return found

    def notify_style_update(self) -> None:
        self._style_by_role = {}
        super().notify_style_update()

    def strip_of(
        self, spans: Iterable[tuple[str, str | Style]], width: int, over: Style | None = None
    ) -> Strip:
        """Texts with their roles or styles as a line of ``width`` cells. ``over`` is laid over all of it."""
        styled = ((text, self.style_of(s) if isinstance(s, str) else s) for text, s in spans)
        strip = Strip([Segment(text, style + over if over else style) for text, style in styled])
        ground = self.style_of("")
        return strip.adjust_cell_length(width, ground + over if over else ground)

    def render_lines(self, crop: Region) -> list[Strip]:
        self._drawing = True
        try:
            return super().render_lines(crop)
        finally:
            self._drawing = False

    def render_line(self, y: int) -> Strip:
        """A line in sight. Textual asks for one also to find out which character is under the mouse. Only
        then the line gets its place in the text, with which every style is built again."""
        there = self.lines_drawn()
        y += there.start + self.scroll_offset.y
        strip = self.draw_line(y)
        if y not in there:
            return strip
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            strip = self._with_selection(strip, *span)
        return strip if self._drawing else strip.apply_offsets(0, y)

    def _with_selection(self, strip: Strip, start: int, end: int) -> Strip:
        shown = len(strip.text.rstrip())
        parts = overlay(
            [(text, style or Style.null()) for text, style, _ in strip],
            max(self.SELECT_FROM, start),
            min(end, shown) if end >= 0 else shown,
            self.screen.get_component_rich_style("screen--selection"),
        )
        return Strip([Segment(text, style) for text, style in parts], strip.cell_length)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it is shown, without the blanks at the ends of lines."""
        there = self.lines_drawn()
        first = there.start if selection.start is None else max(there.start, selection.start.y)
        last = there.stop - 1 if selection.end is None else min(there.stop - 1, selection.end.y)
        found = []
        for y in range(first, last + 1):
            if (span := selection.get_span(y)) is not None:
                start, end = span
                found.append(self.draw_line(y).text[start : None if end < 0 else end].rstrip())
        return ("\n".join(found), "\n") if found else None

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def _forward_event(self, event: events.Event) -> None:
        """The end of a drag that selected text is no click."""
        if not isinstance(event, events.Click) or self.text_selection is None:
            super()._forward_event(event)


def overlay(
    parts: Sequence[tuple[str, Style]], start: int, end: int, style: Style
) -> list[tuple[str, Style]]:
    """The parts with ``style`` laid over the characters from ``start`` to ``end``."""
    found: list[tuple[str, Style]] = []
    at = 0
    for text, own in parts:
        a, b = max(0, start - at), min(len(text), end - at)
        if a >= b:
            found.append((text, own))
        else:
            pieces = ((text[:a], own), (text[a:b], own + style), (text[b:], own))
            found += [piece for piece in pieces if piece[0]]
        at += len(text)
    return found
