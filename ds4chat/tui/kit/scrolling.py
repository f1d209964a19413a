"""Growing a scrolling list cheaply."""

from __future__ import annotations

from math import ceil
from typing import Any

from rich.segment import Segment
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.widget import Widget


class EdgeScrollBar(ScrollBar):
    """A vertical scrollbar that draws only the rows in which its thumb begins or ends when that moves."""

    window_virtual_size: Reactive[int] = Reactive(100, repaint=False)
    position: Reactive[float] = Reactive(0.0, repaint=False)

    def __init__(self, *, thickness: int) -> None:
        super().__init__(vertical=True, name="vertical", thickness=thickness)
        self._cells: list[Segment] = []

    def watch_window_virtual_size(self) -> None:
        """Draw what that changes."""
        self._draw_edges()

    def watch_position(self) -> None:
        """Draw what that changes."""
        self._draw_edges()

    def _draw_edges(self) -> None:
        before, self._cells = self._cells, self._bar()
        if len(before) != len(self._cells):
            self.refresh()
        elif rows := [y for y, (old, new) in enumerate(zip(before, self._cells)) if old != new]:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in rows))

    def _bar(self) -> list[Segment]:
        """A segment for each row."""
        scrolls = self.window_size < self.window_virtual_size
        bar: Any = self.renderer.render_bar(
            self.size.height,
            ceil(self.window_virtual_size),
            ceil(self.window_size) if scrolls else 0,
            self.position,
            self.thickness,
        )
        return list(bar.segments)


class GrowingView(ScrollView):
    """A ScrollView whose vertical scrollbar always shows (``overflow-y: scroll``)."""

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The scrollbar, made when it is first asked for, as Textual makes its own."""
        if self._vertical_scrollbar is None:
            bar = self._vertical_scrollbar = EdgeScrollBar(thickness=self.scrollbar_size_vertical)
            bar.display = False
            self.app._start_widget(self, bar)
        return self._vertical_scrollbar

    def grow_to(self, size: Size) -> None:
        """Set the size of the content without a new layout of the screen.

        Assigning ``virtual_size`` lays out and then draws the whole screen, because the scrollbar might come
        or go. Here only its thumb changes.
        """
        self.set_reactive(Widget.virtual_size, size)
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = size.height
