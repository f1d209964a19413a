"""How many tokens to draft: a fixed depth, or the one that pays best. Pure: no clock, no model.

The session asks a controller before each step and tells it after each step what the step cost and brought.

AutoDepth maximises expected tokens per millisecond, S(k) = E(k) / T(k): E(k) = 1 + sum over i of the product
of the conditional acceptances a_1..a_i, T(k) the milliseconds of a step with k drafts. Three parts:

- CostTable was measured before: T(k), what a change of batch size costs, and the way back after a rest;
- Acceptance learns a_i;
- Ledger holds the loss against plain decoding below 3 % of any 256 tokens, or below 6 % where as much was
  gained before in the reply. It does not trust the estimates of acceptance: a step is affordable only if the
  loss stays in bounds when all its drafts fail.

Speculation is either running or resting. It rests when no depth is expected to pay, and is tried again
after 24, 48, 96, ... tokens, at the depth that would pay if drafts were right often. A drafter that costs
next to nothing and says how sure it is, as lookup does, never rests: it is asked in every step, and each of
its drafts has to be worth its own time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from ds4chat.engine.auto.acceptance import Acceptance, Calibration, Ledger
from ds4chat.engine.auto.costs import CostTable
from ds4chat.engine.events import MAX_DEPTH

__all__ = ["AutoDepth", "CostTable", "DepthController", "FixedDepth", "StepCost"]


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step cost and brought. Milliseconds are wall time."""

    depth: int
    """Drafts asked for, as choose() gave it."""
    drafted: int
    """Drafts in the verification batch, which had drafted + 1 rows. A draft that the gate or keep_drafting
    dropped is not among them."""
    judged: int
    """Drafts held against the target: the accepted ones, and the rejected one if there was one."""
    accepted: int
    draft_ms: float
    verify_ms: float
    total_ms: float
    emitted: int
    """Tokens that the step added to the reply."""


class DepthController(Protocol):
    """Chooses the depth of each step. One step is choose, keep_drafting after each draft, observe."""

    def begin(self) -> None:
        """A new reply starts: its text may be of another kind than the last one's."""

    def choose(self, limit: int, behind: int = 0) -> int:
        """The depth for the next step, 0..limit. ``limit`` is what the context, the token budget and the
        drafter leave room for. ``behind``: tokens that the drafter has to catch up with if it is asked."""

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """Whether the draft just made at ``position`` (from 1) goes into the verification batch. False drops
        it and ends the draft, position 1 included. ``draft_prob``: how sure the drafter is of it, 0..1, by
        its own probability or by whatever it has instead of one; None when it cannot say."""

    def observe(self, step: StepCost) -> None:
        """Take in what the step cost. A step that choose() put at 0 is reported as well."""


class FixedDepth:
    """Always ``depth`` drafts, as far as the limit allows."""

    def __init__(self, depth: int) -> None:
        if not 0 <= depth <= MAX_DEPTH:
            raise ValueError(f"A depth of {depth} is out of range: it takes 0 to {MAX_DEPTH}.")
        self.depth = depth

    def begin(self) -> None:
        """Nothing is remembered from one reply to the next."""

    def choose(self, limit: int, behind: int = 0) -> int:
        """The fixed depth, or ``limit`` where that is less."""
        return max(0, min(self.depth, limit))

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """True: a fixed depth drafts to its end."""
        return True

    def observe(self, step: StepCost) -> None:
        """Nothing is learned from a step."""


# ---------------------------------------------------------------------------------------- auto


