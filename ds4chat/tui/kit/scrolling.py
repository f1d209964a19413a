"""Growing a scrolling list cheaply."""

from __future__ import annotations

from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget, _RenderCache


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
        before, self._cells = self._cells, self._bar(Style.null())
        if len(before) != len(self._cells):
            self.refresh()
        elif rows := [y for y, (old, new) in enumerate(zip(before, self._cells)) if old != new]:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in rows))

    def _bar(self, style: Style) -> list[Segment]:
        """A segment for each row; the same one for all rows that look the same."""
        bar: Any = self._render_bar(style)
        segments = bar.render_bar(
            self.size.height,
            bar.virtual_size,
            bar.window_size,
            bar.position,
            bar.thickness,
            back_color=style.bgcolor,
            bar_color=style.color,
        )
        return list(segments.segments)

    def _render_content(self) -> None:
        """Render one strip for all rows that look the same, where Textual renders one for each."""
        bar: Any = self.render()
        cells = self._bar(bar.style)
        different = {id(cell): cell for cell in cells}
        style = self.rich_style
        strips = {key: Strip([cell]).apply_style(style) for key, cell in different.items()}
        self._render_cache = _RenderCache(self.size, [strips[id(cell)] for cell in cells])
        self._dirty_regions.clear()


class GrowingView(ScrollView):
    """A view that grows at its end, which it follows until the user scrolls away, and again from End on.

    Its vertical scrollbar always shows (``overflow-y: scroll``). It has no border and no padding, and its
    rows look the same wherever they are on the screen.
    """

    following = True
    """The end is kept in sight."""

    class FollowChanged(Message):
        """The view started or stopped following its end."""

        def __init__(self, following: bool) -> None:
            super().__init__()
            self.following = following

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The scrollbar, made when it is first asked for, as Textual makes its own."""
        if self._vertical_scrollbar is None:
            bar = self._vertical_scrollbar = EdgeScrollBar(thickness=self.scrollbar_size_vertical)
            bar.display = False
            self.app._start_widget(self, bar)
        return self._vertical_scrollbar

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = new_value
        if by := round(new_value) - round(old_value):
            self._move_rows(by)
        if round(new_value) >= self.max_scroll_y:
            self.set_following(True)
        elif new_value < old_value:
            self.set_following(False)

    def _move_rows(self, by: int) -> None:
        """Draw the rows ``by`` further up. Rendering them again is most of what scrolling would cost."""
        cache = self._styles_cache
        places = {y: y - by for y in range(self.size.height) if 0 <= y - by < self.size.height}
        rendered = {places[y]: strip for y, strip in cache._cache.items() if y in places}
        changed = {places[y] for y in cache._dirty_lines if y in places}
        self.refresh_rows(self.scroll_offset.y, self.scroll_offset.y + self.size.height)
        cache._cache, cache._dirty_lines = rendered, changed

    def set_following(self, following: bool) -> None:
        """Follow the end from now on, or not; nothing moves before the view grows."""
        if following != self.following:
            self.following = following
            self.post_message(self.FollowChanged(following))

    def action_follow(self) -> None:
        """Follow the end again."""
        self.set_following(True)
        self.scroll_end(animate=False, immediate=True, x_axis=False)

    def refresh_rows(self, first: int, end: int) -> None:
        """Draw these rows of the content as far as they are in sight, and not the scrollbar."""
        top = self.scroll_offset.y
        width, height = self.scrollable_content_region.size
        first, end = max(0, first - top), min(height, end - top)
        if first < end:
            self.refresh(Region(0, first, width, end - first))

    def grow_to(self, size: Size) -> None:
        """Set the size of the content without a new layout of the screen.

        Assigning ``virtual_size`` lays out and then draws the whole screen, because the scrollbar might come
        or go. Here only its thumb changes.
        """
        self.set_reactive(Widget.virtual_size, size)
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = size.height
