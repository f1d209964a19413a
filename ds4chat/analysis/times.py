"""Times of recorded steps by number of drafts, for the what-if and the bench's prediction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from ds4chat.analysis.rows import Bools, Floats, JudgedRows
from ds4chat.engine.baseline import PlainTime, PlainTotal, plain_steps
from ds4chat.engine.stats import PHASES

_DRAFT, _VERIFY, _TOTAL = (PHASES.index(phase) for phase in ("draft", "verify", "total"))


def plain_times(rows: JudgedRows) -> dict[int, PlainTime]:
    """The time of plain decoding for the tokens of each reply, as the panels show it, by reply number."""
    found: dict[int, PlainTime] = {}
    for reply, drafted, emitted, judged, ms, is_pass in zip(
        rows.step_reply.tolist(),
        rows.step_drafted.tolist(),
        rows.step_emitted.tolist(),
        rows.step_judged.tolist(),
        rows.step_ms.tolist(),
        rows.step_baseline.tolist(),
    ):
        plain = found.setdefault(reply, PlainTime())
        plain.add(
            rows=drafted + 1,
            tokens=plain_steps(emitted, judged),
            total_ms=ms[_TOTAL],
            draft_ms=ms[_DRAFT],
            is_pass=is_pass,
        )
    return found


class StepTimes:
    """Milliseconds of a step by the number of drafts that it verifies.

    A plain step takes the baseline's mean over the recorded tokens. A step with drafts takes the medians of
    its parts (verification by rows, drafting by drafts, the rest), so that an interrupted step does not count
    for its depth; these are scaled so that the recorded steps with drafts add up to the time they took.
    """

    def __init__(self, rows: JudgedRows, plain: Iterable[PlainTime] | None = None) -> None:
        """``plain``: that of the rows' replies; if None, it is estimated from the rows."""
        drafted, ms = rows.step_drafted, rows.step_ms
        timed = np.isfinite(ms[:, _TOTAL])
        drafting = timed & (drafted > 0)
        rest = np.maximum(ms[:, _TOTAL] - ms[:, _VERIFY] - ms[:, _DRAFT], 0.0)
        self.plain = PlainTotal.of(plain_times(rows).values() if plain is None else plain)
        self._plain_ms = self._plain(rows, timed)
        self._verify = _medians(drafted[timed] + 1, ms[timed, _VERIFY])
        self._draft = _medians(drafted[drafting], ms[drafting, _DRAFT])
        self._rest = float(np.median(rest[drafting])) if drafting.any() else 0.0
        if self._plain_ms > 0:
            self._verify.setdefault(1, self._plain_ms)
        self._scale = 1.0
        expected = sum(self.step_ms(int(drafts)) for drafts in drafted[drafting])
        if expected > 0:
            self._scale = float(ms[drafting, _TOTAL].sum()) / expected

    def step_ms(self, drafts: int) -> float:
        """Milliseconds of a step that verifies ``drafts`` drafts; NaN if no step was timed."""
        if not drafts:
            return self._plain_ms
        parts = _at(self._verify, drafts + 1) + (_at(self._draft, drafts) if self._draft else 0.0)
        return self._scale * (parts + self._rest)

    def timed(self, drafts: int) -> bool:
        """Whether a step of this size was timed, or for a plain one the baseline is known."""
        return drafts + 1 in self._verify

    def _plain(self, rows: JudgedRows, timed: Bools) -> float:
        """Estimated from the plain steps if no pass is on record."""
        plain = timed & (rows.step_drafted == 0) & (rows.step_depth == 0)
        if self.plain.at_load and plain.any():
            return float(np.median(rows.step_ms[plain, _TOTAL]))
        return self.plain.ms / self.plain.tokens if self.plain.tokens else math.nan


def _medians(sizes: np.ndarray, ms: Floats) -> dict[int, float]:
    return {int(size): float(np.median(ms[sizes == size])) for size in np.unique(sizes)}


def _at(points: Mapping[int, float], x: int) -> float:
    """The value at x: linear between the points, with their mean slope above the highest, constant below the
    lowest. NaN without a point."""
    if not points:
        return math.nan
    xs = sorted(points)
    low, high = xs[0], xs[-1]
    if x > high > low:
        return points[high] + max(0.0, (points[high] - points[low]) / (high - low)) * (x - high)
    return float(np.interp(x, xs, [points[at] for at in xs]))
