"""The explorer's table: judged rows drawn line by line, and the names of its columns above them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.engine.stats import OUTCOMES
from ds4chat.tui.explorer.listing import COLUMNS, Column, Listing
from ds4chat.tui.kit.cells import CellView
from ds4chat.tui.kit.figures import decimal, token_text
from ds4chat.tui.kit.lines import Line, LinesView, Span, style_sheet

LABELS: dict[Column, str] = {
    "step": "step",
    "position": "p",
    "draft": "draft",
    "target": "target",
    "ratio": "ratio",
    "gap": "gap",
    "draft_gap": "d.gap",
    "draft_prob": "prob",
    "accepted": "✓",
    "outcome": "outcome",
}
WIDTHS: dict[Column, int] = {
    "step": 7,
    "position": 2,
    "ratio": 6,
    "gap": 6,
    "draft_gap": 6,
    "draft_prob": 6,
    "accepted": 2,
    "outcome": 8,
}
"""Cells of the columns of fixed width, room for the arrow of the sorted one included."""
MIN_TEXT, MAX_TEXT = 7, 24
GIVE_WAY: tuple[Column, ...] = ("draft_gap", "draft_prob", "outcome", "gap")
"""Columns that a narrow table leaves out, in this order."""
NO_ROWS = rows_from_steps([])
RIGHT = frozenset({"step", "position", "ratio", "gap", "draft_gap", "draft_prob"})


@dataclass(frozen=True, slots=True)
class Cell:
    """A column's place in a line."""

    column: Column
    start: int
    width: int


