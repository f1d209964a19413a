"""How often drafts are right, and what speculation has lost. Pure: no clock, no model."""

from __future__ import annotations

import math
from collections import deque

from ds4chat.engine.events import MAX_DEPTH


class Acceptance:
    """Conditional acceptance by position. A position is judged only where all before it were accepted, so a
    rejected draft says nothing about the positions behind it: each is estimated by its own outcomes and by
    the mean of all positions, where later outcomes count more than earlier ones."""

    PRIOR = 0.6
    PRIOR_WEIGHT = 4.0
    """Outcomes that the prior is worth."""
    OPTIMISM = 1.0
    """Standard errors that the mean of all positions is raised by: trying deeper drafts shows whether they
    would pay, and resting does not."""
    SHARED = 8.0
    """Outcomes that the mean of all positions is worth at each of them."""
    DECAY = 1 - 1 / 24
    """What a step leaves of the weight of the outcomes before it."""
    KEPT = 8.0
    """Outcomes that everything learned on an earlier text is worth on the next one."""

    def __init__(self) -> None:
        self._right = [0.0] * MAX_DEPTH
        self._judged = [0.0] * MAX_DEPTH

    def rates(self) -> list[float]:
        """Acceptance at positions 1.., estimated optimistically."""
        weight = sum(self._judged) + self.PRIOR_WEIGHT
        mean = (sum(self._right) + self.PRIOR_WEIGHT * self.PRIOR) / weight
        mean += self.OPTIMISM * math.sqrt(mean * (1 - mean) / (weight + 1))
        return [
            min((right + self.SHARED * mean) / (judged + self.SHARED), 0.99)
            for right, judged in zip(self._right, self._judged)
        ]

    def add(self, judged: int, accepted: int) -> None:
        """Learn from a step in which the target judged and accepted so many drafts."""
        for i in range(MAX_DEPTH):
            self._right[i] = self._right[i] * self.DECAY + (i < accepted)
            self._judged[i] = self._judged[i] * self.DECAY + (i < judged)

    def forget(self) -> None:
        """Another text may begin."""
        share = self.KEPT / max(sum(self._judged), self.KEPT)
        self._right = [right * share for right in self._right]
        self._judged = [judged * share for judged in self._judged]


class Ledger:
    """The loss of a reply against plain decoding, in plain steps: the duration of its steps minus the tokens
    that they emitted.

    No run of steps that emits WINDOW tokens or fewer may lose more than BOUND, apart from what the reply had
    gained before that run, of which as much again may be lost: otherwise a single deep draft that fails,
    after many that did not, would end speculation.
    """

    WINDOW = 256 + MAX_DEPTH + 1
    BOUND = 0.028 * 256
    """3 % of 256 tokens, less a margin for errors in the measured costs."""

    def __init__(self) -> None:
        self.tokens = 0
        self.loss = 0.0
        self._history: deque[tuple[int, float]] = deque([(0, 0.0)])
        """Tokens and loss at the ends of the latest steps."""

    @property
    def room(self) -> float:
        """Plain steps that may be lost now. The run that has lost most began where the loss was lowest."""
        lowest = min(loss for _, loss in self._history)
        return self.BOUND + min(max(0.0, -lowest), self.BOUND) - (self.loss - lowest)

    def add(self, cost: float, emitted: int) -> None:
        """Book a step that took ``cost`` plain steps."""
        self.tokens += emitted
        self.loss += cost - emitted
        self._history.append((self.tokens, self.loss))
        while self._history[0][0] < self.tokens - self.WINDOW:
            self._history.popleft()
