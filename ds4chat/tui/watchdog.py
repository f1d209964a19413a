"""Detects when the engine is silent for too long. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import monotonic
from typing import Literal

Phase = Literal["loading", "reading", "writing", "stopping"]

FACTOR = 20.0
"""A step that takes this many times its usual time is suspicious,"""
LEAST_SECONDS = 30.0
"""and never one that takes less than this."""
KILL_AFTER = 3.0
"""Seconds after which an engine that was stopped should have ended what it did."""
REMEMBERED = 32
"""Number of steps that the usual time is computed from."""

_WHAT: dict[Phase, str] = {"loading": "part of a load", "reading": "part of a prompt", "writing": "step"}


class Watchdog:
    """Says how long the engine may be silent, and when it was longer. It does not end the engine."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._phase: Phase | None = None
        self._since = 0.0
        self._usual: dict[Phase, deque[float]] = {phase: deque(maxlen=REMEMBERED) for phase in _WHAT}

    def expect(self, phase: Phase | None) -> None:
        """Expect signs of life from now on; None: no longer."""
        self._phase = phase
        self._since = self._clock()

    def sign(self, phase: Phase, seconds: float | None = None) -> None:
        """A sign of life arrived; what it reports took ``seconds``, or the time since the last sign. From an
        engine that is being stopped, it means nothing."""
        if self._phase == "stopping":
            return
        now = self._clock()
        self._usual[phase].append(now - self._since if seconds is None else seconds)
        self._phase, self._since = phase, now

    @property
    def limit(self) -> float:
        """Seconds after which the user is warned."""
        return KILL_AFTER if self._phase == "stopping" else max(LEAST_SECONDS, FACTOR * self._typical)

    @property
    def _typical(self) -> float:
        known = self._usual.get(self._phase) if self._phase else ()
        return median(known) if known else 0.0

    @property
    def complaint(self) -> str:
        """A sentence about the silence; empty while it is short enough. It does not change while the silence
        lasts."""
        if self._phase is None or self._clock() - self._since < self.limit:
            return ""
        if self._phase == "stopping":
            return "The engine does not stop. Esc again ends it; what came is kept."
        typical, what = self._typical, _WHAT[self._phase]
        usual = f", and a {what} usually takes {_shown(typical)}" if typical else ""
        return f"Nothing came from the engine for {_shown(self.limit)}{usual}."


def _shown(seconds: float) -> str:
    if seconds < 1:
        return f"{max(1, round(seconds * 1000))} ms"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
