"""Counters and timings of a reply, folded from its events. Pure: no clock, no model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from ds4chat.engine.baseline import PlainTime, plain_steps
from ds4chat.engine.events import (
    Count,
    Ended,
    Event,
    FinishReason,
    Loaded,
    Outcome,
    Prefill,
    Replayed,
    Revised,
    Step,
)
from ds4chat.engine.loops import LoopDetector, identity

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Phase = Literal["draft", "verify", "accept", "rollback", "other", "total"]
PHASES: tuple[Phase, ...] = get_args(Phase)
NonNegative = Annotated[float, Meta(ge=0)]


@dataclass(slots=True)
class PositionCount:
    """Drafts judged and accepted at one position of the draft."""

    judged: Count = 0
    accepted: Count = 0

    @property
    def rate(self) -> float | None:
        """Conditional acceptance: of the drafts that were judged here, the share accepted."""
        return self.accepted / self.judged if self.judged else None


class LoopingDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The counts where the text only repeats itself."""

    tokens: Count
    judged: Count
    accepted: Count


class StatsDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counters and timings of a reply."""

    steps: Annotated[Count, Meta(description="Target passes.")]
    drafted: Count
    judged: Count
    accepted: Annotated[
        Count,
        Meta(
            description="Accepted drafts: the tokens of that origin plus accepted_ends; of a probe, the hits."
        ),
    ]
    accepted_ends: Annotated[
        Count,
        Meta(description="Accepted drafts that were the end token, which ends the reply and is not emitted."),
    ]
    emitted: Annotated[Count, Meta(description="Tokens of the reply.")]
    acceptance: Annotated[float | None, Meta(description="accepted / judged")]
    by_position: Annotated[
        list[PositionCount], Meta(description="Drafts by their position in the draft, the first one first.")
    ]
    looping: LoopingDocument
    mean_accepted: Annotated[
        float | None, Meta(description="Accepted drafts per step in which a draft was judged.")
    ]
    tokens_per_step: float | None
    outcomes: Annotated[dict[Outcome, Count], Meta(description="Steps by how they ended.")]
    prefill_tokens_per_s: Annotated[
        float | None, Meta(description="Of the prompt tokens that were not in the cache already.")
    ]
    decode_tokens_per_s: Annotated[float | None, Meta(description="Without the prefill.")]
    plain_tokens_per_s: Annotated[
        float | None,
        Meta(description="Plain decoding of the same tokens, measured by plain steps within the reply."),
    ]
    plain_passes: Annotated[
        Count,
        Meta(description="Plain steps that this was measured in; 0: by one pass at the load."),
    ]
    speedup: Annotated[float | None, Meta(description="Speed over plain decoding of the same tokens.")]
    ms: Annotated[dict[Phase, NonNegative], Meta(description="Milliseconds by phase.")]


@dataclass(slots=True)
class Stats:
    """Totals over the steps of one reply, or of several, whose events are folded in order."""

    steps: int = 0
    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    """Drafts accepted: every token of that origin, and those of ``accepted_ends``; in a probe, the hits."""
    accepted_ends: int = 0
    """Accepted drafts that were the token that ends the reply, which is not emitted."""
    emitted: int = 0
    drafting_steps: int = 0
    """Steps in which at least one draft was judged."""
    lossy: int = 0
    """Accepted by ratio alone: the target would have chosen another token."""
    by_position: list[PositionCount] = field(default_factory=list)
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    ms: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    """Wall time from the first step's start to the last step's end."""
    first_token_ms: float = 0.0
    context_used: int = 0
    finish_reason: FinishReason | None = None
    loop_tokens: int = 0
    """Emitted tokens that only repeat what is before them (ds4chat.engine.loops)."""
    loop_judged: int = 0
    loop_accepted: int = 0
    """Drafts judged and accepted for those: a loop is easy to draft, and says nothing of other texts."""
    loop_since: int | None = None
    """Index of the first such token of the newest reply; None where there is none."""
    _loop: LoopDetector = field(default_factory=LoopDetector)
    _open_loop: list[Step] = field(default_factory=list)
    """Those of the open steps that were counted as a loop's."""
    _open: list[Step] = field(default_factory=list)
    """Steps of the reply that has not ended, which a server may revise at the end."""
    plain: PlainTime = field(default_factory=PlainTime)
    """What plain decoding takes for the tokens of the newest reply."""

    def fold(self, event: Event) -> None:
        """Count one event. Events without figures are ignored."""
        if isinstance(event, Step):
            self._fold_step(event)
        elif isinstance(event, Revised):
            self._revise(event)
        elif isinstance(event, Prefill):
            self.context_used = event.done
        elif isinstance(event, Loaded):
            self.plain.load_ms = event.plain_ms
        elif isinstance(event, Replayed):
            self.plain.checked_ms = event.plain_ms
        elif isinstance(event, Ended):
            self.prompt_tokens += event.prompt_tokens
            self.reused_tokens += event.reused_tokens
            self.prefill_ms += event.prefill_ms
            self.decode_ms += event.decode_ms
            self.first_token_ms = event.first_token_ms
            self.context_used = event.context_used
            self.finish_reason = event.finish_reason
            if event.counters is not None:
                # A server's totals include what its steps did not tell.
                known = [row for step in self._open for row in step.judged]
                self.drafted += max(0, event.counters.drafted - sum(step.drafted for step in self._open))
                self.accepted += max(0, event.counters.accepted - sum(row.accepted for row in known))
            self._open.clear()

    def _revise(self, event: Revised) -> None:
        """Count a reply's steps as the server revised them."""
        for step in self._open:
            self._count(step, -1)
        for step in self._open_loop:
            self._count_loop(step, -1)
        self._open.clear()
        for step in event.steps:
            self._fold_step(step)

    def _fold_step(self, step: Step) -> None:
        if self._open and self._open[0].reply != step.reply:
            self._open.clear()
        self._open.append(step)
        self._count(step, 1)
        self._look_for_loop(step)
        self.context_used = step.context_used
        if step.index == 0:
            self.plain = PlainTime(self.plain.load_ms)
        self.plain.add(
            # What a probe drafts is never in the batch.
            rows=1 if step.tuning.probe else step.drafted + 1,
            tokens=plain_steps(len(step.tokens), len(step.judged)),
            total_ms=step.ms.total,
            draft_ms=step.ms.draft,
            is_pass=step.baseline,
        )

    def _look_for_loop(self, step: Step) -> None:
        if step.index == 0:
            self._loop, self.loop_since = LoopDetector(), None
            self._open_loop.clear()
        known = self._loop.looping
        for token in step.tokens:
            self._loop.push(identity(token))
        if not self._loop.looping:
            return
        if self.loop_since is None:
            self.loop_since = self._loop.since
        begin = len(self._loop)
        for of_loop in [step] if known else reversed(self._open):
            begin -= len(of_loop.tokens)
            if begin < self._loop.since:
                break
            self._open_loop.append(of_loop)
            self._count_loop(of_loop, 1)

    def _count_loop(self, step: Step, times: int) -> None:
        self.loop_tokens += times * len(step.tokens)
        self.loop_judged += times * len(step.judged)
        self.loop_accepted += times * step.accepted

    @property
    def repeating(self) -> bool:
        """The newest reply repeats itself up to its end."""
        return self._loop.looping

    @property
    def loop_acceptance(self) -> float | None:
        """Acceptance where the text only repeats itself; None where nothing was judged there."""
        return self.loop_accepted / self.loop_judged if self.loop_judged else None

    @property
    def acceptance_elsewhere(self) -> float | None:
        """Acceptance of everything else; None where nothing else was judged."""
        judged = self.judged - self.loop_judged
        return (self.accepted - self.loop_accepted) / judged if judged > 0 else None

    def _count(self, step: Step, times: int) -> None:
        """Count a step, or with -1 take it out again."""
        self.steps += times
        self.drafted += times * step.drafted
        self.judged += times * len(step.judged)
        self.emitted += times * len(step.tokens)
        self.accepted_ends += times * step.accepted_end
        self.drafting_steps += times * bool(step.judged)
        for row in step.judged:
            while len(self.by_position) < row.position:
                self.by_position.append(PositionCount())
            count = self.by_position[row.position - 1]
            count.judged += times
            count.accepted += times * row.accepted
            self.accepted += times * row.accepted
            self.lossy += times * (row.by == "ratio")
        self.outcomes[step.outcome] += times
        for phase in PHASES:
            self.ms[phase] += times * getattr(step.ms, phase)

    @property
    def acceptance(self) -> float | None:
        """accepted / judged; None before a draft was judged."""
        return self.accepted / self.judged if self.judged else None

    @property
    def mean_accepted(self) -> float | None:
        """Accepted drafts per step that judged one; None before there was such a step."""
        return self.accepted / self.drafting_steps if self.drafting_steps else None

    @property
    def tokens_per_step(self) -> float | None:
        """Emitted tokens per target pass."""
        return self.emitted / self.steps if self.steps else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Emitted tokens over the wall time of the steps, without the prefill."""
        ms = self.decode_ms or self.ms["total"]
        return self.emitted / ms * 1000 if ms and self.emitted else None

    @property
    def context(self) -> int | None:
        """``context_used``; None where a server does not tell it."""
        return None if self.emitted and not self.context_used else self.context_used

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens that were decoded, not reused, over the prefill's wall time."""
        fresh = self.prompt_tokens - self.reused_tokens
        return fresh / self.prefill_ms * 1000 if self.prefill_ms and fresh > 0 else None

    def document(self) -> StatsDocument:
        """The figures as the commands print them in JSON."""
        return StatsDocument(
            steps=self.steps,
            drafted=self.drafted,
            judged=self.judged,
            accepted=self.accepted,
            accepted_ends=self.accepted_ends,
            emitted=self.emitted,
            acceptance=rounded(self.acceptance),
            by_position=list(self.by_position),
            looping=LoopingDocument(self.loop_tokens, self.loop_judged, self.loop_accepted),
            mean_accepted=rounded(self.mean_accepted),
            tokens_per_step=rounded(self.tokens_per_step),
            outcomes=dict(self.outcomes),
            prefill_tokens_per_s=rounded(self.prefill_tokens_per_s),
            decode_tokens_per_s=rounded(self.decode_tokens_per_s),
            plain_tokens_per_s=rounded(self.plain.tokens_per_s),
            plain_passes=self.plain.passes,
            speedup=rounded(self.plain.speedup),
            ms={phase: round(self.ms[phase], 3) for phase in PHASES},
        )


def rounded(value: float | None) -> float | None:
    """A figure as the JSON gives it: four decimals."""
    return None if value is None else round(value, 4)
