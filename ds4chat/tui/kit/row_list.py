"""A list of rows that draws only the visible ones: as fast with ten thousand rows as with ten."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ds4chat.text import one_line
from ds4chat.tui.kit.drawn import DrawnLines
from ds4chat.tui.kit.lines import style_sheet

DrawRow = Callable[[int, int], list[Text]]
"""Gives the lines of row ``index`` in ``width`` cells; the list draws as many as it has lines per row."""


def sided_row(
    mark: str, left: str, right: str, width: int, mark_style: Style | str = "", right_style: Style | str = ""
) -> Text:
    """A row of ``width`` cells: a mark, a text at the left, cut if it is too long, and one at the right."""
    left, right = one_line(left), one_line(right)
    row = Text.assemble((f"{mark} ", mark_style), left, no_wrap=True)
    row.truncate(max(10, width - cell_len(right) - 2), overflow="ellipsis", pad=True)
    row.append(f"  {right}", right_style)
    row.truncate(width, overflow="ellipsis")
    return row


class RowList(ScrollView, DrawnLines, can_focus=True):
    """Rows of equal height, one of them current. Posts Moved and Chosen."""

    DEFAULT_CSS = style_sheet(__package__, "row_list.tcss")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "row-list--current",
        "row-list--muted",
        "row-list--hit",
        "row-list--mark",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Row above", show=False, id="rows.up"),
        Binding("down,j", "move(1)", "Row below", show=False, id="rows.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="rows.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="rows.page_down"),
        Binding("home,g", "end(-1)", "First row", show=False, id="rows.first"),
        Binding("end,G", "end(1)", "Last row", show=False, id="rows.last"),
        Binding("enter", "choose", "Choose the row", show=False, id="rows.choose"),
    ]

    class Moved(Message):
        """Another row became the current one."""

    class Chosen(Message):
        """Enter or a click on the current row."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._count = 0
        self._lines = 1
        self._draw: DrawRow = lambda index, width: []
        self._current = 0

    @property
    def current(self) -> int | None:
        """Index of the current row; None without rows."""
        return self._current if self._count else None

    def show(self, count: int, draw: DrawRow, *, lines: int = 1, current: int = 0) -> None:
        """Replace the rows with ``count`` rows of ``lines`` lines each."""
        self._count, self._draw, self._lines = count, draw, lines
        self._current = max(0, min(current, count - 1))
        self.virtual_size = Size(0, count * lines)
        self._reveal()
        self.refresh()
        self.post_message(self.Moved())

    def move_to(self, index: int) -> None:
        """Make a row the current one and scroll to it."""
        index = max(0, min(index, self._count - 1))
        if index != self._current:
            for changed in (self._current, index):
                self.refresh_lines(changed * self._lines, self._lines)
            self._current = index
            self._reveal()
            self.post_message(self.Moved())

    def look(self, name: str) -> Style:
        """How the component ``name`` differs from the list itself, to be combined with any row's style."""
        full, own = self.get_component_rich_style(f"row-list--{name}"), self.rich_style
        return Style(
            color=full.color if full.color != own.color else None,
            bgcolor=full.bgcolor if full.bgcolor != own.bgcolor else None,
            bold=full.bold or None,
            italic=full.italic or None,
            underline=full.underline or None,
        )

    def _reveal(self) -> None:
        top, height = self._current * self._lines, self.scrollable_content_region.height
        y = self.scroll_offset.y
        if top < y:
            self.scroll_to(y=top, animate=False, immediate=True)
        elif height and top + self._lines > y + height:
            self.scroll_to(y=top + self._lines - height, animate=False, immediate=True)

    def action_move(self, by: int) -> None:
        """Go up or down by rows."""
        self.move_to(self._current + by)

    def action_page(self, by: int) -> None:
        """Go up or down by pages."""
        self.move_to(self._current + by * max(1, self.scrollable_content_region.height // self._lines - 1))

    def action_end(self, by: int) -> None:
        """Go to the first or the last row."""
        self.move_to(0 if by < 0 else self._count - 1)

    def action_choose(self) -> None:
        """Choose the current row."""
        if self._count:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        """A click makes a row the current one; a second click chooses it."""
        index = (self.scroll_offset.y + event.y) // self._lines
        if index >= self._count:
            return
        if index == self._current and event.chain > 1:
            self.action_choose()
        self.move_to(index)

    def on_resize(self) -> None:
        self._reveal()

    def lines_drawn(self) -> range:
        return range(self._count * self._lines)

    def draw_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index, line = divmod(y, self._lines)
        style = self.rich_style
        if index >= self._count:
            return Strip.blank(width, style)
        if index == self._current:
            style += self.get_component_rich_style("row-list--current")
        drawn = self._draw(index, width)
        text = drawn[line].copy() if line < len(drawn) else Text()
        text.no_wrap, text.end = True, ""
        strip = Strip(text.render(self.app.console), cell_len(text.plain))
        return strip.crop_extend(0, width, style).apply_style(style)
