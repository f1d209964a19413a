"""The explorer's table: its columns, the list of rows, and the names of the columns above it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from ds4chat.analysis.filters import Filter
from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.engine.stats import OUTCOMES
from ds4chat.tui.explorer.listing import COLUMNS, Column, Listing
from ds4chat.tui.kit.figures import decimal, token_text
from ds4chat.tui.kit.lines import Line, LinesView, Span, style_sheet
from ds4chat.tui.kit.row_list import RowList

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
"""Cells of the columns with a fixed width, including the arrow of the sorted one."""
MIN_TEXT, MAX_TEXT = 7, 24
GIVE_WAY: tuple[Column, ...] = ("draft_gap", "draft_prob", "outcome", "gap")
"""Columns that a narrow table leaves out, in this order."""
RIGHT = frozenset({"step", "position", "ratio", "gap", "draft_gap", "draft_prob"})


@dataclass(frozen=True, slots=True)
class Cell:
    """A column's place in a line."""

    column: Column
    start: int
    width: int


@cache
def layout(width: int) -> tuple[Cell, ...]:
    """The columns that fit into ``width`` cells, left to right, a blank between them; the two texts share
    the rest."""
    for dropped in range(len(GIVE_WAY) + 1):
        kept = [column for column in COLUMNS if column not in GIVE_WAY[:dropped]]
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
    """One row. ``several``: there is more than one reply, so the step names its reply."""
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
        self._sorted_by: Column = "step"
        self._descending = False

    def show(self, sorted_by: Column, descending: bool) -> None:
        """Mark the column that the rows are sorted by."""
        self._sorted_by, self._descending = sorted_by, descending
        self.on_resize()

    def on_resize(self) -> None:
        self.set_lines([head_line(layout(self.size.width), self._sorted_by, self._descending)])

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        event.stop()
        for cell in layout(self.size.width):
            if cell.start <= offset.x < cell.start + cell.width + 1:
                self.post_message(self.Clicked(cell.column))


class RowTable(RowList):
    """The rows of a Listing, in the columns that fit."""

    DEFAULT_CSS = style_sheet(__package__, "table.tcss")
    COMPONENT_CLASSES: ClassVar[set[str]] = {"row-list--accept", "row-list--approximate", "row-list--bad"}
    HELP_GROUP = "Confidence explorer"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "sort(-1)", "Sort by the column before", id="explorer.sort_before"),
        Binding("right", "sort(1)", "Sort by the next column", id="explorer.sort_next"),
        Binding("r", "reverse", "Reverse the order", id="explorer.reverse"),
    ]

    class Changed(Message):
        """Other rows are shown, or in another order."""

    def __init__(self) -> None:
        super().__init__(id="row-table")
        self.listing = Listing(rows_from_steps([]))
        self._several = False

    @property
    def current_row(self) -> int | None:
        """Index of the current row among all rows; None if no row is shown."""
        return None if self.current is None else int(self.listing.shown[self.current])

    def show_listing(self, listing: Listing) -> None:
        """Show another listing from its top."""
        self.listing = listing
        self._several = len(set(listing.rows.step_reply.tolist())) > 1
        self._update(None)

    def narrow(self, wanted: Filter) -> None:
        """Show the rows that pass a filter; the current row stays current if it is among them."""
        row = self.current_row
        self.listing.narrow(wanted)
        self._update(row)

    def sort(self, column: Column, descending: bool = False) -> None:
        """Sort by a column and go to the first row."""
        self.listing.sort(column, descending)
        self._update(None)

    def action_sort(self, by: int) -> None:
        """Sort by a column further left or right."""
        shown = [cell.column for cell in layout(self.scrollable_content_region.width)]
        now = self.listing.column
        at = shown.index(now) if now in shown else 0
        self.sort(shown[(at + by) % len(shown)], self.listing.descending)

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.sort(self.listing.column, not self.listing.descending)

    def _update(self, row: int | None) -> None:
        at = None if row is None else self.listing.place(row)
        self.show(len(self.listing), self._drawn, current=at or 0)
        self.post_message(self.Changed())

    def _drawn(self, index: int, width: int) -> list[Text]:
        line = row_line(self.listing.rows, int(self.listing.shown[index]), layout(width), self._several)
        return [Text.assemble(*((text, self.look(role) if role else "") for text, role in line))]


def detail_line(rows: JudgedRows, row: int) -> Line:
    """The figures of the row's step, for the line below the table."""
    step = int(rows.step[row])
    total = float(rows.step_ms[step, -1])
    end = ", the last one the end token" if rows.step_accepted_end[step] else ""
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
