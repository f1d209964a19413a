"""Python's garbage collector, kept from running while a reply streams: going through everything would hold up
a key, and the engine's threads, by some 50 ms."""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 50_000, 4, 1_000
"""Thresholds for a very long reply; replies of a usual length end before the first is reached."""
DUE = 10_000
"""New objects that are worth a collection when nothing runs."""
FULL_DUE = 10
"""Such collections that are worth a full one."""


def spare_replies() -> None:
    """Leave most collections to ``collect_if_due``, and out of all what exists now: it stays to the end."""
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


def collect_if_due() -> None:
    """Collect garbage, if there may be enough of it. Call it now and then while nothing runs."""
    young, middle, old = gc.get_count()
    if old >= FULL_DUE:
        gc.collect()
    elif middle or young >= DUE:
        gc.collect(1)
