"""Which rows are shown, and in which order: index arrays over the columns, nothing is copied. Pure."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from ds4chat.analysis.filters import Filter, Texts, select
from ds4chat.analysis.rows import Bools, Floats, Ints, JudgedRows

Column = Literal[
    "step",
    "position",
    "draft",
    "target",
    "ratio",
    "gap",
    "draft_gap",
    "draft_prob",
    "accepted",
    "outcome",
]
COLUMNS: tuple[Column, ...] = get_args(Column)


class Listing:
    """A filtered and sorted view of rows. ``shown`` are the rows' indices, top to bottom."""

    def __init__(self, rows: JudgedRows) -> None:
        self.rows = rows
        self.filter = Filter()
        self.column: Column = "step"
        self.descending = False
        self._texts = Texts(rows)
        self._passing: Bools = np.ones(len(rows), np.bool_)
        """Which rows pass the filter."""
        self._order: Ints = np.arange(len(rows), dtype=np.int64)
        """All rows, sorted: a filter keeps the order without sorting again."""
        self._orders: dict[tuple[Column, bool], Ints] = {}
        self.shown = self._order

    def __len__(self) -> int:
        return len(self.shown)

    def narrow(self, wanted: Filter) -> None:
        """Show the rows that pass this filter, in the current order."""
        self.filter = wanted
        self._passing = np.zeros(len(self.rows), np.bool_)
        self._passing[select(self.rows, wanted, self._texts)] = True
        self._update()

    def sort(self, column: Column, descending: bool = False) -> None:
        """Sort by a column. Equal rows stay in the order in which they were judged; rows without a value come
        last."""
        self.column, self.descending = column, descending
        if (column, descending) not in self._orders:
            keys = self._sort_keys(column)
            self._orders[column, descending] = np.argsort(-keys if descending else keys, kind="stable")
        self._order = self._orders[column, descending]
        self._update()

    def place(self, row: int) -> int | None:
        """The index of a row in ``shown``; None if it is not shown."""
        found = np.flatnonzero(self.shown == row)
        return int(found[0]) if len(found) else None

    def _update(self) -> None:
        self.shown = self._order[self._passing[self._order]]

    def _sort_keys(self, column: Column) -> Ints | Floats:
        """For each row, the number that the column is sorted by."""
        match column:
            case "step":
                return np.arange(len(self.rows))
            case "draft" | "target":
                return self._texts.ranks(column)
            case "accepted":
                return self.rows.accepted.astype(np.int64)
            case _:
                keys: Ints | Floats = getattr(self.rows, column)
                return keys