def layout(width: int) -> tuple[Cell, ...]:
    """The columns that fit into ``width`` cells, left to right, a blank between them; the two texts share
    what the others leave."""
    kept = list(COLUMNS)
    for drop in (None, *GIVE_WAY):
        if drop is not None:
            kept.remove(drop)
        fixed = sum(WIDTHS.get(column, 0) for column in kept) + len(kept) - 1
        if width - fixed >= 2 * MIN_TEXT:
            break
    text = min(MAX_TEXT, max(1, (width - fixed) // 2))
    cells, at = [], 0
    for column in kept:
        cells.append(Cell(column, at, WIDTHS.get(column, text)))
        at += cells[-1].width + 1
    return tuple(cells)


def head_line(cells: tuple[Cell, ...], sorted_by: Column, descending: bool) -> Line:
    """The names of the columns, the sorted one with an arrow."""
    spans: list[Span] = []
    for cell in cells:
        label, role = LABELS[cell.column], "muted"
        if cell.column == sorted_by:
            label, role = label + ("↓" if descending else "↑"), "mark"
        label = label[-cell.width :]
        spans.append((label.rjust(cell.width) if cell.column in RIGHT else label.ljust(cell.width), role))
        spans.append((" ", ""))
    return tuple(spans[:-1])


def row_line(rows: JudgedRows, row: int, cells: tuple[Cell, ...], several: bool) -> Line:
    """One row. ``several``: there is more than one reply, so the step says which."""
    step = int(rows.step[row])
    accepted = bool(rows.accepted[row])
    same = rows.draft[row] == rows.target[row]
    role = "bad" if not accepted else "accept" if same else "approximate"
    spans: list[Span] = []
    for cell in cells:
        width = cell.width
        match cell.column:
            case "step":
                number = str(rows.step_index[step])
                text = f"{rows.step_reply[step]}·{number}" if several else number
                span = (text[-width:].rjust(width), "muted")
            case "position":
                span = (str(rows.position[row]).rjust(width), "muted")
            case "draft":
                span = (token_text(rows.draft_text[row], width), role)
            case "target":
                span = (token_text(rows.target_text[row], width), "muted" if same else "")
            case "accepted":
                span = (("✗" if not accepted else "✓" if same else "≈").ljust(width), role)
            case "outcome":
                span = (OUTCOMES[rows.step_outcome[step]].ljust(width)[:width], "muted")
            case _:
                places = 3 if cell.column in ("ratio", "draft_prob") else 2
                span = (decimal(float(getattr(rows, cell.column)[row]), width, places), "")
        spans += [span, (" ", "")]
    return tuple(spans[:-1])


class TableHead(LinesView):
    """The names of the columns. A click asks for the rows in that column's order."""

    class Clicked(Message):
        """A column's name was clicked."""

        def __init__(self, column: Column) -> None:
            super().__init__()
            self.column = column

    def __init__(self) -> None:
        super().__init__(id="table-head")
        self._cells: tuple[Cell, ...] = ()

    def show(self, cells: tuple[Cell, ...], column: Column, descending: bool) -> None:
        """Show the names for this layout."""
        self._cells = cells
        self.set_lines([head_line(cells, column, descending)])

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        event.stop()
        for cell in self._cells:
            if cell.start <= offset.x < cell.start + cell.width + 1:
                self.post_message(self.Clicked(cell.column))


class RowTable(CellView, can_focus=True):
    """The rows of a Listing under a cursor. Only what is in sight is ever drawn."""

    DEFAULT_CSS = style_sheet(__package__, "table.tcss")
    STYLES = "table"
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--muted",
        "table--accept",
        "table--approximate",
        "table--bad",
        "table--cursor",
    }
    HELP_GROUP = "Confidence explorer"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Row above", show=False, id="explorer.up"),
        Binding("down,j", "move(1)", "Row below", show=False, id="explorer.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="explorer.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="explorer.page_down"),
        Binding("home,g", "edge(0)", "First row", show=False, id="explorer.first"),
        Binding("end,G", "edge(1)", "Last row", show=False, id="explorer.last"),
        Binding("left", "sort(-1)", "Sort by the column before", id="explorer.sort_before"),
        Binding("right", "sort(1)", "Sort by the next column", id="explorer.sort_next"),
        Binding("r", "reverse", "Reverse the order", id="explorer.reverse"),
        Binding("enter", "pick", "Show the token in its text", id="explorer.pick"),
    ]

    class Moved(Message):
        """The cursor stands on another row."""

    class Picked(Message):
        """The user wants this row's token in its text."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class SortAsked(Message):
        """The rows should be in this order."""

        def __init__(self, column: Column, descending: bool) -> None:
            super().__init__()
            self.column = column
            self.descending = descending

    class LaidOut(Message):
        """The columns have other places, or another order is in force."""

    def __init__(self) -> None:
        super().__init__(id="row-table")
        self.listing = Listing(NO_ROWS)
        self.cells: tuple[Cell, ...] = ()
        self._cursor = 0
        self._several = False
        self._strips: LRUCache[tuple[int, int, bool], Strip] = LRUCache(512)

    @property
    def cursor_row(self) -> int | None:
        """Index of the row under the cursor; None where nothing is shown."""
        return int(self.listing.shown[self._cursor]) if len(self.listing) else None

    def show(self, listing: Listing) -> None:
        """Show another listing from its top."""
        self.listing = listing
        replies = listing.rows.step_reply
        self._several = bool(len(replies)) and bool((replies != replies[0]).any())
        self._strips.clear()
        self._cursor = 0
        self.settle(None)

    def settle(self, keep: int | None) -> None:
        """Take up that the listing shows other rows or another order; the cursor stays on the row ``keep`` if
        that is still shown."""
        place = None if keep is None else self.listing.place(keep)
        self._cursor = place or 0
        self.virtual_size = Size(self._width, len(self.listing))
        self._into_sight()
        self.refresh()
        self.post_message(self.LaidOut())
        self.post_message(self.Moved())

    # -- cursor

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self._put_cursor(self._cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self._put_cursor(self._cursor + by * max(1, self._height - 1))

    def action_edge(self, end: int) -> None:
        """The first row, or the last."""
        self._put_cursor(len(self.listing) * end)

    def action_pick(self) -> None:
        """Show the row under the cursor in the text."""
        row = self.cursor_row
        if row is not None:
            self.post_message(self.Picked(row))

    def action_sort(self, by: int) -> None:
        """Sort by a column further left or right."""
        shown = [cell.column for cell in self.cells] or list(COLUMNS)
        now = self.listing.column
        at = shown.index(now) if now in shown else 0
        self.post_message(self.SortAsked(shown[(at + by) % len(shown)], self.listing.descending))

    def action_reverse(self) -> None:
        """The other way round."""
        self.post_message(self.SortAsked(self.listing.column, not self.listing.descending))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        index = -1 if offset is None else offset.y + self.scroll_offset.y
        if 0 <= index < len(self.listing):
            self._put_cursor(index)
            if event.chain == 2:
                self.action_pick()

    def _put_cursor(self, place: int) -> None:
        place = min(max(0, place), max(0, len(self.listing) - 1))
        old, self._cursor = self._cursor, place
        if old == place:
            return
        for changed in (old, place):
            self.refresh_rows(changed, changed + 1)
        self._into_sight()
        self.post_message(self.Moved())

    def _into_sight(self) -> None:
        self.scroll_to_region(
            Region(0, self._cursor, 1, 1), animate=False, immediate=True, force=True, x_axis=False
        )

    # -- drawing

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _height(self) -> int:
        return self.scrollable_content_region.height

    def on_resize(self) -> None:
        self._strips.clear()
        self.cells = layout(self._width)
        self.virtual_size = Size(self._width, len(self.listing))
        self._into_sight()
        self.post_message(self.LaidOut())

    def notify_style_update(self) -> None:
        self._strips.clear()
        self._styles.clear()
        super().notify_style_update()

    def lines_drawn(self) -> range:
        return range(len(self.listing))

    def draw_line(self, place: int) -> Strip:
        width = self._width
        if place >= len(self.listing):
            return Strip.blank(width, self._styles[""])
        row = int(self.listing.shown[place])
        at_cursor = place == self._cursor
        key = (row, width, at_cursor)
        strip = self._strips.get(key)
        if strip is None:
            line = row_line(self.listing.rows, row, self.cells, self._several)
            strip = self.cell_strip(line, width, at_cursor=at_cursor)
            self._strips[key] = strip
        return strip


def detail_line(rows: JudgedRows, row: int) -> Line:
    """What the row's step did, for the line below the table."""
    step = int(rows.step[row])
    total = float(rows.step_ms[step, -1])
    end = ", the last one the end token" if rows.step_accepted[step] > rows.step_emitted[step] else ""
    parts = [
        f"{rows.step_accepted[step]} of {rows.step_drafted[step]} drafts accepted{end}",
        f"depth {rows.step_depth[step]}",
        f"margin {rows.step_margin[step]:.2f}",
        f"gate {rows.step_gate[step]:g}",
    ]
    if np.isfinite(total):
        parts.append(f"{total:.1f} ms")
    parts.append(f"reply {rows.step_reply[step]}")
    return ((" · ".join(parts), "muted"),)
