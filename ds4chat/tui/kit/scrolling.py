"""Growing a scrolling list cheaply."""

from __future__ import annotations

from math import ceil
from typing import Any

from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget, _RenderCache

EIGHTHS = 8
"""Places in a row where the thumb of a scrollbar may begin or end."""


class EdgeScrollBar(ScrollBar):
    """A vertical scrollbar that draws only the rows in which its thumb begins or ends when that moves."""

    window_virtual_size: Reactive[int] = Reactive(100, repaint=False)
    position: Reactive[float] = Reactive(0.0, repaint=False)

    def __init__(self, *, thickness: int) -> None:
        super().__init__(vertical=True, name="vertical", thickness=thickness)
        self._thumb = (0, 0)

    def watch_window_virtual_size(self) -> None:
        """Draw what that changes."""
        self._draw_edges()

    def watch_position(self) -> None:
        """Draw what that changes."""
        self._draw_edges()

    def _draw_edges(self) -> None:
        before, self._thumb = self._thumb, self._place_thumb()
        if before == self._thumb:
            return
        moved = {
            row
            for old, new in zip(before, self._thumb)
            for row in range(min(old, new) // EIGHTHS, max(old, new) // EIGHTHS + 1)
        }
        width, height = self.outer_size
        self.refresh(*(Region(0, y, width, 1) for y in sorted(moved) if y < height))

    def _place_thumb(self) -> tuple[int, int]:
        """Where the thumb begins and ends in eighths of a row, as Textual draws it."""
        height, whole, window = self.outer_size.height, self.window_virtual_size, self.window_size
        if not height or not 0 < window < whole or whole == height:
            return 0, 0
        length = max(1, window / (whole / height))
        start = int((height - length) * (self.position / (whole - window)) * EIGHTHS)
        return start, start + ceil(length * EIGHTHS)

    def render_lines(self, crop: Region) -> list[Strip]:
        if self._dirty_regions:
            self._render_content()
        return self._render_cache.lines[crop.y : crop.bottom]

    def _render_content(self) -> None:
        """Render one strip for all rows that look the same, where Textual renders one for each."""
        bar: Any = self.render()
        segments = bar.render_bar(
            self.outer_size.height,
            bar.virtual_size,
            bar.window_size,
            bar.position,
            bar.thickness,
            back_color=bar.style.bgcolor,
            bar_color=bar.style.color,
        ).segments
        own, (_, background) = self.rich_style, self.background_colors
        strips: dict[int, Strip] = {}
        for segment in segments:
            if id(segment) not in strips:
                strip = Strip([segment]).apply_style(own)
                for line_filter in self.get_line_filters():
                    strip = strip.apply_filter(line_filter, background)
                strips[id(segment)] = strip
        self._render_cache = _RenderCache(self.outer_size, [strips[id(segment)] for segment in segments])
        self._dirty_regions.clear()
        self._thumb = self._place_thumb()


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
        cache, height = self._styles_cache, self.size.height
        rendered = {y - by: strip for y, strip in cache._cache.items() if 0 <= y - by < height}
        changed = {y - by for y in cache._dirty_lines if 0 <= y - by < height}
        self.refresh_rows(self.scroll_offset.y, self.scroll_offset.y + height)
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
        """Set the size of the content without a new layout of the screen, and follow the end.

        Assigning ``virtual_size`` lays out and then draws the whole screen, because the scrollbar might come
        or go. Here only its thumb changes.
        """
        self.set_reactive(Widget.virtual_size, size)
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = size.height
        if self.following:
            self.scroll_target_y = self.scroll_y = self.max_scroll_y
