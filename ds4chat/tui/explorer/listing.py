"""Which rows are shown, and in which order: index arrays over the columns, nothing is copied. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from ds4chat.analysis.filters import Filter, Texts, order, select
from ds4chat.analysis.rows import Bools, Ints, JudgedRows

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

    def __init__(self, rows: JudgedRows, texts: Texts | None = None) -> None:
        self.rows = rows
        self.filter = Filter()
        self.column: Column = "step"
        self.descending = False
        self._texts = texts or Texts(rows)
        self._every = np.arange(len(rows), dtype=np.int64)
        self._mask: Bools | None = None
        """The rows that pass; None is all."""
        self._order = self._every
        """All rows, sorted: filtering then keeps the order without sorting anew."""
        self._orders: dict[tuple[Column, bool], Ints] = {}
        self.shown: Ints = self._every

    def __len__(self) -> int:
        return len(self.shown)

    def narrow(self, wanted: Filter) -> None:
        """Show the rows that pass this filter, in the order in force."""
        self.filter = wanted
        if wanted == Filter():
            self._mask = None
        else:
            self._mask = np.zeros(len(self.rows), np.bool_)
            self._mask[select(self.rows, wanted, self._texts)] = True
        self._settle()

    def sort(self, column: Column, descending: bool = False) -> None:
        """Sort by a column. Equal rows stay in the order in which they were judged, rows without a value come
        last."""
        self.column, self.descending = column, descending
        if (column, descending) not in self._orders:
            self._orders[column, descending] = self._sorted(column, descending)
        self._order = self._orders[column, descending]
        self._settle()

    def place(self, row: int) -> int | None:
        """Where a row stands in ``shown``; None where it is not shown."""
        found = np.flatnonzero(self.shown == row)
        return int(found[0]) if len(found) else None

    def numbers(self) -> JudgedRows:
        """The rows shown, in the order in which they were judged, without their texts: what the charts
        read."""
        if self._mask is None:
            return self.rows
        chosen = np.flatnonzero(self._mask)
        rows = self.rows
        return replace(
            rows,
            step=rows.step[chosen],
            position=rows.position[chosen],
            draft=rows.draft[chosen],
            target=rows.target[chosen],
            accepted=rows.accepted[chosen],
            ratio=rows.ratio[chosen],
            gap=rows.gap[chosen],
            draft_gap=rows.draft_gap[chosen],
            draft_prob=rows.draft_prob[chosen],
            draft_text=(),
            target_text=(),
        )

    def _settle(self) -> None:
        self.shown = self._order if self._mask is None else self._order[self._mask[self._order]]

    def _sorted(self, column: Column, descending: bool) -> Ints:
        if column == "draft" or column == "target" or column == "outcome":
            ranks = self._ranks(column)
            return np.argsort(-ranks if descending else ranks, kind="stable")
        key = "order" if column == "step" else column
        return order(self.rows, self._every, key, descending)

    def _ranks(self, column: Literal["draft", "target", "outcome"]) -> Ints:
        """For each row, the place of its value among the distinct ones."""
        if column == "outcome":
            return self.rows.outcome
        return _text_ranks(self.rows.draft_text if column == "draft" else self.rows.target_text)


def _text_ranks(texts: Sequence[str]) -> Ints:
    distinct = sorted(set(texts), key=lambda text: (text.strip().casefold(), text))
    rank = {text: place for place, text in enumerate(distinct)}
    return np.fromiter((rank[text] for text in texts), np.int64, len(texts))
