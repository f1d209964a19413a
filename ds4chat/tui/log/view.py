"""A line-API view of log lines: wrapped, levels in colour, search hits marked, selectable, following the
end."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from ds4chat.tui.log.lines import Shortener, hanging, starts

MAX_LINES = 50_000
LEVEL = re.compile(
    r"\b(?P<bad>error|fatal|critical|abort(?:ed)?|failed)\b|\b(?P<warning>warn(?:ing)?)\b", re.I
)


class LogView(ScrollView, can_focus=True):
    """The last MAX_LINES lines of a log."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--bad", "log--warning", "log--hit", "log--hit-now"}

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[str] = []
        """What is shown, oldest first."""
        self._shortener = Shortener()
        self._width = 0
        self._starts: list[tuple[int, ...]] = []
        """For each line, the index of the first character of each of its rows in ``_width`` cells."""
        self._tops: list[int] = [0]
        """Row of the view at which each line begins, and after them the number of rows."""
        self._needle = ""
        self.hits: list[int] = []
        """Indices of the lines that contain what is searched."""
        self.hit = -1
        """Which of the hits is the current one; -1 without one."""
        self.following = True

    def extend(self, lines: Sequence[str]) -> None:
        """Append lines; the oldest go when there are too many."""
        new = self._shortener.shorten(lines)
        self.lines += new
        self._starts += [starts(line, self._width) for line in new] if self._width else [(0,)] * len(new)
        lost = max(0, len(self.lines) - MAX_LINES)
        lost_rows = sum(map(len, self._starts[:lost]))
        del self.lines[:lost], self._starts[:lost]
        self._place()
        if self._needle:
            self._find()
        if self.following:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        elif lost:
            self.scroll_to(y=max(0, self.scroll_offset.y - lost_rows), animate=False, immediate=True)
        self.refresh()

    def replace(self, lines: Sequence[str]) -> None:
        """Show these lines instead of the others: the file was replaced."""
        self.lines.clear()
        self._starts.clear()
        self._shortener = Shortener()
        self.hit = -1
        self.extend(lines)

    def search(self, needle: str) -> None:
        """Mark every line that contains ``needle`` in any letter case, and go to the last of them."""
        self._needle = needle.lower()
        self.hit = -1
        self._find()
        if self.hits:
            self.step_hit(-1)
        self.refresh()

    def step_hit(self, by: int) -> None:
        """Go to the next (1) or previous (-1) hit, around the end."""
        if not self.hits:
            return
        start = len(self.hits) if self.hit < 0 and by < 0 else self.hit
        self.hit = (start + by) % len(self.hits)
        self.following = False
        middle = self.scrollable_content_region.height // 2
        self.scroll_to(y=max(0, self._tops[self.hits[self.hit]] - middle), animate=False, immediate=True)
        self.refresh()

    def follow(self) -> None:
        """Keep the end in sight again."""
        self.following = True
        self.scroll_end(animate=False, immediate=True, x_axis=False)

    def _find(self) -> None:
        needle = self._needle
        self.hits = [i for i, line in enumerate(self.lines) if needle in line.lower()] if needle else []
        self.hit = min(self.hit, len(self.hits) - 1)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value < self.max_scroll_y:
            self.following = False
        elif round(new_value) >= self.max_scroll_y:
            self.following = True

    def on_resize(self) -> None:
        """Break the lines for the new width; the end, or the line at the top, stays in sight."""
        width = self.scrollable_content_region.width
        if width != self._width and width > 0:
            top = self._line_at(self.scroll_offset.y) if self.lines else 0
            self._width = width
            self._starts = [starts(line, width) for line in self.lines]
            self._place()
            if not self.following:
                self.scroll_to(y=self._tops[top], animate=False, immediate=True)
        if self.following:
            self.follow()

    def _place(self) -> None:
        self._tops = list(accumulate(map(len, self._starts), initial=0))
        self.virtual_size = Size(0, self._tops[-1])

    def _line_at(self, row: int) -> int:
        return min(bisect_right(self._tops, row), len(self.lines)) - 1

    # -- selection

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(self.lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    # -- drawing

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        width = self.scrollable_content_region.width
        style = self.rich_style
        if row >= self._tops[-1]:
            return Strip.blank(width, style)
        index = self._line_at(row)
        part = row - self._tops[index]
        line, first = self.lines[index], self._starts[index]
        end = first[part + 1] if part + 1 < len(first) else len(line)
        text = self._styled(index, style)[first[part] : end]
        text.end = ""
        strip = Strip(text.render(self.app.console), cell_len(text.plain)).apply_offsets(first[part], index)
        if part:
            strip = Strip.join([Strip.blank(hanging(line, width), style), strip])
        return strip.crop_extend(0, width, style)

    def _styled(self, index: int, style: Style) -> Text:
        line = self.lines[index]
        text = Text(line, no_wrap=True, end="")
        text.stylize(style)
        found = LEVEL.search(line)
        if found is not None and found.lastgroup is not None:
            text.stylize(self.get_component_rich_style(f"log--{found.lastgroup}"))
        if self._needle:
            now = 0 <= self.hit < len(self.hits) and self.hits[self.hit] == index
            look = self.get_component_rich_style("log--hit-now" if now else "log--hit")
            lowered, at = line.lower(), 0
            while (at := lowered.find(self._needle, at)) >= 0:
                text.stylize(look, at, at + len(self._needle))
                at += len(self._needle)
        selection = self.text_selection
        span = selection.get_span(index) if selection is not None else None
        if span is not None:
            start, end = span
            chosen = self.screen.get_component_rich_style("screen--selection")
            text.stylize(chosen, start, len(line) if end == -1 else end)
        return text
