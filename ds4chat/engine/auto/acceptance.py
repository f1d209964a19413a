"""What AutoDepth knows besides costs: acceptance by position and by the drafter's confidence, the loss
against plain decoding so far, and what drafts are worth as a stake out of it. Pure: no clock, no model."""

from __future__ import annotations

import math
from collections import deque

from ds4chat.engine.events import MAX_DEPTH

# ---------------------------------------------------------------------------------------- acceptance


class Share:
    """The share of successes in a stream whose share may change: a decayed mean that starts anew when the
    latest outcomes contradict it."""

    __slots__ = ("_last", "hits", "weight")

    MEMORY = 100
    """Outcomes that weigh: each newer one takes 1/MEMORY off the older ones."""
    SURPRISE = 7.0
    """Nats of likelihood by which the latest outcomes must fit a share of their own better than the mean:
    about one false alarm in 250 when it is tested at every outcome, and its cost is a few tokens."""

    def __init__(self) -> None:
        self.hits = 0.0
        self.weight = 0.0
        self._last: deque[int] = deque(maxlen=16)

    def mean(self, prior: float, prior_weight: float) -> float:
        """The share, drawn towards ``prior`` as if that had been seen ``prior_weight`` times."""
        return (self.hits + prior_weight * prior) / (self.weight + prior_weight)

    def add(self, hit: bool) -> bool:
        """Take in one outcome. True when it showed that the share has changed."""
        self.average(hit)
        self._last.append(int(hit))
        mean = min(max(self.hits / self.weight, 0.02), 0.98)
        if self.weight < 10 or (mean if hit else 1 - mean) > 0.55:
            return False  # only an outcome that was not to be expected can show a change
        best, best_hits, best_count = 0.0, 0, 0
        hits = 0
        for count, outcome in enumerate(reversed(self._last), 1):
            hits += outcome
            surprise = _divergence(hits / count, mean) * count
            if surprise > best:
                best, best_hits, best_count = surprise, hits, count
        if best < self.SURPRISE:
            return False
        self.hits, self.weight = float(best_hits), float(best_count)
        self._last.clear()
        return True

    def average(self, hit: bool) -> None:
        """Take in one outcome without a test for change."""
        decay = 1 - 1 / self.MEMORY
        self.hits = self.hits * decay + hit
        self.weight = self.weight * decay + 1

    def forget(self, weight: float) -> None:
        """Keep the share, but as if it had been seen ``weight`` times at most."""
        if self.weight > weight:
            self.hits *= weight / self.weight
            self.weight = weight
        self._last.clear()

    def fade(self, factor: float) -> None:
        """Let the evidence age by ``factor`` without a new outcome."""
        self.hits *= factor
        self.weight *= factor


def _divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of a coin p from a coin q, in nats."""
    total = 0.0
    if p > 0:
        total += p * math.log(p / q)
    if p < 1:
        total += (1 - p) * math.log((1 - p) / (1 - q))
    return total


class Acceptance:
    """Conditional acceptance by position, and how often a draft reaches a position at all."""

    PRIOR = 0.5
    NEIGHBOUR = 5.0
    CHANGED = 8.0
    STALE = 1 - 1 / 300

    def __init__(self, max_depth: int) -> None:
        self.accepted = [Share() for _ in range(max_depth)]
        self.reached = [Share() for _ in range(max_depth)]

    def observe(self, asked: int, drafted: int, judged: int, accepted: int) -> None:
        """Take in one drafting step. Where one position changed, the others keep little of what they knew."""
        changed = False
        for index, share in enumerate(self.accepted):
            if index < judged:
                changed |= share.add(index < accepted)
            else:
                share.fade(self.STALE)
        for index in range(min(asked, drafted + 1, len(self.reached))):
            self.reached[index].average(index < drafted)
        if changed:
            self.forget(self.CHANGED)

    def forget(self, weight: float) -> None:
        """Keep every share as if it had been seen ``weight`` times at most."""
        for share in (*self.accepted, *self.reached):
            share.forget(weight)

    def rates(self, optimism: float) -> tuple[list[float], list[float]]:
        """(a_1.., r_1..): acceptance given that the position was judged; presence of a draft given that the
        one before it was there. A position with little evidence is drawn towards the one before it.
        ``optimism``: standard errors added to a_1, whose evidence is the scarcest after a rest."""
        accepted: list[float] = []
        prior = self.PRIOR
        for index, share in enumerate(self.accepted):
            rate = share.mean(prior, 1.5 if index == 0 else self.NEIGHBOUR)
            prior = rate
            if index == 0:
                spread = min(max(rate, 0.1), 0.9)
                rate = min(1.0, rate + optimism * math.sqrt(spread * (1 - spread) / (share.weight + 2.5)))
            accepted.append(rate)
        return accepted, [share.mean(1.0, 1) for share in self.reached]


class Calibration:
    """Acceptance by the drafter's own probability of its draft, in ten bins."""

    NEEDED = 32
    """Judged drafts before the bins are used."""
    PRIOR = 20
    """Outcomes as which the probability itself counts."""

    def __init__(self) -> None:
        self._hits = [0.0] * 10
        self._weight = [0.0] * 10
        self.seen = 0

    @staticmethod
    def bin(prob: float) -> int:
        """The bin of a probability 0..1."""
        return min(9, max(0, int(prob * 10)))

    def rate(self, prob: float) -> float:
        """Expected acceptance of a draft with this probability."""
        index = self.bin(prob)
        return (self._hits[index] + self.PRIOR * prob) / (self._weight[index] + self.PRIOR)

    def forget(self, weight: float) -> None:
        """Keep every bin's share as if it had been seen ``weight`` times at most: another text may be surer
        or less sure at the same probability."""
        for index, seen in enumerate(self._weight):
            if seen > weight:
                self._hits[index] *= weight / seen
                self._weight[index] = weight

    def add(self, bin_index: int, accepted: bool) -> None:
        """Take in one judged draft."""
        self.seen += 1
        self._hits[bin_index] = self._hits[bin_index] * (1 - 1 / 64) + accepted
        self._weight[bin_index] = self._weight[bin_index] * (1 - 1 / 64) + 1


