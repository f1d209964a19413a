"""Filtering and sorting of judged rows. Results are index arrays: the rows themselves are never copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ds4chat.analysis.rows import OUTCOME_CODE, Bools, Floats, Ints, JudgedRows
from ds4chat.engine.events import Outcome

SortKey = Literal["order", "position", "ratio", "gap", "draft_gap", "draft_prob", "accepted"]


@dataclass(frozen=True, slots=True)
class Filter:
    """What to show. Every condition that is set must hold; a range includes its ends."""

    accepted: bool | None = None
    lossy: bool | None = None
    """Accepted although the target would have chosen another token."""
    outcomes: frozenset[Outcome] = frozenset()
    """Outcomes of the row's step; empty is any."""
    positions: frozenset[int] = frozenset()
    """Empty is any."""
    ratio: tuple[float, float] | None = None
    """Low and high, within 0..1; so is draft_prob."""
    gap: tuple[float, float] | None = None
    """Low and high in logits; so is draft_gap."""
    draft_gap: tuple[float, float] | None = None
    draft_prob: tuple[float, float] | None = None
    text: str = ""
    """Part of the draft's or the target's text; case counts only if it has a capital."""


class Texts:
    """Text search over rows. Each distinct token text is examined once, however often it occurs."""

    def __init__(self, rows: JudgedRows) -> None:
        numbers: dict[str, int] = {}
        self._draft = np.array([numbers.setdefault(t, len(numbers)) for t in rows.draft_text], np.int64)
        self._target = np.array([numbers.setdefault(t, len(numbers)) for t in rows.target_text], np.int64)
        self._distinct = list(numbers)

    def containing(self, text: str) -> Bools:
        """For each row, whether ``text`` occurs in its draft's or target's text: shape (rows,). Case counts
        only if ``text`` has a capital."""
        if text == text.lower():
            found = [text in distinct.lower() for distinct in self._distinct]
        else:
            found = [text in distinct for distinct in self._distinct]
        hits = np.array(found, np.bool_)
        if not len(hits):
            return np.zeros(len(self._draft), np.bool_)
        return hits[self._draft] | hits[self._target]


def select(rows: JudgedRows, wanted: Filter, texts: Texts | None = None) -> Ints:
    """Indices of the rows that pass, in their order. ``texts``: the rows' search index, to reuse it between
    calls; built here if None. A row without a value is in no range of that column."""
    mask = np.ones(len(rows), np.bool_)
    if wanted.accepted is not None:
        mask &= rows.accepted == wanted.accepted
    if wanted.lossy is not None:
        mask &= (rows.accepted & ~rows.match) == wanted.lossy
    if wanted.outcomes:
        codes = [OUTCOME_CODE[outcome] for outcome in wanted.outcomes]
        mask &= np.isin(rows.outcome, codes)
    if wanted.positions:
        mask &= np.isin(rows.position, list(wanted.positions))
    for name in ("ratio", "gap", "draft_gap", "draft_prob"):
        bounds: tuple[float, float] | None = getattr(wanted, name)
        if bounds is not None:
            values: Floats = getattr(rows, name)
            mask &= (values >= bounds[0]) & (values <= bounds[1])
    if wanted.text:
        mask &= (texts or Texts(rows)).containing(wanted.text)
    return np.flatnonzero(mask).astype(np.int64)


def order(rows: JudgedRows, indices: Ints, key: SortKey, descending: bool = False) -> Ints:
    """``indices`` of rows, by a column. Equal rows keep their order; rows without a value come last."""
    if key == "order":
        return np.sort(indices)[::-1] if descending else np.sort(indices)
    values = np.asarray(getattr(rows, key)[indices], np.float64)
    return indices[np.argsort(-values if descending else values, kind="stable")]
