"""Pauses of Textual's pilots that end when the work is done, on a busy machine too."""

from __future__ import annotations

import asyncio

from textual import _wait

LONGEST = 60.0
"""Seconds after which an event loop that always has something to run is not waited for."""


async def wait_for_idle(min_sleep: float = _wait.SLEEP_GRANULARITY, max_sleep: float = 1) -> None:
    """As Textual's function of this name, and then until the event loop has nothing to run.

    Textual takes a process that has used little processor time for an idle one. On a busy machine that is
    also a process whose work waits for the processor.
    """
    await _wait.wait_for_idle(min_sleep, max_sleep)
    loop = asyncio.get_running_loop()
    end = loop.time() + LONGEST
    while loop._ready and loop.time() < end:  # type: ignore[attr-defined]
        await asyncio.sleep(0)
