"""The speed of plain decoding, with which that of speculation is compared. Pure: no clock, no model.

What a plain step takes depends on the tokens in the context and on what else the machine does, so it is
measured within the reply that it is compared with. Panels, logs, JSON and what-if all work it out from the
reply's steps by PlainTime, live and from the store alike.

- PlainPasses, in the engine, has the reply decode a step without a draft now and then, and says which steps
  were passes: of one row, and not paying for a change of the batch size.
- PlainTime adds up what plain decoding would have taken for the reply's tokens.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


class PlainPasses:
    """When the next step is decoded plainly for the baseline, and which steps were passes.

    ``settling``: plain steps that pay for a change of the batch size before one counts. llama.cpp builds
    another graph for a batch of another size, and a GPU records the graph only when that batch comes a second
    time. A run of plain steps ends when its passes are measured: one at the start of a reply, PASSES later.
    Steps that had nothing to draft are passes as well, and then no run is due.
    """

    EVERY = 32
    """Steps without a pass after which a run is due. Counted in steps, not in time, so that one seed gives
    one text even where drafts are accepted by ratio."""
    PASSES = 2
    SHARE = 0.01
    """Most that the runs after the first may add to a reply's time."""

    def __init__(self, settling: int) -> None:
        self._settling = settling
        self._changes: deque[float] = deque(maxlen=5)
        """Measured milliseconds of the latest changes to one row, of earlier replies too."""
        self.begin()

    def begin(self) -> None:
        """A reply starts."""
        self._wanted = 1
        """Passes still to be measured in this run; 0 between runs."""
        self._run: list[float] = []
        """Milliseconds of its steps so far."""
        self._one_row = 0
        """Steps of one row since another size."""
        self._since = 0
        """Steps since a pass."""
        self._pass_ms = math.inf
        self._added: float | None = None
        """Milliseconds that the runs after the first added to the reply; None before the first is over."""
        self._total_ms = self._drafting_ms = 0.0
        self._drafting_steps = self._drafting_tokens = 0

    def due(self) -> bool:
        """Whether to decode the next step without a draft."""
        if not self._wanted and self._since >= self.EVERY:
            cost = self._cost(self._settling + self.PASSES)
            if (self._added or 0.0) + cost <= self.SHARE * self._total_ms:
                self._wanted = self.PASSES
        return self._wanted > 0

    def add(self, rows: int, tokens: int, total_ms: float, plain_ms: float) -> bool:
        """Count a step: the rows of its batch (0 where it went wrong), the tokens that it emitted, its
        milliseconds, and those without its draft's. True where it was a pass."""
        settled = rows == 1 and self._one_row >= self._settling
        self._one_row = self._one_row + 1 if rows == 1 else 0
        self._since = 0 if settled else self._since + 1
        self._total_ms += total_ms
        if rows > 1:
            self._drafting_ms += total_ms
            self._drafting_steps += 1
            self._drafting_tokens += max(tokens, 1)
        if self._wanted:
            self._run.append(plain_ms)
            self._wanted -= settled
            if not self._wanted:
                self._end_run()
        return settled

    def _end_run(self) -> None:
        settling, passes = self._run[: self._settling], self._run[self._settling :]
        self._pass_ms = min(passes, default=math.inf)
        self._changes.append(sum(max(0.0, ms - self._pass_ms) for ms in settling))
        self._added = 0.0 if self._added is None else self._added + self._cost(len(self._run))
        self._run = []

    def _cost(self, steps: int) -> float:
        """Milliseconds that a run of ``steps`` adds to the reply: what they take beyond the time of their
        tokens with drafts, the change of size, and the change back, which costs the same."""
        if not self._drafting_steps:
            return 0.0
        # More rows never take less time: a pass that seems slower was interrupted.
        pass_ms = min(self._pass_ms, self._drafting_ms / self._drafting_steps)
        change_ms = statistics.median_low(self._changes) if self._changes else 0.0
        return max(0.0, steps * (pass_ms - self._drafting_ms / self._drafting_tokens) + 2 * change_ms)


def plain_steps(emitted: int, judged: int) -> int:
    """Steps that plain decoding takes for one that emitted and judged this many tokens: an end token takes a
    step of its own, though it is not emitted."""
    return max(emitted, judged, 1)


