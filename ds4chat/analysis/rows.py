"""Judged drafts and their steps as numpy columns: what every analysis reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.events import Judged, Phases, Step
from ds4chat.engine.stats import OUTCOMES, PHASES

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OUTCOME_CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What the analyses need of one step, whether it comes from an event, the store or a log."""

    reply: int
    index: int
    drafted: int
    judged: tuple[Judged, ...]
    emitted: int
    depth: int
    outcome: str
    margin: float
    """In force; 1 in strict mode, which ignores the setting."""
    gate: float
    ms: Phases
    baseline: bool = False

    @classmethod
    def of(cls, step: Step) -> StepRecord:
        """The record of an engine's step."""
        return cls(
            reply=step.reply,
            index=step.index,
            drafted=step.drafted,
            judged=step.judged,
            emitted=len(step.tokens),
            depth=step.depth,
            outcome=step.outcome,
            margin=step.tuning.margin if step.tuning.mode == "approximate" else 1.0,
            gate=step.tuning.gate,
            ms=step.ms,
            baseline=step.baseline,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns. The first block has one entry a judged draft, in order: shape (rows,). The second, whose names
    begin with ``step_``, has one a step: shape (steps,). ``step`` leads from the first to the second."""

    step: Ints
    """Index into the ``step_`` columns."""
    position: Ints
    """1 is the step's first draft."""
    draft: Ints
    """Token ids."""
    target: Ints
    """Token ids: the target's own choice at the draft's place."""
    accepted: Bools
    ratio: Floats
    """The draft's probability over the likeliest token's, by the target: 0..1."""
    gap: Floats
    """Logits by which the target's best token leads its second."""
    draft_gap: Floats
    """Logits by which the drafter's best token leads its second; NaN where the drafter has no logits."""
    draft_prob: Floats
    """The drafter's own probability of its draft, 0..1; NaN where the drafter has no probabilities."""
    draft_text: tuple[str, ...]
    target_text: tuple[str, ...]

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
    step_gate: Floats
    step_ms: Floats
    """(steps, 6): milliseconds, in the order of engine.stats.PHASES."""
    step_baseline: Bools
    """The step is a plain pass that the baseline rests on."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def steps(self) -> int:
        """How many steps there are, those without a judged draft included."""
        return len(self.step_reply)

    @property
    def match(self) -> Bools:
        """For each row, whether its draft is the target's own choice: shape (rows,)."""
        return np.equal(self.draft, self.target)

    @property
    def margin(self) -> Floats:
        """For each row, the margin in force, a probability ratio: shape (rows,)."""
        return self.step_margin[self.step]

    @property
    def gate(self) -> Floats:
        """For each row, the gate in force, in logits: shape (rows,)."""
        return self.step_gate[self.step]

    @property
    def outcome(self) -> Ints:
        """For each row, its step's outcome as an index into engine.stats.OUTCOMES: shape (rows,)."""
        return self.step_outcome[self.step]

    def take(self, indices: Ints) -> Rows:
        """The same steps with only these rows, in this order. What reads whole steps (step_first, what-if)
        needs all rows; this is for histograms and export of a filtered view."""
        columns = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name.startswith("step_")
        }
        for name in ("step", "position", "draft", "target", "accepted", "ratio", "gap", "draft_gap"):
            columns[name] = getattr(self, name)[indices]
        columns["draft_prob"] = self.draft_prob[indices]
        columns["draft_text"] = tuple(self.draft_text[i] for i in indices)
        columns["target_text"] = tuple(self.target_text[i] for i in indices)
        return Rows(**columns)


def rows_from_steps(steps: Iterable[Step]) -> Rows:
    """The columns of an engine's steps, in the order given."""
    return rows_from_records([StepRecord.of(step) for step in steps])


def rows_from_records(records: Sequence[StepRecord]) -> Rows:
    """The columns of step records, in the order given."""
    judged = [row for record in records for row in record.judged]
    counts = np.array([len(record.judged) for record in records], np.int64)

    def ints(values: Iterable[int]) -> Ints:
        return np.array(list(values), np.int64)

    def floats(values: Iterable[float | None]) -> Floats:
        return np.array([np.nan if value is None else value for value in values], np.float64)

    return Rows(
        step=np.repeat(np.arange(len(records), dtype=np.int64), counts),
        position=ints(row.position for row in judged),
        draft=ints(row.draft for row in judged),
        target=ints(row.target for row in judged),
        accepted=np.array([row.accepted for row in judged], np.bool_),
        ratio=floats(row.ratio for row in judged),
        gap=floats(row.gap for row in judged),
        draft_gap=floats(row.draft_gap for row in judged),
        draft_prob=floats(row.draft_prob for row in judged),
        draft_text=tuple(row.draft_text for row in judged),
        target_text=tuple(row.target_text for row in judged),
        step_reply=ints(record.reply for record in records),
        step_index=ints(record.index for record in records),
        step_first=np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)
        if len(records)
        else np.zeros(0, np.int64),
        step_judged=counts,
        step_accepted=ints(sum(row.accepted for row in record.judged) for record in records),
        step_drafted=ints(record.drafted for record in records),
        step_emitted=ints(record.emitted for record in records),
        step_depth=ints(record.depth for record in records),
        step_outcome=ints(OUTCOME_CODE[record.outcome] for record in records),  # type: ignore[index]
        step_margin=floats(record.margin for record in records),
        step_gate=floats(record.gate for record in records),
        step_ms=np.array(
            [[getattr(record.ms, phase) for phase in PHASES] for record in records], np.float64
        ).reshape(len(records), len(PHASES)),
        step_baseline=np.array([record.baseline for record in records], np.bool_),
    )
