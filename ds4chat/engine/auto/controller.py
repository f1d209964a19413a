"""Depth "auto": the number of drafts that pays best. Pure: no clock, no model."""

from __future__ import annotations

from collections.abc import Sequence

from ds4chat.engine.auto.acceptance import Acceptance, Ledger
from ds4chat.engine.auto.costs import CostTable


class AutoDepth:
    """Chooses for each step the depth k with the most expected tokens per millisecond, E(k) / T(k).

    E(k) is 1 + the sum over i <= k of a_1 * .. * a_i, with the acceptances a_i that Acceptance estimates.
    T(k) comes from ``table``, without which nothing is drafted.

    Ledger keeps the loss against plain decoding below 3 % of any 256 tokens, or 6 % where the reply gained as
    much before. It does not rely on the estimates: a step is affordable only if the loss stays within bounds
    when all its drafts fail.
    """

    REST = 24
    """Tokens of the first rest of a reply."""
    LONGEST_REST = 1024
    """Tokens without a draft after which one is made whatever the costs say, to measure them again."""
    AFFORDED = 2
    """Steps that may fail at the depth that is chosen, if there is such a depth."""
    SPREAD = 32
    """Tokens over which the cost of a change of the batch size is spread."""
    FREE_DRAFT = 0.02
    """Share of a plain step up to which a draft costs next to nothing."""

    def __init__(self, table: CostTable | None = None) -> None:
        self.table = table
        self._acceptance = Acceptance()
        self._ledger = Ledger()
        self._running = False
        self._wake = 0
        """Token of the reply at which the rest ends."""
        self._failed = self._failed_replies = 0
        """Runs of this reply that ended, and replies in a row that lost by them."""
        self._undrafted = 0
        """Tokens since the last verified draft, those of earlier replies included."""
        self._rows = self._same = 0
        """Rows of the last batch, and the number of batches of this size in a row."""
        self._usual_prob = 0.0
        """Mean of the drafter's probabilities; 0 until it gives one."""
        # The current step:
        self._depth = self._behind = self._passes = 0
        self._chance = 1.0
        """That all its drafts so far are accepted."""
        self._speed = 0.0
        """Tokens per millisecond that the time of a draft would bring otherwise."""

    def begin(self) -> None:
        """A new reply. Speculation is tried at once, or later after several replies that lost by it."""
        if self._ledger.loss < 0:
            self._failed_replies = 0
            self._acceptance.forget()
        else:
            self._failed_replies += self._failed > 0
            self._acceptance = Acceptance()
        rest = min(self.REST * self._failed_replies, self.LONGEST_REST)
        self._wake = max(0, rest - self._undrafted)
        self._ledger = Ledger()
        self._running = False
        self._failed = self._rows = self._same = self._depth = 0

    def choose(self, limit: int, behind: int = 0) -> int:
        """The depth of the next step, 0 to ``limit``, for a drafter ``behind`` by so many tokens.

        Speculation rests or runs. A run begins with a new reply, or when a rest is over, with an estimate of
        acceptance that is optimistic until drafts have failed. It ends when no depth is expected to pay, or
        none is affordable, and the rest after it is twice as long as the one before.

        A drafter that costs next to nothing and gives a probability with each draft, as lookup does, never
        rests: it is asked before every step, and each of its drafts has to be worth its verification.
        """
        self._behind, self._passes, self._chance, self._depth = behind, 0, 1.0, 0
        table = self.table
        if table is None or (limit := min(limit, table.depth)) <= 0:
            return 0
        if self._undrafted >= self.LONGEST_REST:
            self._running, self._depth = True, 1
        elif self._never_rests(table):
            self._running, self._depth, self._speed = False, limit, 1 / table.plain_ms
        elif self._running or self._ledger.tokens >= self._wake:
            self._depth = self._best(table, limit)
            if self._depth == 0:
                self._wake = self._ledger.tokens + min(self.REST << self._failed, self.LONGEST_REST)
                self._failed += self._running
                self._acceptance = Acceptance()
            self._running = self._depth > 0
        return self._depth

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """False where the draft, with the best continuation behind it, is expected to bring fewer tokens than
        its time would bring otherwise."""
        self._passes += 1
        table = self.table
        if table is None or draft_prob is None or self._undrafted >= self.LONGEST_REST:
            return True
        self._usual_prob = self._usual_prob or max(draft_prob, 0.01)
        rate = draft_prob
        if not self._never_rests(table):
            # Drafters are more or less sure of themselves than they should be: acceptance sets the level.
            rate = min(self._acceptance.rates[position - 1] * draft_prob / self._usual_prob, 0.99)
        if not self._pays(table, position, rate):
            return False
        self._chance *= rate
        self._usual_prob += (draft_prob - self._usual_prob) / 16
        return True

    def observe(
        self, drafts: int, judged: int, accepted: int, draft_ms: float, total_ms: float, emitted: int
    ) -> None:
        """Learn the costs and the acceptance from one step, and book what it lost or gained. ``drafts`` were
        verified, in a batch of one row more; ``judged`` are the accepted ones, and the rejected one if there
        was one. ``emitted``: tokens added to the reply."""
        table = self.table
        if table is None:
            return
        passes = max(self._passes, drafts, 1) if self._depth else 0
        if drafts + 1 != self._rows:
            self._rows, self._same = drafts + 1, 0
        # A plain step loses nothing, unless drafts before it have changed the size of the batch. A stalled
        # step says nothing about the next ones.
        cost = 1.0
        if passes or (self._same < 2 and self._ledger.loss):
            usual = table.step_ms(drafts, passes) + table.change_ms(self._same)
            cost = min(total_ms, 2 * (usual + self._behind * table.catch_up)) / table.plain_ms
        self._ledger.add(cost, max(1, emitted))
        table.learn(drafts, passes, draft_ms, total_ms - draft_ms, self._same, self._behind)
        self._same += 1
        self._depth = 0
        self._undrafted = 0 if drafts else self._undrafted + emitted
        if passes:
            self._acceptance.add(judged, accepted)

    def _never_rests(self, table: CostTable) -> bool:
        return self._usual_prob > 0 and table.draft[1] <= self.FREE_DRAFT * table.plain_ms

    def _best(self, table: CostTable, limit: int) -> int:
        """The depth that pays best, of those with AFFORDED affordable steps, or else one; 0 if none pays."""
        rates, hopeful = self._acceptance.rates, self._acceptance.hopeful
        speeds, hoped = self._speeds(table, rates[:limit]), self._speeds(table, hopeful[:limit])
        plain = 1 / (table.plain_ms + self._change_ms(table, 0) / self.SPREAD)
        for steps in (self.AFFORDED, 1):
            for depth in sorted(speeds, key=speeds.__getitem__, reverse=True):
                if hoped[depth] > plain and self._affordable(table, depth, steps):
                    self._speed = hoped[depth]
                    return depth
        return 0

    def _speeds(self, table: CostTable, rates: Sequence[float]) -> dict[int, float]:
        """Expected tokens per millisecond of each depth, if this is the acceptance at its positions."""
        speeds = {}
        chance = tokens = 1.0
        for depth, rate in enumerate(rates, 1):
            chance *= rate
            tokens += chance
            change_ms = self._change_ms(table, depth) / self.SPREAD
            speeds[depth] = tokens / (table.step_ms(depth) + tokens * change_ms)
        return speeds

    def _affordable(self, table: CostTable, drafts: int, steps: int) -> bool:
        """Whether the loss stays within bounds if so many steps of so many drafts fail entirely, with the
        changes of size to them and back."""
        loss_ms = steps * (table.step_ms(drafts) - table.plain_ms) + self._behind * table.catch_up
        loss_ms += self._change_ms(table, drafts) + table.change_ms()
        return loss_ms <= self._ledger.room * table.plain_ms

    def _change_ms(self, table: CostTable, drafts: int) -> float:
        return table.change_ms(self._same if drafts + 1 == self._rows else 0)

    def _pays(self, table: CostTable, position: int, rate: float) -> bool:
        """Whether a draft with this chance, with the best continuation behind it, is expected to bring the
        tokens that its time would bring otherwise."""
        usual = 0 if self._never_rests(table) else self._depth

        def ms(drafts: int, drafted: int) -> float:
            back_ms = table.change_ms() if drafts != usual else 0.0
            return table.step_ms(drafts, drafted) + self._change_ms(table, drafts) + back_ms

        before_ms = ms(position - 1, position)
        gain, chance = 0.0, self._chance
        for drafts in range(position, self._depth + 1):
            chance *= rate
            gain += chance
            worth = gain > self._speed * (ms(drafts, drafts) - before_ms)
            if worth and self._affordable(table, drafts, 1):
                return True
        return False
