"""Acceptance and speed at another depth, margin or gate, from recorded rows, without running again.

A run at another depth verifies the same text but splits it into other steps, and a draft's chance depends on
where its step begins, so counting only the recorded positions up to the new depth gives a wrong answer.
(Where the model copies a passage, one step of depth 8 becomes five of depth 1, all of them easy; on real runs
the first position of a deep run is accepted several points less often than the drafts of a run at depth 1.)

Instead, the recorded reply is walked again, token by token, under the new settings. For each token that a
draft was judged against, the record has the verdict. A walked step drafts along these verdicts until one
fails, or until the depth or the gate ends it; the next token is the target's own, and the next step begins
after it. Where no draft was judged (the target's token after a fully accepted draft, a draft that the
recorded gate refused, plain steps), the verdict is a probability estimated from the record
(analysis.missing); the walk then splits, and the figures are expectations.

The result is exact (``estimate`` is False) if every walked step begins where a recorded step began and uses
only what was recorded for that step: with the same settings; at a lower depth that no step's accepted drafts
exceed; with a gate that drops only drafts that were rejected anyway; with a margin that changes no verdict.
Otherwise it is an estimate, because

- a step begins elsewhere: its drafts would be made again, from a fresher hidden state. Most come out the
  same: of the demo pair's accepted drafts at positions 2 to 4, 97 % were accepted again when a run at depth 1
  made them, and of the rejected ones 13 %. So the estimate for a lower depth is slightly too low;
- a verdict is missing, at a depth above the recorded one;
- a margin changes a verdict: the text itself would differ.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from ds4chat.analysis.missing import MissingDrafts, refused_steps
from ds4chat.analysis.rows import Bools, JudgedRows
from ds4chat.analysis.times import StepTimes
from ds4chat.engine.events import MAX_DEPTH


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Figures under the new settings. Counts are expectations, so they may be fractions."""

    steps: float
    tokens: int
    drafted: float
    judged: float
    accepted: float
    by_position: tuple[tuple[float, float], ...]
    """(judged, accepted) at positions 1, 2, ..."""
    ms: float
    """Decode time by the given step times; NaN if they lack a depth that was walked."""
    plain_ms: float
    """Time of the same tokens by plain decoding; NaN if unknown."""
    estimate: bool
    exact_share: float
    """Share of the walked steps that the record determines; 1 if ``estimate`` is False."""
    changed: int
    """Verdicts that the margin changes, where the text would differ."""

    @property
    def acceptance(self) -> float | None:
        """accepted / judged; None if nothing was judged."""
        return self.accepted / self.judged if self.judged else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per step; None without a step."""
        return self.tokens / self.steps if self.steps else None

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed; None if the step times are unknown."""
        return self.tokens / self.ms * 1000 if self.ms > 0 else None

    @property
    def speedup(self) -> float | None:
        """Speed over that of plain decoding; None if the step times are unknown."""
        return self.plain_ms / self.ms if self.ms > 0 and self.plain_ms > 0 else None


def what_if(
    rows: JudgedRows,
    *,
    depth: int | None = None,
    margin: float | None = None,
    gate: float | None = None,
    times: StepTimes | None = None,
) -> WhatIf:
    """The figures of the recorded replies at another depth, margin (ratio) or gate (logit gap).

    Parameters that are None stay as recorded, step by step. ``times``: StepTimes(rows) if None. Raises
    ValueError for a depth outside 0..16, a margin outside 0..1 or a negative gate; for a margin or a gate if
    the rows come from a server, which does not report ratios and gaps; and for a gate below a recorded one
    that refused drafts, since their verdicts are not on record.
    """
    if depth is not None and not 0 <= depth <= MAX_DEPTH:
        raise ValueError(f"A depth of {depth} is out of range: it takes 0 to {MAX_DEPTH}.")
    if margin is not None and not 0 <= margin <= 1:
        raise ValueError(f"A margin of {margin} is out of range: it takes 0 to 1.")
    if gate is not None and not gate >= 0:
        raise ValueError(f"A gate of {gate} is out of range: it takes 0 or more.")
    if (margin is not None or gate is not None) and np.isnan(rows.ratio).any():
        raise ValueError("a server does not report its drafts' ratios and gaps; ask about the depth only.")
    refused_at = rows.step_gate[refused_steps(rows)]
    if gate is not None and np.any(refused_at > gate):
        raise ValueError(
            f"not on record: the gate of {refused_at.max():g} refused drafts that a lower one may let pass. "
            "Ask about that gate or a higher one, or record a reply with the gate off."
        )
    verdicts = rows.accepted if margin is None else rows.match | ((rows.ratio >= margin) & (margin < 1))
    walk = _Walk(rows, verdicts, depth, gate, times or StepTimes(rows))
    return walk.run(int(np.sum(verdicts != rows.accepted)))


