"""Probabilities for drafts that a record lacks: that a gate lets one pass, and that it is then accepted.

There is no verdict where the recorded gate refused a draft, and where no draft was made: after a step whose
drafts were all accepted, and in plain steps.

The probabilities depend on the number of accepted drafts before. After three of them the text is easy, and
the next draft is accepted as often as recorded ones at position 4, wherever a step with other settings would
have begun; the rate at position 1 would be far too low.
"""

from __future__ import annotations

import numpy as np

from ds4chat.analysis.rows import OUTCOME_CODE, Bools, Floats, Ints, JudgedRows
from ds4chat.engine.events import MAX_DEPTH

_ENOUGH = 20
"""The rate after a number of accepted drafts is used from this many drafts on."""


class MissingDrafts:
    """Probabilities of missing drafts, estimated from the judged ones of the same record.

    ``verdicts``: for each row, whether it is accepted; ``passes``: whether the new gate lets it pass. That
    gate is not lower than a recorded one that refused a draft, so it refuses that draft again.
    """

    def __init__(self, rows: JudgedRows, verdicts: Bools, passes: Bools) -> None:
        behind = rows.step_accepted[refused_steps(rows)]
        before = rows.position - 1
        tried = _count(before) + _count(behind)
        passing = _count(before[passes])
        accepted = _count(before[passes], verdicts[passes])
        self.passes = _chances(passing, tried, otherwise=1.0)
        """Probability that a draft passes the gate, by the number of accepted drafts before it."""
        self.accepted = _chances(accepted, passing, otherwise=0.0)
        """Probability that a draft that passed is accepted, by the number of accepted drafts before it."""
        self.pass_rate = float(passing.sum() / tried.sum()) if tried.sum() else 1.0
        """Probability that any draft passes the gate."""


def refused_steps(rows: JudgedRows) -> Bools:
    """For each step, whether its gate refused a draft after the judged ones, none of which was rejected:
    shape (steps,).

    A drafter without logits has no gaps; it stops early if it has nothing to propose.
    """
    early = (rows.step_drafted < rows.step_depth) & (rows.step_gate > 0)
    whole = (rows.step_accepted == rows.step_judged) & (rows.step_judged == rows.step_drafted)
    gated = rows.step_outcome == OUTCOME_CODE["gated"]
    with_logits = np.zeros(rows.steps, np.bool_)
    with_logits[rows.step[~np.isnan(rows.draft_gap)]] = True
    refused: Bools = early & whole & (with_logits | gated)
    return refused


def _count(behind: Ints, weights: Bools | Floats | None = None) -> Floats:
    """Sums of the weights, 1 by default, by the number of accepted drafts before: shape (MAX_DEPTH,)."""
    counted = np.bincount(behind, weights=weights, minlength=MAX_DEPTH)
    return counted[:MAX_DEPTH].astype(np.float64)


def _chances(hits: Floats, of: Floats, *, otherwise: float) -> list[float]:
    """hits / of by the number of accepted drafts before; where there are too few, that of the nearest lower
    number, else that of all together, else ``otherwise``."""
    last = float(hits.sum() / of.sum()) if of.sum() else otherwise
    chances = []
    for i in range(MAX_DEPTH):
        if of[i] >= _ENOUGH:
            last = float(hits[i] / of[i])
        chances.append(last)
    return chances
