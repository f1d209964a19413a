"""How often drafts are right, and what speculation has lost. Pure: no clock, no model."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from ds4chat.engine.events import MAX_DEPTH


class Acceptance:
    """Conditional acceptance by position, where later outcomes count more than earlier ones. A position is
    judged only if all before it were accepted, so a rejected draft says nothing about the positions behind
    it: each is estimated from its own outcomes and from the mean of all."""

    PRIOR, PRIOR_WEIGHT = 0.6, 4.0
    """Acceptance before any outcome, and the number of outcomes that this counts for."""
    OPTIMISM, HOPE = 0.6, 1.3
    """Standard errors that the mean of all positions is raised by, where a depth is chosen and where it is
    decided whether to draft at all: drafting shows whether it pays, resting does not, and a depth that proves
    too small costs less than one that proves too large."""
    SHARED = 8.0
    """Outcomes that the mean of all positions counts for at each of them."""
    DECAY = 1 - 1 / 24
    """Weight that a step leaves to the outcomes before it."""
    KEPT = 16.0
    """Outcomes that those of an earlier text count for in all."""

    def __init__(self) -> None:
        self._right, self._judged = np.zeros(MAX_DEPTH), np.zeros(MAX_DEPTH)
        self._estimate()

    def add(self, judged: int, accepted: int) -> None:
        """Learn from a step in which the target judged and accepted so many drafts."""
        positions = np.arange(MAX_DEPTH)
        self._right = self._right * self.DECAY + (positions < accepted)
        self._judged = self._judged * self.DECAY + (positions < judged)
        self._estimate()

    def forget(self) -> None:
        """Another text may begin."""
        share = self.KEPT / max(self._judged.sum(), self.KEPT)
        self._right, self._judged = self._right * share, self._judged * share
        self._estimate()

    def _estimate(self) -> None:
        weight = self._judged.sum() + self.PRIOR_WEIGHT
        mean = (self._right.sum() + self.PRIOR_WEIGHT * self.PRIOR) / weight
        error = math.sqrt(mean * (1 - mean) / (weight + 1))
        self.rates = self._at(mean + self.OPTIMISM * error)
        """At positions 1.., to choose a depth by."""
        self.hopeful = self._at(mean + self.HOPE * error)
        """To decide by whether to draft."""

    def _at(self, mean: float) -> list[float]:
        """The rates of all positions where their mean is this."""
        rates = (self._right + self.SHARED * mean) / (self._judged + self.SHARED)
        return [min(float(rate), 0.99) for rate in rates]


class Ledger:
    """The loss of a reply against plain decoding, in plain steps: the duration of its steps minus the tokens
    that they emitted.

    No run of steps that emits WINDOW tokens or fewer may lose more than BOUND, apart from what the reply had
    gained before that run, of which as much again may be lost: otherwise a single deep draft that fails,
    after many that did not, would end speculation.
    """

    WINDOW = 256 + MAX_DEPTH + 1
    BOUND = 0.028 * 256
    """3 % of 256 tokens, less a margin for errors in the measured costs, and for what the drafter and its
    controller add to a plain step."""

    def __init__(self) -> None:
        self.tokens = 0
        self.loss = 0.0
        self._lowest: deque[tuple[int, float]] = deque([(0, 0.0)])
        """Tokens and loss at the ends of the latest steps that no later step went below, the lowest first."""

    def add(self, cost: float, emitted: int) -> None:
        """Book a step that took ``cost`` plain steps."""
        self.tokens += emitted
        self.loss += cost - emitted
        while self._lowest and self._lowest[-1][1] >= self.loss:
            self._lowest.pop()
        self._lowest.append((self.tokens, self.loss))
        while self._lowest[0][0] < self.tokens - self.WINDOW:
            self._lowest.popleft()

    @property
    def room(self) -> float:
        """Plain steps that may be lost now."""
        lowest = self._lowest[0][1]  # where the run that has lost most began
        return self.BOUND + min(max(0.0, -lowest), self.BOUND) - (self.loss - lowest)
