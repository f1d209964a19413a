"""Chances of a draft that a record does not have: that a gate lets it pass, and that it is accepted if so.

Two kinds of places have no verdict. At the one the drafter had a draft that the recorded gate refused: its
gap (the drafter's top-1 minus top-2 logit) is known to lie below that gate. At the other no draft was
made: behind a step whose drafts were all accepted, and in plain steps.

A chance depends much on what is known of the place. Behind three accepted drafts the text is easy, and the
next draft is accepted as often as recorded ones at position 4, wherever a step of other settings would have
begun; as often as those at position 1 would be far too seldom.
"""

from __future__ import annotations

import math

import numpy as np

from ds4chat.analysis.rows import OUTCOME_CODE, Bools, Floats, Ints, JudgedRows
from ds4chat.engine.events import MAX_DEPTH

_ENOUGH = 20
"""Drafts behind a number of accepted ones from which a chance is taken from them alone."""
_NEAR = 4.0
"""Logits above the gate from which on a gap counts as this one: the logit of acceptance rises ever slower
with the gap, and what is asked for lies below the gate."""
_NEWTON = 12
_SLICES = 16
_RIDGE = 0.1
"""Pull of both coefficients towards 0; keeps the fit finite where no draft or every draft was accepted."""


class MissingDrafts:
    """The chances of missing drafts, estimated from the judged ones of the same record.

    ``verdicts``: for each row whether it is accepted; ``passes``: whether the gate asked about lets it pass;
    ``gate``: that gate, None for the recorded ones.
    """

    def __init__(self, rows: JudgedRows, verdicts: Bools, passes: Bools, gate: float | None) -> None:
        refused = refused_steps(rows)
        behind = rows.step_accepted[refused]
        gates = rows.step_gate[refused]
        self._refused = {float(g): (0.0, 0.0) for g in np.unique(gates)}
        if gate is not None and np.any(gates > gate):
            known = ~np.isnan(rows.draft_gap)
            near = np.minimum(rows.draft_gap, rows.gate + _NEAR)
            curve = _logistic(near[known], verdicts[known])
            for g in self._refused:
                if gate < g:
                    passed, stopped = int(np.sum(rows.gate == g)), int(np.sum(gates == g))
                    self._refused[g] = _between(gate, g, passed, stopped, curve)
        share = np.array([self.refused(g)[0] for g in gates], np.float64)
        right = share * np.array([self.refused(g)[1] for g in gates], np.float64)
        before = rows.position - 1
        tried = _count(before) + _count(behind)
        passing = _count(before[passes]) + _count(behind, share)
        accepted = _count(before[passes], verdicts[passes]) + _count(behind, right)
        self.passes = _chances(passing, tried, otherwise=1.0)
        """By the number of accepted drafts before it: that a draft passes the gate."""
        self.accepted = _chances(accepted, passing, otherwise=0.0)
        """By the number of accepted drafts before it: that a draft that passed is accepted."""
        self.pass_rate = float(passing.sum() / tried.sum()) if tried.sum() else 1.0
        """That a draft passes the gate, wherever it stands."""

    def refused(self, recorded: float) -> tuple[float, float]:
        """That a draft which this recorded gate refused passes the gate asked about, and is accepted then."""
        return self._refused[recorded]


def refused_steps(rows: JudgedRows) -> Bools:
    """For each step, whether its gate refused a draft behind the judged ones, none of which was rejected:
    shape (steps,).

    A drafter without logits has no gaps, and stops where it has nothing to propose.
    """
    early = (rows.step_drafted < rows.step_depth) & (rows.step_gate > 0)
    whole = (rows.step_accepted == rows.step_judged) & (rows.step_judged == rows.step_drafted)
    gated = rows.step_outcome == OUTCOME_CODE["gated"]
    with_logits = np.zeros(rows.steps, np.bool_)
    with_logits[rows.step[~np.isnan(rows.draft_gap)]] = True
    refused: Bools = early & whole & (with_logits | gated)
    return refused


def _between(
    gate: float, recorded: float, passed: int, refused: int, curve: tuple[float, float]
) -> tuple[float, float]:
    """That a draft refused at the gate ``recorded`` passes a lower one, and is accepted then.

    Gaps are taken to be spread exponentially, falling off so fast that ``passed`` of passed + refused drafts
    lie above the recorded gate. Acceptance is the mean of the curve, (a, b) of _logistic, over the gaps
    between the two gates.
    """
    decay = -math.log((passed + 0.5) / (passed + refused + 1)) / recorded
    passing = math.exp(-decay * gate) - math.exp(-decay * recorded)
    gaps = gate + (np.arange(_SLICES) + 0.5) / _SLICES * (recorded - gate)
    a, b = curve
    accepted = np.average(1 / (1 + np.exp(-(a + b * gaps))), weights=np.exp(-decay * gaps))
    return passing / (1 - math.exp(-decay * recorded)), float(accepted)


def _count(behind: Ints, weights: Bools | Floats | None = None) -> Floats:
    """How many there are for each number of accepted drafts before, (MAX_DEPTH,)."""
    counted = np.bincount(behind, weights=weights, minlength=MAX_DEPTH)
    return counted[:MAX_DEPTH].astype(np.float64)


def _chances(hits: Floats, of: Floats, *, otherwise: float) -> list[float]:
    """hits / of for each number of accepted drafts before; where too few are known, that of the nearest lower
    number, else that of all together, else ``otherwise``."""
    last = float(hits.sum() / of.sum()) if of.sum() else otherwise
    chances = []
    for i in range(MAX_DEPTH):
        if of[i] >= _ENOUGH:
            last = float(hits[i] / of[i])
        chances.append(last)
    return chances


def _logistic(gap: Floats, accepted: Bools) -> tuple[float, float]:
    """(a, b) of the chance 1 / (1 + exp(-(a + b gap))) of acceptance, by Newton's method with a ridge."""
    x = np.stack((np.ones_like(gap), gap), axis=1)
    w = np.zeros(2)
    for _ in range(_NEWTON):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
        slope = x.T @ (accepted - p) - _RIDGE * w
        curvature = (x * (p * (1 - p))[:, None]).T @ x + _RIDGE * np.eye(2)
        w = w + np.linalg.solve(curvature, slope)
    return float(w[0]), float(w[1])
