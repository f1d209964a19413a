"""What AutoDepth has to know of this machine, measured in steps like a reply's whose drafts all fail."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

from ds4chat.engine.auto.costs import CostTable
from ds4chat.engine.drafters.base import Drafter, Policy
from ds4chat.engine.events import MAX_DEPTH
from ds4chat.engine.judge import choose
from ds4chat.engine.llama import Context

DEPTHS = (1, 2, 4, 8, 3, 16, 6, 5, 7)
"""In the order in which they are measured: where time runs out, those before are what auto takes."""
STEPS = 4
"""Of each depth: two that pay for the change of size and for what a GPU loads when it sees that size for the
first time, and two of which the faster one counts."""
CHANGES = 6
"""Changes of size that are timed once every size has been seen, two steps each."""
BEHIND = 2 * MAX_DEPTH
"""Tokens that the drafter has to catch up with, or more, when that is measured."""
BUDGET = 150
"""Plain steps' time that measuring takes at most, if that is more than BUDGET_S."""
BUDGET_S = 1.0
ROOM = STEPS * (len(DEPTHS) + 1) + 2 * CHANGES + 2 * (BEHIND + 1) + MAX_DEPTH + 2
"""Tokens of context that it takes."""

_TAKES_ALL = Policy(0.0, lambda token: False, lambda position, prob: True)


def measure_costs(
    target: Context,
    drafter: Drafter,
    tokens: list[int],
    last: int,
    interrupted: Callable[[], bool],
    budget_s: float,
) -> CostTable | None:
    """The costs after ``tokens``, which both caches hold, and to which what is decoded is added; None where
    ``interrupted`` said in time that it has to wait. Raises LlamaError.

    ``budget_s``: seconds after which no further depth is begun.
    """
    began = time.perf_counter()
    verify: dict[int, float] = {}
    draft: dict[int, float] = {}
    overhead = {0: 0.0, 1: 0.0}
    for depth in (0, *DEPTHS):
        spent = time.perf_counter() - began
        allowed = min(budget_s, max(BUDGET_S, BUDGET * verify[1] / 1000)) if draft else math.inf
        if depth > drafter.max_depth or spent > allowed:
            continue
        taken: list[float] = []
        for _ in range(STEPS):
            if interrupted():
                return None
            drafted, drafting, verifying, rest = _step(target, drafter, tokens, last, depth)
            taken.append(verifying)
            if drafted:
                draft[drafted] = min(drafting, draft.get(drafted, drafting))
            elif depth:
                draft[depth] = min(drafting, draft.get(depth, drafting))
            overhead[depth > 0] = rest
        verify[depth + 1] = min(taken[2:])
    if not draft:
        return None
    changes: list[list[float]] = []
    for number in range(CHANGES):
        if interrupted():
            return None
        depth = number % 2
        took = [_step(target, drafter, tokens, last, depth)[2] for _ in range(2)]
        changes.append([ms - verify[depth + 1] for ms in took])
    catch_up = 0.0
    for _ in range(2):  # a GPU loads what so many tokens need when they come for the first time
        for _ in range(BEHIND // MAX_DEPTH):
            if interrupted():
                return None
            # A step that drafted elsewhere, and failed at its last draft.
            rows = [last] * (MAX_DEPTH + 1)
            target.decode(rows, len(tokens), outputs="none")
            _keep(target, drafter, tokens, rows, MAX_DEPTH)
        behind = drafter.behind(len(tokens))
        if behind:
            drafting = _step(target, drafter, tokens, last, 1)[1]
            catch_up = max(0.0, drafting - draft.get(1, drafting)) / behind
    noise = CostTable.NOTICEABLE * verify[1]
    first, second = (max(0.0, statistics.median(change)) for change in zip(*changes))
    return CostTable(
        verify,
        draft,
        (first if first > noise else 0.0, second if second > noise else 0.0),
        (overhead[0], overhead[1]),
        catch_up,
    )


def _step(
    target: Context, drafter: Drafter, tokens: list[int], last: int, depth: int
) -> tuple[int, float, float, float]:
    """One step whose drafts are all dropped: how many tokens were drafted, and milliseconds of the draft, of
    the verification of ``depth`` of them, and of the rest."""
    t0 = time.perf_counter()
    drafted = len(drafter.draft(tokens, last, depth, _TAKES_ALL).tokens) if depth else 0
    t1 = time.perf_counter()
    rows = [last] * (depth + 1)
    n = len(tokens)
    target.decode(rows, n)
    t2 = time.perf_counter()
    for row in target.logits(len(rows)):
        choose(row)
    _keep(target, drafter, tokens, rows, 1)
    t3 = time.perf_counter()
    return drafted, (t1 - t0) * 1000, (t2 - t1) * 1000, (t3 - t2) * 1000


def _keep(target: Context, drafter: Drafter, tokens: list[int], rows: Sequence[int], keep: int) -> None:
    """Commit the first ``keep`` of what was decoded, and drop the rest."""
    n = len(tokens)
    tokens += rows[:keep]
    drafter.observe(rows, n, keep)
    if keep < len(rows):
        target.remove_from(n + keep)