# ---------------------------------------------------------------------------------------- the loss bound


class Ledger:
    """The loss against plain decoding, in plain steps: milliseconds of a step over a plain step's, minus the
    tokens it emitted.

    ``drawdown`` is the largest loss of any run of steps that ends now and began within the last WINDOW
    tokens. Holding it below a bound after every step holds the loss of every such run below that bound:
    a window's loss is at most the drawdown at its end. A new reply may lose RENEWED in any case, so that the
    bound holds within each reply, and over several short ones as far as they do not use that up.
    """

    WINDOW = 256 + MAX_DEPTH + 1
    BOUND = 0.028 * 256
    """0.2 % is left for errors in the measured costs."""
    START = 4.0
    """The bound of the first token for steps that are only to tell something, so that a short reply pays
    little for what is learned in it; it rises by 0.03 a token up to BOUND."""

    RENEWED = 2.0
    """What a new reply may lose at the least, whatever the replies before it lost: its text is another."""

    def __init__(self) -> None:
        self.tokens = 0
        self._loss = 0.0
        self._lowest_of_reply = 0.0
        self._lowest: deque[tuple[int, float]] = deque([(0, 0.0)])

    @property
    def drawdown(self) -> float:
        """In plain steps, 0 or more."""
        return self._loss - self._lowest[0][1]

    def add(self, cost: float, emitted: int) -> None:
        """Book one step of ``cost`` plain steps."""
        self.tokens += emitted
        self._loss += cost - emitted
        while self._lowest and self._lowest[-1][1] >= self._loss:
            self._lowest.pop()
        self._lowest.append((self.tokens, self._loss))
        self._lowest_of_reply = min(self._lowest_of_reply, self._loss)
        while self._lowest[0][0] < self.tokens - self.WINDOW:
            self._lowest.popleft()

    def begin(self) -> None:
        """A new reply starts."""
        self._lowest_of_reply = self._loss

    @property
    def room(self) -> float:
        """What may be lost before the bound is reached, in plain steps; what a new reply may lose at the
        least."""
        return max(self.BOUND - self.drawdown, self.RENEWED - (self._loss - self._lowest_of_reply))

    def affords(self, loss: float) -> bool:
        """Whether a step that may lose this much and is only hoped to bring more keeps the tighter bound of
        the first tokens, or what each reply may lose at the least."""
        bound = min(self.BOUND, self.START + 0.03 * self.tokens)
        return self.drawdown + loss <= bound or self._loss - self._lowest_of_reply + loss <= self.RENEWED


class Stake:
    """The drafts of a step, as a stake out of what the ledger allows to lose."""

    __slots__ = ("assumed", "excess", "planned", "room", "sure")

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, room: float) -> None:
        """Nothing is drafted yet; ``room`` is what may be lost, in plain steps."""
        self.room = room
        self.sure: list[float] = []
        """Expected acceptance of each draft, given that of all before it."""
        self.excess = {0: 0.0}
        """By depth, the plain steps that such a step costs more than a plain one."""
        self.planned = 0
        """The depth that was best when drafts after the latest one were ``assumed`` to be so sure."""
        self.assumed = 0.0

    def value(self, depth: int, sure: float) -> float:
        """Expected logarithm of what may be lost after a step of this depth over what may be lost before it,
        where drafts behind those made are taken to be accepted with ``sure``."""
        room, excess = self.room, self.excess[depth]
        if excess >= room:
            return -math.inf
        made = len(self.sure)
        total, reached = 0.0, 1.0
        for accepted in range(depth):
            rate = self.sure[accepted] if accepted < made else sure
            total += reached * (1 - rate) * math.log1p((accepted - excess) / room)
            reached *= rate
        return total + reached * math.log1p((depth - excess) / room)
