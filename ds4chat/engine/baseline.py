"""The speed of plain decoding, which everything that speculation brings is held against. Pure: no clock, no
model.

What a plain step takes depends on how much stands in the context and on what else the machine does, so it
is measured within the reply it is compared with. Every surface (panel, status line, footer, logs, JSON,
explorer, what-if) works it out from the reply's steps by PlainTime, live and from the store alike.

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
    """When the next step is decoded plainly for the sake of the baseline, and which steps were passes.

    ``settling``: plain steps that pay for a change of the batch size before one counts. llama.cpp builds its
    graph anew for a batch of another size, and a GPU records the graph only when that batch comes a second
    time. A run of plain steps goes on until its passes are measured: one at the start of a reply, PASSES
    later. Steps that draft nothing of their own accord are passes as well, and then no run is due.
    """

    EVERY = 32
    """Steps without a pass after which a run is due. Counted in steps, not in time, so that one seed gives
    one text even where drafts are accepted by ratio."""
    PASSES = 2
    SHARE = 0.01
    """Of the reply's time, what the runs after the first may add to it."""

    def __init__(self, settling: int) -> None:
        self._settling = settling
        self.begin()

    def begin(self) -> None:
        """A reply starts."""
        self._wanted = 1
        """Passes that the run still has to bring; 0 between runs."""
        self._plain = 0
        """Steps of one row in a row."""
        self._since = 0
        self._run_ms = self._run_steps = 0.0
        self._added = 0.0
        """Milliseconds that the runs after the first made the reply longer."""
        self._run_cost = 0.0
        """Milliseconds that a run makes the reply longer, by the latest one."""
        self._first = True
        self._total_ms = self._drafting_ms = self._drafting_tokens = 0.0

    def due(self) -> bool:
        """Whether the next step is to be decoded without a draft."""
        affordable = self._added + self._run_cost <= self.SHARE * self._total_ms
        if not self._wanted and self._since >= self.EVERY and affordable:
            self._wanted = self.PASSES
        return self._wanted > 0

    def took(self, rows: int, tokens: int, total_ms: float, plain_ms: float) -> bool:
        """Take in a step: the rows of its batch (0 where something went wrong), the tokens it emitted, its
        milliseconds, and those without the time spent on a draft. True where it was a pass."""
        settled = rows == 1 and self._plain >= self._settling
        self._plain = self._plain + 1 if rows == 1 else 0
        self._total_ms += total_ms
        if rows > 1:
            self._drafting_ms += total_ms
            self._drafting_tokens += tokens
        if self._wanted:
            self._run_ms += plain_ms
            self._run_steps += 1
        self._since = 0 if settled else self._since + 1
        if settled and self._wanted:
            self._wanted -= 1
            if not self._wanted:
                self._end_run(plain_ms)
        return settled

    def _end_run(self, pass_ms: float) -> None:
        """Book what the run cost: its own time beyond what its tokens take with drafts, and the change back
        to the size of those, which costs what the change to one row did."""
        change = max(0.0, self._run_ms - self._run_steps * pass_ms)
        pace = self._drafting_ms / self._drafting_tokens if self._drafting_tokens else 0.0
        self._run_cost = max(0.0, self._run_ms - self._run_steps * pace + change)
        if not self._first:
            self._added += self._run_cost
        self._first = False
        self._run_ms = self._run_steps = 0.0


def plain_steps(emitted: int, judged: int) -> int:
    """Steps in which plain decoding gets as far as one that emitted and judged so many tokens: an end token
    is decided in a step of its own, and no token shows it."""
    return max(emitted, judged, 1)


