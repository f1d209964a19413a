"""How often drafts are right, by position and by the drafter's own probability, and what speculation has lost
against plain decoding. Pure: no clock, no model."""

from __future__ import annotations

import math
from collections import deque

from ds4chat.engine.events import MAX_DEPTH


class Acceptance:
    """Conditional acceptance by position: position i is judged only where all before it were accepted, so a
    draft that was cut off says nothing of the positions behind it.

    Each position is a decayed mean, drawn towards the mean of all. When the latest outcomes contradict what
    was expected of them, the text has changed, and what was known before them is forgotten.
    """

    PRIOR = 0.6
    PRIOR_WEIGHT = 2.0
    SHARED = 6.0
    """Outcomes as which the mean of all positions counts at each."""
    MEMORY = 64
    """Outcomes that weigh: each newer one takes 1/MEMORY off the older ones."""
    KEPT = 3.0
    """Outcomes as which what was known of another text counts."""
    SURPRISE = 6.0
    """Nats of likelihood by which a rate of their own must fit the latest outcomes better than what was
    expected of them."""
    LATEST = 16
    """Outcomes, at most, by which such a change is seen."""

    def __init__(self) -> None:
        self._hits = [0.0] * MAX_DEPTH
        self._seen = [0.0] * MAX_DEPTH
        self._all_hits = self._all_seen = 0.0
        self._latest: deque[tuple[bool, float]] = deque(maxlen=self.LATEST)
        """Outcomes, and how likely a right draft was taken to be."""

    def rates(self, optimism: float = 0.0) -> list[float]:
        """a_1.., drawn up by so many standard errors of the mean of all."""
        weight = self._all_seen + self.PRIOR_WEIGHT
        mean = (self._all_hits + self.PRIOR_WEIGHT * self.PRIOR) / weight
        hoped = mean + optimism * math.sqrt(mean * (1 - mean) / (weight + 1))
        return [
            min((hits + self.SHARED * hoped) / (seen + self.SHARED), 0.99)
            for hits, seen in zip(self._hits, self._seen)
        ]

    def add(self, judged: int, accepted: int) -> bool:
        """Take in one step's drafts. True where they show that the text has changed."""
        expected = self.rates()
        for i in range(judged):
            right = i < accepted
            self._hits[i] += right - self._hits[i] / self.MEMORY
            self._seen[i] += 1 - self._seen[i] / self.MEMORY
            self._all_hits += right - self._all_hits / self.MEMORY
            self._all_seen += 1 - self._all_seen / self.MEMORY
            self._latest.append((right, min(max(expected[i], 0.05), 0.95)))
        recent = self._changed() if judged else 0
        if recent:
            hits = sum(right for right, _ in list(self._latest)[-recent:])
            self.forget()
            self._hits = [0.0] * MAX_DEPTH
            self._seen = [0.0] * MAX_DEPTH
            self._all_hits, self._all_seen = float(hits), float(recent)
        return recent > 0

    def forget(self) -> None:
        """Another text begins: what is known weighs little."""
        for i, seen in enumerate(self._seen):
            share = min(1.0, self.KEPT / seen) if seen else 1.0
            self._hits[i] *= share
            self._seen[i] *= share
        share = min(1.0, self.KEPT / self._all_seen) if self._all_seen else 1.0
        self._all_hits *= share
        self._all_seen *= share
        self._latest.clear()

    def _changed(self) -> int:
        """How many of the latest outcomes are of another text; 0 where none seem to be."""
        best, found, hits, expected = self.SURPRISE, 0, 0, 0.0
        for count, (right, rate) in enumerate(reversed(self._latest), 1):
            hits += right
            expected += math.log(rate if right else 1 - rate)
            own = sum(n * math.log(n / count) for n in (hits, count - hits) if n)
            if own - expected > best:
                best, found = own - expected, count
        return found


class Calibration:
    """Acceptance by the drafter's own probability of its draft, in bins. It knows nothing of a text before it
    has seen it, and then takes the probability for what it says."""

    PRIOR = 8.0
    """Outcomes as which the probability itself counts."""
    MEMORY = 64
    BINS = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)

    def __init__(self) -> None:
        self._hits = [0.0] * (len(self.BINS) + 1)
        self._seen = list(self._hits)

    def _bin(self, prob: float) -> int:
        return sum(prob >= edge for edge in self.BINS)

    def rate(self, prob: float) -> float:
        """Expected acceptance of a draft with this probability."""
        i = self._bin(prob)
        return (self._hits[i] + self.PRIOR * prob) / (self._seen[i] + self.PRIOR)

    def add(self, prob: float, right: bool) -> None:
        """Take in one judged draft."""
        i = self._bin(prob)
        self._hits[i] += right - self._hits[i] / self.MEMORY
        self._seen[i] += 1 - self._seen[i] / self.MEMORY


class Ledger:
    """The loss of a reply against plain decoding, in plain steps: milliseconds of a step over a plain step's,
    minus the tokens it emitted.

    ``drawdown`` is the largest loss of any run of steps that ends now and began within the last WINDOW
    tokens. Holding it below a bound after every step holds the loss of every such run below that bound:
    a window's loss is at most the drawdown at its end. Of what the reply gained before such a run, as much
    as the bound once more may be lost again: else a single step of a deep draft that fails, after many that
    did not, would end speculation.
    """

    WINDOW = 256 + MAX_DEPTH + 1
    BOUND = 0.028 * 256
    """0.2 % is left for errors in the measured costs."""

    def __init__(self) -> None:
        self.tokens = 0
        self._loss = 0.0
        self._lowest: deque[tuple[int, float]] = deque([(0, 0.0)])

    @property
    def drawdown(self) -> float:
        """In plain steps, 0 or more."""
        return self._loss - self._lowest[0][1]

    @property
    def room(self) -> float:
        """What may be lost before the bound is reached, in plain steps."""
        gained = max(0.0, -self._lowest[0][1])
        return self.BOUND + min(gained, self.BOUND) - self.drawdown

    def add(self, cost: float, emitted: int) -> None:
        """Book one step of ``cost`` plain steps."""
        self.tokens += emitted
        self._loss += cost - emitted
        while self._lowest and self._lowest[-1][1] >= self._loss:
            self._lowest.pop()
        self._lowest.append((self.tokens, self._loss))
        while self._lowest[0][0] < self.tokens - self.WINDOW:
            self._lowest.popleft()
