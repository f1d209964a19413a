"""Filtering of judged rows. Results are index arrays: the rows themselves are never copied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ds4chat.analysis.rows import OUTCOME_CODE, Bools, Floats, Ints, JudgedRows
from ds4chat.engine.events import Outcome


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on a row. All that are set must hold; a range includes its ends."""

    accepted: bool | None = None
    lossy: bool | None = None
    """Accepted although the target would have chosen another token."""
    outcomes: frozenset[Outcome] = frozenset()
    """Outcomes of the row's step; empty is any."""
    positions: frozenset[int] = frozenset()
    """Empty is any."""
    ratio: tuple[float, float] | None = None
    """Low and high, within 0..1."""
    gap: tuple[float, float] | None = None
    """Low and high, in logits."""
    draft_gap: tuple[float, float] | None = None
    draft_prob: tuple[float, float] | None = None
    text: str = ""
    """Part of the draft's or the target's text; case counts only if it has a capital."""


class Texts:
    """The token texts of rows, to search and to sort by. Each distinct text is examined once, however often
    it occurs."""

    def __init__(self, rows: JudgedRows) -> None:
        numbers: dict[str, int] = {}
        self._codes = {
            name: np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
            for name, texts in (("draft", rows.draft_text), ("target", rows.target_text))
        }
        self._distinct = list(numbers)

    def containing(self, text: str) -> Bools:
        """For each row, whether ``text`` occurs in its draft's or target's text: shape (rows,). Case counts
        only if ``text`` has a capital."""
        if text == text.lower():
            found = [text in distinct.lower() for distinct in self._distinct]
        else:
            found = [text in distinct for distinct in self._distinct]
        hits = np.array(found, np.bool_)
        return hits[self._codes["draft"]] | hits[self._codes["target"]]

    def ranks(self, column: str) -> Ints:
        """For each row, the place of its ``"draft"`` or ``"target"`` text in alphabetical order, blanks at
        the ends aside: shape (rows,)."""
        texts = self._distinct
        order = sorted(range(len(texts)), key=lambda i: (texts[i].strip().casefold(), texts[i]))
        ranks = np.empty(len(texts), np.int64)
        ranks[order] = np.arange(len(texts))
        return ranks[self._codes[column]]


def select(rows: JudgedRows, wanted: Filter, texts: Texts) -> Ints:
    """Indices of the rows that pass, in their order. ``texts``: those of the rows. A row without a value is
    in no range of that column."""
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
        mask &= texts.containing(wanted.text)
    return np.flatnonzero(mask)
