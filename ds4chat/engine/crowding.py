"""Whether the engine gets the processors that it needs. Arithmetic over events and two clocks.

ggml's threads spin while they wait for each other, so a process alone uses as many processors as it has
threads. Where others use them too, such as a second engine, each barrier waits for a thread that does not
run, and a step takes ten times as long or more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ds4chat.engine.events import Event, Loaded, Notice, Step

ENOUGH = 0.7
"""Share of the threads' processor time below which a warning is due. Two engines with a thread for each core
get half each; an engine alone gets more than this, even with the parts of a step that one thread does."""
LEAST_S = 2.0
"""Seconds of steps over which the share is measured."""


class Crowding:
    """Watches the events of an engine process. ``used`` gives the processor seconds of this process."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, used: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._used = used
        self._threads = 0
        """Of the loaded model; 0 where a GPU or a server does the work, or after the warning."""
        self._since = (0.0, 0.0)

    def notice(self, event: Event) -> Notice | None:
        """A warning after this event, once for each load, or None."""
        if isinstance(event, Loaded):
            self._threads = event.threads if event.device == "CPU" and event.server is None else 0
        if not isinstance(event, Step) or not self._threads:
            return None
        now = (self._clock(), self._used())
        if event.index == 0:
            self._since = now
        wall, used = now[0] - self._since[0], now[1] - self._since[1]
        if wall < LEAST_S:
            return None
        self._since = now
        share, threads = used / (wall * self._threads), self._threads
        if share >= ENOUGH:
            return None
        self._threads = 0
        got = f"got {share:.0%} of the time that"
        if threads == 1:
            whose = f"thread {got} it wanted. Let the other finish."
        else:
            whose = (
                f"{threads} threads {got} they wanted, and each waits for the slowest. Let the other finish, "
                f"or start one of the two with -t {threads // 2}."
            )
        return Notice(
            "warning",
            "Another program, such as a second ds4chat that answers, keeps the processors busy: the engine's "
            + whose,
        )