class _Walk:
    """One walk over the recorded text: its tokens in order, each with the row that judged a draft for it."""

    def __init__(
        self, rows: JudgedRows, verdicts: Bools, depth: int | None, gate: float | None, times: StepTimes
    ) -> None:
        self.verdict: list[bool] = verdicts.tolist()
        # NaN gaps pass every gate, and every row passed the recorded one.
        passes = ~(rows.draft_gap < (0.0 if gate is None else gate))
        self.passes: list[bool] = passes.tolist()
        self.missing = MissingDrafts(rows, verdicts, passes)
        self.refused: list[bool] = refused_steps(rows).tolist()
        self.recorded_depth: list[int] = rows.step_depth.tolist()
        self.depth = self.recorded_depth if depth is None else [depth] * rows.steps
        self.recorded_gate: list[float] = rows.step_gate.tolist()
        self.gate = self.recorded_gate if gate is None else [gate] * rows.steps
        self.recorded_drafts: list[int] = rows.step_drafted.tolist()
        self.step_ms = functools.cache(times.step_ms)
        self._number_tokens(rows)
        self.judged = [0.0] * MAX_DEPTH
        self.accepted = [0.0] * MAX_DEPTH
        self.drafted = self.ms = 0.0

    def _number_tokens(self, rows: JudgedRows) -> None:
        self.row_of: list[int] = []
        """Each token's row; -1 if no draft was judged for it."""
        self.step_of: list[int] = []
        """Each token's recorded step."""
        self.begin_of: list[int] = []
        """Each step's first token."""
        ends: dict[int, int] = {}
        replies = rows.step_reply.tolist()
        for step, (first, judged, emitted) in enumerate(
            zip(rows.step_first.tolist(), rows.step_judged.tolist(), rows.step_emitted.tolist())
        ):
            self.begin_of.append(len(self.row_of))
            self.row_of += range(first, first + judged)
            if emitted > judged:
                self.row_of.append(-1)
            self.step_of += [step] * (len(self.row_of) - len(self.step_of))
            ends[replies[step]] = len(self.row_of)
        self.end_of = [ends[replies[step]] for step in self.step_of]
        """One past the last token of each token's reply."""

    def run(self, changed: int) -> WhatIf:
        """Walk every reply, carrying forward the probability that a step begins at a token."""
        count = len(self.row_of)
        begins = [0.0] * (count + 1)
        replies = {0, *self.end_of} - {count} if count else set()
        for token in replies:
            begins[token] = 1.0
        steps = exact = 0.0
        for token in range(count):
            weight = begins[token]
            if weight < 1e-9:
                continue
            steps += weight
            if self._step(token, weight, begins):
                exact += weight
        share = exact / steps if steps else 1.0
        used = max((i + 1 for i in range(MAX_DEPTH) if self.judged[i] > 0), default=0)
        return WhatIf(
            steps=steps,
            tokens=count,
            drafted=self.drafted,
            judged=sum(self.judged),
            accepted=sum(self.accepted),
            by_position=tuple(zip(self.judged[:used], self.accepted[:used])),
            ms=self.ms,
            plain_ms=count * self.step_ms(0),
            estimate=bool(changed) or share < 1 - 1e-9,
            exact_share=min(share, 1.0),
            changed=changed,
        )

    def _step(self, begin: int, weight: float, begins: list[float]) -> bool:
        """Walk the step that begins at this token with this probability; True if the record determines it."""
        step, end = self.step_of[begin], self.end_of[begin]
        aligned = self.begin_of[step] == begin
        exact = aligned
        most = min(self.depth[step], self._recorded_stop(step) if aligned else MAX_DEPTH)
        token, position = begin, 1
        while position <= most and token < end:
            row = self.row_of[token]
            known = row >= 0
            exact = exact and known and self.step_of[token] == step
            if known and not self.passes[row]:
                break
            rate = 1.0 if known and self.verdict[row] else 0.0
            if not known:
                present, rate = self._chances(token, position)
                self._finish(token, position - 1, weight * (1 - present), begins, end)
                weight *= present
            self.judged[position - 1] += weight
            self.accepted[position - 1] += weight * rate
            if rate < 1:
                unjudged = self._unjudged(most - position, step, aligned)
                self._finish(token, position + unjudged, weight * (1 - rate), begins, end)
            weight *= rate
            if weight <= 0:
                return exact
            token, position = token + 1, position + 1
        self._finish(token, position - 1, weight, begins, end)
        return exact

    def _recorded_stop(self, step: int) -> int:
        """Drafts after which the recorded step stopped by itself (an end token, its gate, the room left)."""
        drafts = self.recorded_drafts[step]
        looser = self.gate[step] < self.recorded_gate[step]
        return MAX_DEPTH if drafts >= self.recorded_depth[step] or looser else drafts

    def _chances(self, token: int, position: int) -> tuple[float, float]:
        """Probabilities that a draft for a token without a verdict passes the gate, and that it is then
        accepted."""
        step = self.step_of[token]
        before = token - self.begin_of[step]
        if self.refused[step]:
            return 0.0, 0.0
        # The text is easier the more drafts before were accepted, recorded or walked.
        before = min(max(before, position - 1), MAX_DEPTH - 1)
        present = self.missing.passes[before] if self.gate[step] > 0 else 1.0
        return present, self.missing.accepted[before]

    def _unjudged(self, behind: int, step: int, aligned: bool) -> float:
        """Drafts in the batch after a rejected one: verified in vain, and their gaps are not on record.

        A step that begins where a recorded one did, with its gate, had that many; in others, the gate is
        assumed to let the same share of drafts pass as of the judged ones.
        """
        gate = self.gate[step]
        if gate <= 0 or (aligned and gate == self.recorded_gate[step]):
            return float(behind)
        return sum(self.missing.pass_rate**i for i in range(1, behind + 1))

    def _finish(self, token: int, drafted: float, weight: float, begins: list[float], end: int) -> None:
        """Count a step whose last token, the target's own, is this one; the next begins after it."""
        if weight <= 0:
            return
        self.drafted += weight * drafted
        low = math.floor(drafted)
        ms = self.step_ms(low)
        if drafted > low:
            ms += (drafted - low) * (self.step_ms(low + 1) - ms)
        self.ms += weight * ms
        if token + 1 < end:
            begins[token + 1] += weight
