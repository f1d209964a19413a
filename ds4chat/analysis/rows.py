"""Judged drafts and their steps as numpy columns, which every analysis and export reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.events import Step
from ds4chat.engine.stats import OUTCOMES, PHASES

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OUTCOME_CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """Columns. Those in the first block have one entry per judged draft, in order: shape (rows,). Those whose
    names begin with ``step_`` have one per step: shape (steps,). ``step`` maps the first to the second."""

    step: Ints
    """Index into the ``step_`` columns."""
    position: Ints
    """1 is the step's first draft."""
    draft: Ints
    """Token ids."""
    target: Ints
    """Token ids: the target's own choice at the draft's position."""
    accepted: Bools
    ratio: Floats
    """The draft's probability over the likeliest token's, by the target: 0..1."""
    gap: Floats
    """Logits by which the target's best token leads its second."""
    draft_gap: Floats
    """Logits by which the drafter's best token leads its second; NaN if the drafter has no logits."""
    draft_prob: Floats
    """The drafter's own probability of its draft, 0..1; NaN if the drafter has no probabilities."""
    draft_text: tuple[str, ...]
    target_text: tuple[str, ...]
    by: tuple[str, ...]
    """Why it was accepted, as in Judged."""
    token: Ints
    """Index in the reply of the token that the row decided; -1 if it decided none."""
    thinking: Bools
    """Whether that token belongs to the thinking."""
    p_draft: Floats
    """NaN, like the next two, if the full distribution was not requested."""
    p_target: Floats
    entropy: Floats

    step_reply: Ints
    step_index: Ints
    """The step's number within its reply."""
    step_first: Ints
    """Index of the step's first row; step_judged rows follow from there."""
    step_judged: Ints
    step_accepted: Ints
    step_drafted: Ints
    step_emitted: Ints
    step_depth: Ints
    step_outcome: Ints
    """Index into engine.stats.OUTCOMES."""
    step_margin: Floats
    """The margin in force: 1 unless the mode was approximate."""
    step_gate: Floats
    step_ms: Floats
    """(steps, 6): milliseconds, in the order of engine.stats.PHASES."""
    step_baseline: Bools
    """Whether the step is a plain pass that the baseline is computed from."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def steps(self) -> int:
        """Number of steps, including those without a judged draft."""
        return len(self.step_reply)

    @property
    def step_accepted_end(self) -> Bools:
        """For each step, whether its last accepted draft was the end token, which is not emitted: shape
        (steps,)."""
        return self.step_accepted > self.step_emitted

    @property
    def match(self) -> Bools:
        """For each row, whether its draft is the target's own choice: shape (rows,)."""
        return np.equal(self.draft, self.target)

    @property
    def outcome(self) -> Ints:
        """For each row, its step's outcome as an index into engine.stats.OUTCOMES: shape (rows,)."""
        return self.step_outcome[self.step]


def rows_from_steps(steps: Iterable[Step]) -> JudgedRows:
    """The columns of steps, in the order given: of one reply, or of several one after the other."""
    steps = list(steps)
    judged = [row for step in steps for row in step.judged]
    full = [row.full for row in judged]
    counts = np.array([len(step.judged) for step in steps], np.int64)
    emitted = [len(step.tokens) for step in steps]
    token: list[int] = []
    thinking: list[bool] = []
    so_far: dict[int, int] = {}
    """Tokens of each reply so far."""
    for step, n_tokens in zip(steps, emitted):
        first = so_far.get(step.reply, 0)
        so_far[step.reply] = first + n_tokens
        # Token i of a step was decided by its row i.
        decided = min(len(step.judged), n_tokens)
        none = len(step.judged) - decided
        token += [*range(first, first + decided), *[-1] * none]
        thinking += [*[one.thinking for one in step.tokens[:decided]], *[False] * none]

    def ints(values: list[int]) -> Ints:
        return np.array(values, np.int64)

    def floats(values: list[float | None]) -> Floats:
        # numpy takes None for NaN.
        return np.array(values, np.float64)

    return JudgedRows(
        step=np.repeat(np.arange(len(steps), dtype=np.int64), counts),
        position=ints([row.position for row in judged]),
        draft=ints([row.draft for row in judged]),
        target=ints([row.target for row in judged]),
        accepted=np.array([row.accepted for row in judged], np.bool_),
        ratio=floats([row.ratio for row in judged]),
        gap=floats([row.gap for row in judged]),
        draft_gap=floats([row.draft_gap for row in judged]),
        draft_prob=floats([row.draft_prob for row in judged]),
        draft_text=tuple([row.draft_text for row in judged]),
        target_text=tuple([row.target_text for row in judged]),
        by=tuple([row.by for row in judged]),
        token=ints(token),
        thinking=np.array(thinking, np.bool_),
        p_draft=floats([None if row is None else row.p_draft for row in full]),
        p_target=floats([None if row is None else row.p_target for row in full]),
        entropy=floats([None if row is None else row.entropy for row in full]),
        step_reply=ints([step.reply for step in steps]),
        step_index=ints([step.index for step in steps]),
        step_first=np.cumsum(counts) - counts,
        step_judged=counts,
        step_accepted=ints([step.accepted for step in steps]),
        step_drafted=ints([step.drafted for step in steps]),
        step_emitted=ints(emitted),
        step_depth=ints([step.depth for step in steps]),
        step_outcome=ints([OUTCOME_CODE[step.outcome] for step in steps]),
        step_margin=floats(
            [step.tuning.margin if step.tuning.mode == "approximate" else 1.0 for step in steps]
        ),
        step_gate=floats([step.tuning.gate for step in steps]),
        step_ms=np.array(
            [[getattr(step.ms, phase) for phase in PHASES] for step in steps], np.float64
        ).reshape(len(steps), len(PHASES)),
        step_baseline=np.array([step.baseline for step in steps], np.bool_),
    )