class AutoDepth:
    """The depth with the best expected tokens per second, 0 included.

    ``table`` is what was measured of the model, drafter, threads and device; until it is there, nothing is
    drafted. Against plain decoding less than 3 % is lost over any 256 tokens of a reply, but for what it
    gained before, as far as the table holds: what a depth costs more than it says is seen only in the step
    that shows it.
    """

    FIRST_REST = 24
    LONGEST_REST = 1024
    TRY_STEPS = 3
    """Steps of a try that are taken whatever the first one brings."""
    OPTIMISM = 1.0
    """Standard errors by which acceptance is taken to be better than its mean: little is known of it after a
    rest, and ending one costs the change of size."""
    CARE = 0.05
    """c: how little of what may be lost is put at risk for a faster depth."""
    RENEWED = 1024
    """Tokens without a draft after which one is made whatever the costs say, to see that they still hold."""
    CHECK = 12
    """One in this many of the drafts that would be dropped is judged anyway, which keeps it calibrated."""
    PATIENT = 4
    """Replies in a row without a try that paid after which the next ones are tried later and later."""
    HOPED = 0.85
    """Acceptance of the drafter that a try hopes for."""
    SETTLED = 32
    """Tokens in which a change of depth must have repaid what the change of size costs."""
    FREE_DRAFT = 0.02
    """Share of a plain step up to which a draft counts as free."""

    def __init__(self, table: CostTable | None = None, max_depth: int = MAX_DEPTH) -> None:
        if not 0 <= max_depth <= MAX_DEPTH:
            raise ValueError(f"A depth of {max_depth} is out of range: it takes 0 to {MAX_DEPTH}.")
        self.max_depth = max_depth
        self.table = table
        self._acceptance = Acceptance()
        self._calibration = Calibration()
        self._ledger = Ledger()
        self._running = False
        self._trying = 0
        """Steps left of a try."""
        self._tried = 0
        self._failed = 0
        """Tries in a row that did not pay."""
        self._paid = False
        """One did, in this reply."""
        self._failed_replies = 0
        """Replies in a row in which none did."""
        self._wake = 0
        """Token of the reply at which a rest ends."""
        self._rows = self._same = self._behind = self._calls = self._depth = 0
        self._drops = 0
        self._without = 0
        """Tokens since the last draft that was verified."""
        self._confident = False
        """The drafter says how sure it is."""
        self._expected: list[tuple[float, float]] = []
        """Of the drafts of this step, the drafter's probability and the acceptance expected of it."""
        self._rates: list[float] = []
        self._rate = 0.0
        """Tokens per millisecond that the time of a draft would bring otherwise."""

    # -- the contract

    def begin(self) -> None:
        """A new reply: what is known of acceptance weighs little, and the drafter is tried at once, or later
        the more replies in a row it was tried in without paying."""
        self._ledger = Ledger()
        self._acceptance.forget()
        self._calibration = Calibration()
        self._running = False
        self._trying = 0
        if self._paid:
            self._failed_replies = 0
        elif self._failed:
            self._failed_replies += 1
        late = self._failed_replies - self.PATIENT
        self._wake = 0 if late < 0 else max(0, (self.FIRST_REST << min(late, 5)) - self._without)
        self._failed = 0
        self._paid = False
        self._rows = self._same = self._depth = 0

    def choose(self, limit: int, behind: int = 0) -> int:
        """The depth with the best expected speed among those whose loss the ledger affords."""
        self._expected.clear()
        self._behind = behind
        self._calls = self._depth = 0
        if self.table is None:
            return 0
        limit = min(limit, self.max_depth, self.table.depth)
        if limit > 0:
            if self._drafts_always:
                self._rate = 1 / self.table.plain_ms
                self._depth = limit
            elif self._running:
                self._depth = self._run(limit)
            elif self._ledger.tokens >= self._wake:
                self._depth = self._try(limit)
        return self._depth

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """False where the draft, with the best continuation behind it, is expected to bring fewer tokens than
        its time would bring otherwise. A try is drafted to its end."""
        self._calls += 1
        if draft_prob is None:
            return True
        self._confident = True
        rate = self._calibration.rate(draft_prob)
        renewing = position == 1 and self._without >= self.RENEWED
        if not (self._trying or renewing or self._pays(position, rate)):
            self._drops += 1
            if self._drafts_always or self._drops % self.CHECK:
                return False
        self._expected.append((draft_prob, rate))
        return True

    def observe(self, step: StepCost) -> None:
        """Learn from one step: its costs, its acceptance, and what it lost or won against plain decoding."""
        table = self.table
        if table is None:
            return
        if step.depth and step.depth != self._depth:
            self._rows = 0
            return  # not a step of this controller's choice, such as a probe
        calls = (self._calls or min(step.drafted + 1, step.depth)) if step.depth else 0
        rows = step.drafted + 1
        if rows != self._rows:
            # After a prompt plain decoding pays for the change as well.
            self._same = 0 if self._rows or rows > 1 else 2
            self._rows = rows
        expected = table.step_ms(step.drafted, calls) + sum(table.change[self._same : self._same + 1])
        if calls:
            expected += self._behind * table.catch_up
        rest_ms = max(0.0, step.total_ms - step.draft_ms - step.verify_ms)
        table.learn(rows, self._same, calls, self._behind, step.draft_ms, step.verify_ms, rest_ms)
        # One stalled step says nothing of the ones to come.
        cost = min(step.total_ms, 2 * expected) / table.plain_ms
        settled = rows == 1 and self._same > 1 and not calls
        self._ledger.add(1.0 if settled else cost, max(1, step.emitted))
        self._same += 1
        self._depth = 0
        self._without = 0 if step.drafted else self._without + step.emitted
        if not calls:
            return
        if self._acceptance.add(step.judged, step.accepted) and self._running:
            self._calibration = Calibration()
        for i, (prob, _) in enumerate(self._expected[: step.judged]):
            self._calibration.add(prob, i < step.accepted)
        self._tried += 1
        self._trying = max(0, self._trying - 1)

    # -- inside

    @property
    def _drafts_always(self) -> bool:
        """The drafter says how sure it is and costs next to nothing, so it can be asked in every step."""
        assert self.table is not None
        return self._confident and self.table.draft[1] <= self.FREE_DRAFT * self.table.plain_ms

    def _best(self, limit: int, rates: list[float], steps: int = 1) -> int:
        """The best depth of those that are expected to pay and of which so many steps may fail; 0 where
        there is none.

        A change of size is spread over SETTLED tokens. What a depth gains is weighed with the chance that bad
        luck does not use up what may be lost, which ends it: 1 - exp(-c g r / s), as of a random walk with
        the mean gain g and a bound r away, where s is the mean square of its losses."""
        table, room = self.table, self._ledger.room
        assert table is not None
        best, found = -1.0, 0
        plain, change = table.plain_ms, table.change_ms() / table.plain_ms / self.SETTLED
        passed, tokens = [1.0], 1.0
        for depth, rate in enumerate(rates[:limit], 1):
            passed.append(passed[-1] * rate)
            tokens += passed[-1]
            cost = table.step_ms(depth) / plain
            gain = 1 / (cost / tokens + (change if depth + 1 != self._rows else 0.0)) - 1
            if gain <= 0 or self._worst(depth, steps) > room:
                continue
            losses = 0.01
            for accepted in range(min(math.ceil(cost) - 1, depth)):
                losses += (passed[accepted] - passed[accepted + 1]) * (cost - accepted - 1) ** 2
            left = room - self._round_trip_ms(depth) / plain
            gain *= 1 - math.exp(-self.CARE * (tokens - cost) * left / losses)
            if gain > best:
                best, found = gain, depth
        return found

    def _worst(self, depth: int, steps: float = 1) -> float:
        """Plain steps lost when so many steps of this depth fail entirely, with the way there and back."""
        table = self.table
        assert table is not None
        return (steps * table.step_ms(depth) + self._round_trip_ms(depth)) / table.plain_ms - steps

    def _round_trip_ms(self, depth: int) -> float:
        """What the way to this depth and back to plain decoding costs."""
        table = self.table
        assert table is not None
        there = table.change_ms(self._same if depth + 1 == self._rows else 0)
        return there + table.change_ms() + self._behind * table.catch_up

    def _run(self, limit: int) -> int:
        """The best affordable depth; puts speculation to rest where none is expected to pay."""
        assert self.table is not None
        rates = self._acceptance.rates(self.OPTIMISM)
        depth = self._best(limit, rates)
        if not depth and self._trying:
            depth = min(self._tried_depth, limit)
            depth = depth if self._worst(depth) <= self._ledger.room else 0
        if not depth:
            self._rest()
            return 0
        if self._tried > 2 * self.TRY_STEPS:
            self._failed = 0
            self._paid = True
        self._rates = rates
        mean = passed = 1.0
        for rate in rates[:depth]:
            passed *= rate
            mean += passed
        self._rate = mean / self.table.step_ms(depth)
        return depth

    def _try(self, limit: int) -> int:
        """The depth at which a try begins, if one is affordable."""
        assert self.table is not None
        hoped = [self.HOPED] * MAX_DEPTH
        for steps in range(self.TRY_STEPS, 0, -1):
            found = self._best(limit, hoped, steps)
            if found:
                break
        if not found and self._without >= self.RENEWED:
            return 1
        if not found:
            self._wake = self._ledger.tokens + self.FIRST_REST
            return 0
        self._running = True
        self._trying, self._tried, self._tried_depth = steps, 0, found
        return found

    def _rest(self) -> None:
        """Rest twice as long after each try that did not pay."""
        self._running = False
        self._wake = self._ledger.tokens + min(self.FIRST_REST << self._failed, self.LONGEST_REST)
        self._failed += 1

    def _pays(self, position: int, rate: float) -> bool:
        """Whether this draft, with the best continuation behind it, is expected to bring the tokens that its
        time would bring otherwise."""
        table = self.table
        assert table is not None
        always = self._drafts_always
        before = table.step_ms(position - 1, position) + self._price(position - 1)
        gain, expected = 0.0, math.prod(known for _, known in self._expected)
        for depth in range(position, self._depth + 1):
            expected *= rate if always or depth == position else self._rates[depth - 1]
            gain += expected
            ms = table.step_ms(depth) + self._price(depth) - before
            if gain > self._rate * ms and self._worst(depth) <= self._ledger.room:
                return True
        return False

    def _price(self, drafts: int) -> float:
        """What verifying so many drafts costs on account of the size of the batch: the way there, and back
        to the size of a whole draft or of none."""
        assert self.table is not None
        usual = 1 if self._drafts_always else self._depth + 1
        there = self.table.change_ms(self._same if drafts + 1 == self._rows else 0)
        return there + (self.table.change_ms() if drafts + 1 != usual else 0.0)