class PlainTime:
    """What plain decoding takes for the tokens of a reply, by its steps as they are added.

    A pass took what it took. Tokens between two runs of passes would have taken the mean of what the passes
    on either side took, so that a context that grows and a load that drifts count as they are there; those
    after the last run, what that one took.

    A step that takes more than twice the median of those of its size was interrupted. What it took beyond
    that says nothing of the passes, and is spread over the reply: plain decoding would have been interrupted
    for the same share of its time.

    ``load_ms``: what a pass over an empty cache took at the load, which stands in before the first pass; 0
    where that is unknown.
    """

    RECENT = 9
    """Steps of one size whose median is its usual time."""
    NEAR = 4
    """Passes on each side of a stretch that count for it."""

    __slots__ = (
        "_after",
        "_before",
        "_between",
        "_closed_ms",
        "_interrupted_ms",
        "_near",
        "_pass_ms",
        "_total_ms",
        "_usual",
        "checked_ms",
        "load_ms",
        "passes",
        "tokens",
    )

    def __init__(self, load_ms: float = 0.0) -> None:
        self._begin(load_ms)

    def _begin(self, load_ms: float) -> None:
        self.load_ms = load_ms
        self.passes = 0
        """Passes measured; 0: there is nothing but ``load_ms``."""
        self.tokens = 0
        """Tokens that plain decoding would have decoded one by one, the end token included."""
        self._usual: dict[int, deque[float]] = {}
        self._total_ms = self._interrupted_ms = 0.0
        self._pass_ms = 0.0
        self._closed_ms = 0.0
        """Of the tokens between passes, as far as both sides are known."""
        self._before: float | None = None
        """What a pass took before the tokens of ``_between``; None where none came before."""
        self._between = 0
        self._near: list[float] = []
        """Passes of the run after ``_between``."""
        self._after = 0
        """Tokens since that run."""
        self.checked_ms = 0.0
        """Of a check, which decoded all tokens again plainly and weighs as a pass for each; 0 without one."""

    def add(
        self, *, index: int, rows: int, tokens: int, total_ms: float, draft_ms: float, is_pass: bool
    ) -> None:
        """Take in a step: its number within its reply (at 0 another reply begins), the rows of its batch, the
        steps that plain decoding takes for it, its milliseconds, those spent on its draft, and whether it was
        a pass."""
        if not total_ms >= 0:
            return  # a log without times
        if index == 0:
            self._begin(self.load_ms)
        self.tokens += tokens
        self._total_ms += total_ms
        interrupted = self._interruption(rows, total_ms)
        self._interrupted_ms += interrupted
        if not is_pass:
            self._after += tokens
            return
        plain_ms = total_ms - draft_ms
        if self._after:
            self._close()
        self.passes += 1
        self._pass_ms += plain_ms
        self._near.append(max(0.0, plain_ms - interrupted))
        if len(self._near) > self.NEAR:
            del self._near[0]

    @property
    def at_load(self) -> bool:
        """No pass was measured yet."""
        return not (self.passes or self.checked_ms)

    @property
    def ms(self) -> float | None:
        """Milliseconds that plain decoding takes for all tokens; None where nothing tells."""
        weight = self.tokens if self.checked_ms else 0
        if self.at_load:
            return self.load_ms * self.tokens if self.load_ms > 0 and self.tokens else None
        kept = self._total_ms - self._interrupted_ms
        interrupted = self._interrupted_ms / kept if kept > 0 else 0.0
        measured = self._pass_ms + (self._closed_ms + self._open_ms()) * (1 + interrupted)
        return (self.passes * measured + weight * self.checked_ms) / (self.passes + weight)

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of plain decoding; before a token, that of the pass at the load. None where nothing tells."""
        ms, tokens = (self.ms, self.tokens) if self.tokens else (self.load_ms, 1)
        return tokens / ms * 1000 if ms else None

    @property
    def total_ms(self) -> float:
        """Milliseconds that the steps took."""
        return self._total_ms

    @property
    def speedup(self) -> float | None:
        """How many times as fast as plain decoding the steps were; None where nothing tells."""
        ms = self.ms
        return ms / self._total_ms if ms and self._total_ms else None

    def _interruption(self, rows: int, ms: float) -> float:
        usual = self._usual.setdefault(rows, deque(maxlen=self.RECENT))
        over = ms - 2 * statistics.median(usual) if len(usual) > 2 else 0.0
        usual.append(ms)
        return max(0.0, over)

    def _open_ms(self) -> float:
        """Of the tokens before the latest run of passes, and after it."""
        if not self._near:
            return (self._between + self._after) * (self._before or 0.0)
        latest = statistics.fmean(self._near)
        before = latest if self._before is None else self._before
        return self._between * (before + latest) / 2 + self._after * latest

    def _close(self) -> None:
        """A new run of passes begins: the tokens since the latest one lie between two."""
        if self._near:
            latest = statistics.fmean(self._near)
            before = latest if self._before is None else self._before
            self._closed_ms += self._between * (before + latest) / 2
            self._before = latest
            self._between = 0
        self._between += self._after
        self._after = 0
        self._near.clear()


@dataclass(frozen=True, slots=True)
class Together:
    """Plain decoding of several replies."""

    ms: float
    """What it takes for all their tokens; NaN where nothing tells."""
    tokens: int
    speedup: float | None
    """How many times as fast the replies were."""
    at_load: bool
    """No pass was measured in any of them."""

    @classmethod
    def of(cls, replies: Iterable[PlainTime]) -> Together:
        """Those of the replies that tell what plain decoding takes."""
        told = [(ms, reply) for reply in replies if (ms := reply.ms) is not None]
        ms, total = sum(ms for ms, _ in told), sum(reply.total_ms for _, reply in told)
        return cls(
            ms=ms or math.nan,
            tokens=sum(reply.tokens for _, reply in told),
            speedup=ms / total if ms and total else None,
            at_load=all(reply.at_load for _, reply in told),
        )
