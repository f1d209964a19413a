"""How often to draw while a reply streams. Pure: the caller passes the time used."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

FASTEST = 1 / 20
SLOWEST = 1 / 4
"""Seconds between two frames."""

CROWDED_SHARE = 0.02
"""Share of one core that drawing may take when the engine's threads occupy every core. ggml's threads wait
for each other at barriers, so a core that draws makes all of them wait."""
FREE_SHARE = 0.5
"""The same when a core is free."""


class Pace:
    """The wait before the next frame, from what the process has used since the last one.

    ``clock`` returns the processor seconds used by this process so far.
    """

    def __init__(self, clock: Callable[[], float] = process_time) -> None:
        self._clock = clock
        self._used = clock()
        self._cost = 0.0
        self.crowded = True

    def wait(self) -> float:
        """Seconds until the next frame: the mean cost of a frame over the share that is allowed."""
        now = self._clock()
        spent, self._used = now - self._used, now
        self._cost += (spent - self._cost) / 4
        share = CROWDED_SHARE if self.crowded else FREE_SHARE
        return min(max(self._cost / share, FASTEST), SLOWEST)