class PlainTime:
    """What plain decoding takes for the tokens of one reply, by its steps as they are added.

    A pass took what it took, and so did a plain step before the first draft, with which plain decoding begins
    as well. Tokens between two runs of passes would have taken the mean of the passes on either side, so that
    a growing context and a drifting load are accounted for. Those after the last run would have taken what
    its passes took, and longer as the steps with drafts have become slower since.

    Machines interrupt a step now and then. A pass stands for many tokens, so it counts for them as the median
    of the steps with drafts among them at most, which no pass exceeds by itself; and plain decoding is
    assumed to be interrupted for the same share of its time as those steps, by what some of them take beyond
    twice the median of their size.

    ``load_ms``: what a pass over an empty cache took at the load, used before the first pass; 0 where that is
    unknown.
    """

    RECENT = 9
    """Steps of which a median is taken."""
    NEAR = 4
    """Passes on each side of a gap that count for it."""
    SETTLED = 2
    """Steps after which a change of the batch size does not count as an interruption."""

    def __init__(self, load_ms: float = 0.0) -> None:
        self.load_ms = load_ms
        self.checked_ms = 0.0
        """Of a check, which decoded all tokens again plainly and counts as a pass for each; 0 without one."""
        self.passes = 0
        """Passes measured within the reply."""
        self.tokens = 0
        """Tokens that plain decoding would have decoded one by one, the end token included."""
        self.total_ms = 0.0
        """Milliseconds that the steps took."""
        self._pass_ms = 0.0
        self._before: float | None = None
        """Mean of the run of passes before the gap; None where there was none."""
        self._gap = 0
        """Tokens since that run, up to the next one."""
        self._run: deque[float] = deque(maxlen=self.NEAR)
        """Passes since the gap."""
        self._closed_ms = 0.0
        """Of the tokens in all gaps before this one."""
        self._drafting: deque[float] = deque(maxlen=self.RECENT)
        """The latest steps with drafts in the gap, all of one size."""
        self._drafting_first: list[float] = []
        """The first of them."""
        self._drafting_rows = 0
        self._usual: dict[int, deque[float]] = {}
        """Steps with drafts by the rows of their batch."""
        self._rows = self._same = 0
        self._drafting_ms = self._interrupted_ms = 0.0

    def add(self, *, rows: int, tokens: int, total_ms: float, draft_ms: float, is_pass: bool) -> None:
        """Count a step: the rows of its batch, the steps that plain decoding takes for it, its milliseconds,
        those of its draft, and whether it was a pass."""
        if not total_ms >= 0:
            return  # a log without times
        self.tokens += tokens
        self.total_ms += total_ms
        self._same = self._same + 1 if rows == self._rows else 0
        self._rows = rows
        if is_pass:
            self.passes += 1
            self._pass_ms += total_ms - draft_ms
            self._run.append(total_ms - draft_ms)
            if len(self._run) == self.NEAR:
                self._close()  # later passes of a long run are not near the gap
            return
        if rows == 1 and not self._drafting_ms:
            self._pass_ms += total_ms - draft_ms
            return
        if self._run:
            self._close()
            self._before = statistics.fmean(self._run)
            self._run.clear()
        self._gap += tokens
        if rows > 1:
            self._look_for_interruption(rows, total_ms)
            self._drafting_rows = self._drafting_rows or rows
            if rows == self._drafting_rows:
                self._drafting.append(total_ms)
                if len(self._drafting_first) < self.RECENT:
                    self._drafting_first.append(total_ms)

    @property
    def at_load(self) -> bool:
        """No pass was measured yet."""
        return not (self.passes or self.checked_ms)

    @property
    def ms(self) -> float | None:
        """Milliseconds that plain decoding takes for all tokens; None where that is unknown."""
        weight = self.tokens if self.checked_ms else 0
        if self.at_load:
            return self.load_ms * self.tokens if self.load_ms > 0 and self.tokens else None
        kept = self._drafting_ms - self._interrupted_ms
        interrupted = self._interrupted_ms / kept if kept > 0 else 0.0
        measured = self._pass_ms + (self._closed_ms + self._gap_ms()) * (1 + interrupted)
        return (self.passes * measured + weight * self.checked_ms) / (self.passes + weight)

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of plain decoding; before a token, that of the pass at the load. None where it is unknown."""
        ms, tokens = (self.ms, self.tokens) if self.tokens else (self.load_ms, 1)
        return tokens / ms * 1000 if ms else None

    @property
    def speedup(self) -> float | None:
        """Speed of the steps over that of plain decoding; None where that is unknown."""
        ms = self.ms
        return ms / self.total_ms if ms and self.total_ms else None

    def _look_for_interruption(self, rows: int, ms: float) -> None:
        usual = self._usual.setdefault(rows, deque(maxlen=self.RECENT))
        self._drafting_ms += ms
        if self._same >= self.SETTLED and len(usual) > 2:
            median = statistics.median(usual)
            self._interrupted_ms += ms - median if ms > 2 * median else 0.0
        usual.append(ms)

    def _gap_ms(self) -> float:
        sides = [] if self._before is None else [self._before]
        if self._run:
            sides.append(statistics.fmean(self._run))
        if len(self._drafting) > 2:
            most = statistics.median(self._drafting)
            sides = [min(side, most) for side in sides]
        if not sides:
            return 0.0
        return self._gap * statistics.fmean(sides) * (1.0 if self._run else self._trend())

    def _trend(self) -> float:
        """What the gap's tokens take on average over its first one, by the steps with drafts: half of what
        the latest take over the first."""
        if len(self._drafting) < self.RECENT:
            return 1.0
        grown = statistics.median(self._drafting) / statistics.median(self._drafting_first)
        return (1 + min(max(grown, 0.5), 2.0)) / 2

    def _close(self) -> None:
        """The passes on both sides of the gap are known."""
        self._closed_ms += self._gap_ms()
        self._gap = self._drafting_rows = 0
        self._drafting.clear()
        self._drafting_first.clear()


@dataclass(frozen=True, slots=True)
class PlainTotal:
    """Plain decoding of several replies."""

    ms: float
    """Of all their tokens; NaN where that is unknown."""
    tokens: int
    speedup: float | None
    """Speed of the replies over that of plain decoding."""
    at_load: bool
    """No pass was measured in any of them."""

    @classmethod
    def of(cls, replies: Iterable[PlainTime]) -> PlainTotal:
        """Those of the replies that tell what plain decoding takes."""
        known = [(ms, reply) for reply in replies if (ms := reply.ms) is not None]
        ms, total = sum(ms for ms, _ in known), sum(reply.total_ms for _, reply in known)
        return cls(
            ms=ms or math.nan,
            tokens=sum(reply.tokens for _, reply in known),
            speedup=ms / total if ms and total else None,
            at_load=all(reply.at_load for _, reply in known),
        )
