"""Measures what AutoDepth has to know about this machine, in steps like those of a reply."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Literal

from ds4chat.engine.auto.costs import CostTable, by_drafts
from ds4chat.engine.drafters.base import Drafter, Policy
from ds4chat.engine.events import MAX_DEPTH
from ds4chat.engine.judge import choose
from ds4chat.engine.llama import Context

DEPTHS = (0, 1, 2, 4, 8, 3, 16, 6, 5, 7)
"""In the order in which they are measured, until time runs out."""
STEPS = 4
"""Of each depth. The first two pay for the change of size, and for what a GPU loads when it sees the size for
the first time; of the others the fastest counts."""
CHANGES = 6
"""Changes of size that are timed, by two steps each, once every size has been seen."""
NOTICEABLE = 0.05
"""Share of a plain step below which a change counts as free, since the steps' times scatter as much."""
BEHIND = 2
"""Batches of the largest size that the drafter has to catch up with when that is measured."""
ROOM = STEPS * len(DEPTHS) + 2 * CHANGES + 2 * (BEHIND * MAX_DEPTH + 1) + MAX_DEPTH + 2
"""Tokens of context that measuring takes."""

_KEEP_ALL = Policy(0.0, lambda token: False, lambda position, prob: True)


class _Interrupted(Exception):
    """Something more urgent came up."""


def measure_costs(
    target: Context,
    drafter: Drafter,
    tokens: list[int],
    last: int,
    interrupted: Callable[[], bool],
    budget_s: float,
) -> CostTable | None:
    """The costs after ``tokens``, which both caches hold, and to which what is decoded is added; None if
    ``interrupted`` said True before the end. Raises LlamaError.

    ``budget_s``: seconds after which no further depth is begun.
    """

    def decode(rows: int, keep: int, outputs: Literal["all", "none"] = "all") -> None:
        n, batch = len(tokens), [last] * rows
        target.decode(batch, n, outputs=outputs)
        if outputs == "all":
            for row in target.logits(rows):
                choose(row)
        tokens.extend(batch[:keep])
        drafter.observe(batch, n, keep)
        if keep < rows:
            target.remove_from(n + keep)

    def step(depth: int) -> tuple[float, float]:
        """Milliseconds of the draft and of the rest of a step whose drafts all fail."""
        if interrupted():
            raise _Interrupted
        began = time.perf_counter()
        if depth:
            drafter.draft(tokens, last, depth, _KEEP_ALL)
        drafted = time.perf_counter()
        decode(depth + 1, 1)
        return (drafted - began) * 1000, (time.perf_counter() - drafted) * 1000

    began = time.perf_counter()
    verify: dict[int, float] = {}
    draft = {0: 0.0}
    try:
        for depth in DEPTHS:
            late = depth > 1 and time.perf_counter() - began > budget_s
            if late or depth > drafter.max_depth:
                continue
            drafting, verifying = zip(*(step(depth) for _ in range(STEPS)))
            draft[depth], verify[depth] = min(drafting), min(verifying[2:])
        changes = [[step(depth)[1] - verify[depth] for _ in range(2)] for depth in (0, 1) * (CHANGES // 2)]
        catch_up = 0.0
        for _ in range(2):  # a GPU loads what so many tokens need when they come for the first time
            for _ in range(BEHIND):
                decode(MAX_DEPTH + 1, MAX_DEPTH, "none")
            behind = drafter.behind(len(tokens))
            drafting_ms, _ = step(1)
            catch_up = max(0.0, drafting_ms - draft[1]) / behind if behind else 0.0
    except _Interrupted:
        return None
    change = [statistics.median(both) for both in zip(*changes)]
    noticeable = [ms if ms > NOTICEABLE * verify[0] else 0.0 for ms in change]
    return CostTable(by_drafts(verify), by_drafts(draft), noticeable, catch_up)
