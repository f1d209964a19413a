"""How many tokens to draft: a fixed depth, or the one that pays best. Pure: no clock, no model.

The session asks a controller before each step and tells it after each step what the step cost and brought.

AutoDepth maximises expected tokens per millisecond, S(k) = E(k) / T(k): E(k) = 1 + sum over i of the product
of the conditional acceptances a_1..a_i, T(k) the milliseconds of a step with k drafts. Three parts:

- CostTable measures T(k), and what a change of batch size costs; what is not measured yet counts as cheap as
  it may be (worth a try?);
- Acceptance measures a_i, conditionally: position i is judged only where all before it were accepted, so
  a draft that was cut off says nothing about the positions behind it;
- Ledger holds the loss against plain decoding below 3 % of any 256 tokens. It does not trust the
  estimates of acceptance: a step is affordable only if the loss stays in bounds when all its drafts fail.

Speculation is either running or resting. It rests when no depth is expected to pay, and is tried again
after 16, 32, 64, ... tokens, unless measured costs rule out that any acceptance could make it pay. A drafter
that costs next to nothing and says how sure it is, as lookup does, never rests: it is asked in every step,
and its drafts are stakes out of the loss that the ledger allows. They are laid as Kelly's criterion has it
(J. L. Kelly, A New Interpretation of Information Rate, 1956): so that the expected logarithm of what is left
to lose is largest. The less there is left, the better the odds must be.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from ds4chat.engine.auto.acceptance import Acceptance, Calibration, Ledger, Stake
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

    def choose(self, limit: int) -> int:
        """The depth for the next step, 0..limit. ``limit`` is what the context, the token budget and the
        drafter leave room for."""

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """Whether the draft just made at ``position`` (from 1) goes into the verification batch. False drops
        it and ends the draft, position 1 included. ``draft_prob``: how sure the drafter is of it, 0..1, by
        its own probability or by whatever it has in the place of one; None when it cannot say."""

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

    def choose(self, limit: int) -> int:
        """The fixed depth, or ``limit`` where that is less."""
        return max(0, min(self.depth, limit))

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """True: a fixed depth drafts to its end."""
        return True

    def observe(self, step: StepCost) -> None:
        """Nothing is learned from a step."""


# ---------------------------------------------------------------------------------------- auto


class AutoDepth:
    """The depth with the best expected tokens per second by what was measured so far, 0 included.

    ``warm`` is the table measured in an earlier run of the same model, drafter, threads and device; without
    it the first steps are plain ones and measure the baseline. ``table`` is what is known now, for the
    cache. Against plain decoding it loses less than 3 % over any 256 tokens of a reply, as far as these hold:
    a plain step's cost is as measured, and a depth not tried yet costs no more than CostTable.most_ms says.
    The first two steps with a draft after a cold start, of whose cost nothing is known, can break the bound
    if they alone cost more than 7 plain steps; no controller that ever tries can exclude that.
    """

    BASELINE_STEPS = 3
    """Plain steps at the start of a cold table; the first one follows a prompt, whose size was another."""
    REFRESH = 200
    """Plain steps' time after which a running speculation decodes one to three plain steps, to keep the
    baseline that everything is compared with true as the context grows."""
    FIRST_REST = 16
    PATIENCE = 16
    """Tokens after which a try that could not be afforded is weighed anew: weighing costs time as well."""
    HOPELESS_REST = 1024
    """Tokens of rest where measured costs rule out that speculation pays, and the most without a draft from a
    drafter that is asked in every step; the try after them only renews the costs."""
    OPTIMISM = 1.0
    """Standard errors by which the first position's acceptance is taken to be better than its mean."""
    RESTED = 8
    """After this many plain steps the drafter may have to catch up: that step's draft time is not its
    usual one."""
    ENOUGH = 16
    """Steps in a row without a draft after which every fourth one is measured: a controller that only watches
    must not cost a fast model anything."""
    FREE_DRAFT = 0.02
    """Share of a plain step up to which a draft counts as free."""
    CHECK = 12
    """Every so manieth draft that would be dropped is judged all the same, to keep the calibration true."""
    SMALL = 1 / 8
    """Share of what may be lost up to which such a check is made by a drafter that is asked in every step."""
    FIRST = 3
    """Most drafts in the first batches, which tell what more rows and another number of rows cost."""
    AHEAD = (0, 1, 2, 3, 5, 7, 11, 15)
    """How many further drafts are weighed along with one."""
    SETTLED = 32
    """Plain steps' time after which a change of depth must have repaid what the change of size costs."""

    def __init__(self, warm: CostTable | None = None, max_depth: int = MAX_DEPTH) -> None:
        if not 0 <= max_depth <= MAX_DEPTH:
            raise ValueError(f"A depth of {max_depth} is out of range: it takes 0 to {MAX_DEPTH}.")
        self.max_depth = max_depth
        self.table = warm or CostTable()
        self._acceptance = Acceptance(max_depth)
        self._calibration = Calibration()
        self._ledger = Ledger()
        self._running = True
        self._rest = self.FIRST_REST
        self._next_try = 0
        self._trial_depth = 1
        self._trial_steps = 0 if self.table.draft.measured else 2
        """Steps left of a try that are taken even if nothing is expected of them: until a draft was judged,
        and a depth measured twice."""
        self._trial_judged = 1
        """Steps of a try that must have judged a draft."""
        self._earned = 0.0
        self._since_plain_ms = 0.0
        self._plain_run = 0
        self._catch_up: deque[float] = deque(maxlen=5)
        self._rows = 0
        """Rows of the last verification batch; 0 when something else was decoded since."""
        self._same = 0  # steps of that size in a row
        self._after_draft = False
        """The steps of that size came after one of another, and not after a prompt."""
        self._unbooked: deque[tuple[int, int, float]] = deque(maxlen=16)
        """Rows, steps of the same size before it, and milliseconds of verifications that came right after a
        change of size, while it is not known what that costs."""
        self._failed_replies = 0  # in a row, in which speculation was tried and did not pay
        self._tried = False
        self._confident = False  # the drafter says how sure it is
        self._bins: list[int] = []
        self._calls = 0
        self._drops = 0
        self._depth = 0
        self._stake = Stake()
        self._verified = 0  # tokens of all replies up to the latest step with a draft
        self._rate = 0.0
        self._accepted_rates: list[float] = []

    # -- the contract

    def begin(self) -> None:
        """A new reply: what is known of acceptance weighs little, and a rest ends soon, after 16, 32, ..,
        256 tokens by the number of replies in a row in which speculation did not pay."""
        if self._tried:
            self._failed_replies = 0 if self._running or self._earned > 2 else self._failed_replies + 1
        self._tried = self._running
        self._rows = self._same = self._depth = 0
        self._ledger.begin()
        self._acceptance.forget(8)
        self._calibration.forget(8)
        soon = self.FIRST_REST << min(self._failed_replies, 4)
        self._next_try = min(self._next_try, self._ledger.tokens + soon)

    def choose(self, limit: int) -> int:
        """The depth with the best expected speed among those whose loss the ledger affords."""
        self._bins.clear()
        self._stake.begin(self._ledger.room)
        self._calls = 0
        self._depth = 0
        limit = min(limit, self.max_depth)
        if limit > 0 and not self._baseline_due():
            if self._asking:
                # Which depth pays is weighed when there is something to verify: most often there is nothing.
                self._depth = limit if self.table.change_is_known else min(limit, self.FIRST)
            else:
                self._depth = self._run(limit) if self._running else self._try(limit)
        return self._depth

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """False where the draft, with the best continuation behind it, is expected to bring fewer tokens than
        its time would bring otherwise, once 32 judged drafts have calibrated the drafter's probability. From
        a drafter that is asked in every step: where it is no good stake, from the start."""
        self._calls += 1
        if draft_prob is None:
            return True
        self._confident = True
        calibrated = self._calibration.rate(draft_prob)
        asking = self._asking
        if not (self._worth if asking else self._pays)(position, calibrated):
            self._drops += 1
            dear = asking and not self._worst(position) < self.SMALL * self._stake.room
            check = self._drops % self.CHECK == 0 and not dear
            if not check and self._ledger.tokens < self._verified + self.HOPELESS_REST:
                return False
        self._stake.sure.append(calibrated)
        self._bins.append(Calibration.bin(draft_prob))
        return True

    def observe(self, step: StepCost) -> None:
        """Learn from one step: its costs, its acceptance, and what it lost or won against plain decoding."""
        drafting = step.depth > 0
        if drafting and step.depth != self._depth:
            self._rows = self._same = 0
            return  # not a step of this controller's choice, such as a probe
        idle = self._rows == 1 and not step.drafted and (not drafting or self._asking)
        if idle and self._same >= self.ENOUGH and self._same % 4:
            self._same += 1
            self._plain_run += not drafting
            self._ledger.add(self.table.step_ms(0, 1) / self.table.plain_ms() if drafting else 1.0, 1)
            self._depth = 0
            return
        calls = self._calls or min(step.drafted + 1, step.depth)
        if not drafting:
            calls = 0
        self._depth = 0
        resumed = drafting and self._plain_run >= self.RESTED
        if step.drafted + 1 != self._rows:
            self._after_draft = self._rows > 0
            self._rows, self._same = step.drafted + 1, 0
        # After a prompt plain decoding pays for the change as well.
        excess = self.table.excess_ms(self._same) if self._after_draft else 0.0
        self._learn_costs(step, calls, resumed)
        self._same += 1
        plain = self.table.plain_ms()
        if not plain > 0:
            return
        if self.table.verify.count(step.drafted + 1):
            expected = self.table.step_ms(step.drafted, calls) + excess
        else:
            expected = min(step.total_ms, self.table.most_ms(step.drafted))
        cost = expected / plain
        if resumed:
            self._catch_up.append(min(max(0.0, (step.total_ms - expected) / plain), 16.0))
            cost += statistics.median_low(self._catch_up)
        emitted = max(1, step.emitted)
        self._ledger.add(cost, emitted)
        self._earned += emitted - cost
        if drafting:
            if step.drafted or not self._asking:
                self._acceptance.observe(step.depth, step.drafted, step.judged, step.accepted)
            for index, bin_index in enumerate(self._bins[: step.judged]):
                self._calibration.add(bin_index, index < step.accepted)
            self._trial_judged -= step.judged > 0
            done = self._trial_judged <= 0 and self.table.verify.count(step.drafted + 1) > 1
            self._trial_steps = 0 if done else max(0, self._trial_steps - 1)
            self._plain_run = 0
            if step.drafted:
                self._verified = self._ledger.tokens
            self._since_plain_ms += expected
        else:
            self._plain_run += 1

    # -- inside

    def _learn_costs(self, step: StepCost, calls: int, resumed: bool) -> None:
        table = self.table
        rows, same, ms = self._rows, self._same, step.verify_ms
        if rows == 1:
            if same < 2 and self._after_draft:
                table.observe_change(same, ms)
                if table.change_is_known:
                    for earlier, before, taken in self._unbooked:
                        table.verify.add(earlier, max(taken - table.excess_ms(before), 0.0))
                    self._unbooked.clear()
            cold = same and not self._after_draft and self._baseline_unknown
            if same > 1 or cold or table.change_is_free:
                table.verify.add(1, ms)
                self._since_plain_ms = 0.0
        elif same > 1 or table.change_is_known:
            table.verify.add(rows, max(ms - table.excess_ms(same), 0.0))
        else:
            self._unbooked.append((rows, same, ms))
        rest = step.total_ms - step.verify_ms
        if step.depth == 0:
            table.plain_overhead.add(max(0.0, rest))
        elif not resumed or not table.draft.count(calls):
            # What a drafter takes the first time can be many times its usual, as kernels are loaded for it.
            first = not table.draft.measured
            table.draft.add(calls, min(step.draft_ms, calls * table.plain_ms()) if first else step.draft_ms)
            overhead = table.drafting_overhead if step.drafted else table.plain_overhead
            overhead.add(max(0.0, rest - step.draft_ms))

    def _baseline_due(self) -> bool:
        if self._baseline_unknown or (self._unbooked and not (self._rows == 1 and self._same > 1)):
            return True
        change = 2 * self.table.change_ms()
        return self._since_plain_ms > self.REFRESH * (self.table.plain_ms() + change)

    @property
    def _baseline_unknown(self) -> bool:
        return self.table.verify.count(1) < self.BASELINE_STEPS - 1

    @property
    def _asking(self) -> bool:
        """The drafter says how sure it is and costs next to nothing, so it can be asked in every step."""
        draft = self.table.draft
        return self._confident and draft.value(1) <= self.FREE_DRAFT * self.table.plain_ms()

    def _step_ms(self, drafts: int, calls: int | None = None) -> float:
        """What a step costs after the last one."""
        return self.table.step_ms(drafts, calls) + self._way_ms(drafts)

    def _way_ms(self, drafts: int) -> float:
        """What is to be paid for this depth on account of changes of size: the way there, and from plain
        decoding the way back as well."""
        back = self.table.change_ms() if drafts and self._rows < 2 else 0.0
        return self._there_ms(drafts) + back

    def _there_ms(self, drafts: int) -> float:
        """What the next step takes longer at this depth than later ones of its size would."""
        if not drafts:
            return 0.0
        return self.table.excess_ms(self._same if drafts + 1 == self._rows else 0)

    def _speeds(self, limit: int, accepted: list[float], reached: list[float]) -> list[float]:
        """Expected speed at depth 0..limit over plain decoding's, with costs as low as they may be. The depth
        at most doubles from the deepest one measured, so that no try leaps into unknown cost."""
        table = self.table
        plain = table.plain_ms()
        deepest = self._deepest
        speeds = [1.0]
        tokens, stopped_ms, present, passed, same = 1.0, 0.0, 1.0, 1.0, 0.0
        for depth in range(1, min(limit, 2 * deepest + 1) + 1):
            missing = 1 - reached[depth - 1]
            if missing > 0:
                stopped_ms += present * missing * table.step_ms(depth - 1, depth)
                same += (present * missing) ** 2
            present *= 1 - missing
            passed *= accepted[depth - 1]
            tokens += present * passed
            # Two steps in a row are of one size with the sum of the squared shares of all sizes.
            changing = max(0.0, 1 - same - present**2)
            changing_ms = changing * (table.excess_ms(0) + (1 - changing) * table.excess_ms(1))
            speeds.append(tokens * plain / (stopped_ms + present * table.least_ms(depth) + changing_ms))
        return speeds

    def _run(self, limit: int) -> int:
        """The best affordable depth; puts speculation to rest where none is expected to pay."""
        if self._trial_steps:
            depth = min(self._trial_depth, limit)
            return depth if self._ledger.affords(self._worst(depth)) else 0
        accepted, reached = self._acceptance.rates(self.OPTIMISM)
        speeds = self._speeds(limit, accepted, reached)
        change = self.table.change_ms() / (self.SETTLED * self.table.plain_ms())
        if change and self._rows:
            speeds = [
                speed - (change if depth + 1 != self._rows else 0) for depth, speed in enumerate(speeds)
            ]
            speeds[0] = 1.0
        best = max(speeds)
        if best <= 1:
            self._start_rest(limit)
            return 0
        self._rate = best / self.table.plain_ms()
        self._accepted_rates = accepted
        paying = [depth for depth, speed in enumerate(speeds) if depth and speed > 1]
        paying.sort(key=lambda depth: speeds[depth], reverse=True)
        shallowest = min(paying)
        reserve = min(2.0, 2 * self._worst(shallowest))
        for depth in paying:
            if self._ledger.affords(self._worst(depth) + (reserve if depth > shallowest else 0)):
                return depth
        if self._ledger.drawdown < 0.5:
            self._start_rest(limit)  # never to be afforded: after the rest another depth is tried
        return 0

    def _worst(self, depth: int) -> float:
        """Plain steps lost when every draft of this depth fails, with the way there and back."""
        ms = self.table.most_ms(depth) + self._there_ms(depth) + self.table.change_ms()
        return max(0.0, ms / self.table.plain_ms() - 1)

    @property
    def _deepest(self) -> int:
        """Most drafts that were verified so far."""
        return max(self.table.verify.measured[-1] - 1, 0)

    def _pays(self, position: int, sure: float) -> bool:
        """Whether this draft, with the best continuation behind it, is expected to bring the tokens that its
        time would bring otherwise. True until enough drafts were judged to know what the drafter's
        probability is worth."""
        if self._calibration.seen < Calibration.NEEDED or not self._rate > 0:
            return True
        before = self._step_ms(position - 1, position)
        expected = gain = math.prod(self._stake.sure) * sure
        best = gain - self._rate * (self._step_ms(position) - before)
        for depth in range(position + 1, self._depth + 1):
            expected *= self._accepted_rates[depth - 1]
            gain += expected
            best = max(best, gain - self._rate * (self._step_ms(depth) - before))
        return best > 0

    def _worth(self, position: int, sure: float) -> bool:
        """Whether this draft, with the best continuation behind it, is a better stake than ending before it.
        What follows is taken to be as sure as this draft."""
        stake = self._stake
        if position <= stake.planned and sure >= stake.assumed:
            return True
        best, planned = self._value(position - 1, sure), 0
        for further in self.AHEAD:
            depth = position + further
            if depth > self._depth:
                break
            value = self._value(depth, sure)
            if value > best:
                best, planned = value, depth
        if not planned:
            return False
        stake.planned, stake.assumed = planned, sure
        return True

    def _value(self, depth: int, sure: float) -> float:
        """The stake's value at this depth; minus infinity where all that may be lost could be."""
        stake = self._stake
        if depth not in stake.excess:
            if not self._worst(depth) < stake.room:
                return -math.inf
            ms = self.table.least_ms(depth) + self._way_ms(depth)
            stake.excess[depth] = ms / self.table.plain_ms() - 1
        return stake.value(depth, sure)

    def _start_rest(self, limit: int) -> None:
        """Rest longer after each try that brought nothing; a try costs less than 1 % of the rest after it."""
        longest = max(64, int((self._worst(1) + self._usual_catch_up()) * 125))
        self._rest = self.FIRST_REST if self._earned > 2 else min(2 * self._rest, longest)
        if self._trial_depth_at(limit) is None:
            self._rest = self.HOPELESS_REST
        self._next_try = self._ledger.tokens + self._rest
        self._running = False

    def _usual_catch_up(self) -> float:
        """Plain steps that the drafter's way back after a rest took lately."""
        return statistics.median_low(self._catch_up) if self._catch_up else 0.0

    def _trial_depth_at(self, limit: int) -> int | None:
        """The depth to try after a rest: the cheapest of those that would bring at least half of the best
        gain if acceptance were good, else if it were nearly perfect; None if even that would not pay."""
        for rate in (0.7, 0.95):
            speeds = self._speeds(limit, [rate] * self.max_depth, [1.0] * self.max_depth)
            best = max(speeds)
            if best > 1.02:
                good = [depth for depth, speed in enumerate(speeds) if speed >= 1 + (best - 1) / 2]
                return min(good, key=self._worst)
        return None

    def _try(self, limit: int) -> int:
        """0 while speculation rests; after that one drafting step, from which it runs on or rests again."""
        if self._ledger.tokens < self._next_try:
            return 0
        depth = self._trial_depth_at(limit) or 1
        if not self._ledger.affords(self._worst(depth) + self._usual_catch_up()):
            self._next_try = self._ledger.tokens + self.PATIENCE
            return 0
        self._acceptance.forget(2)
        self._running = self._tried = True
        self._earned = 0.0
        self._trial_depth = depth
        # Where the way there and back is what a try costs, a few more steps cost little and tell more.
        self._trial_judged = 1 + min(7, int(8 * self.table.change_ms() / self.table.plain_ms()))
        self._trial_steps = 3 + self._trial_judged
        return depth
