"""What a bench measures, and how long that may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ds4chat.commands.arguments import UsageError
from ds4chat.commands.bench.workloads import Workload
from ds4chat.commands.options import BenchOptions
from ds4chat.engine.events import Depth

FEWEST_TOKENS = 16
"""Shortest reply whose speed means something."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how long that may take. A server's bench has no depths and no deadline."""

    depths: tuple[int, ...]
    deeper: tuple[int, ...]
    """Depths that are tried after them, one by one, as long as the deepest so far gains."""
    rounds: int
    """Most prompts of each kind of text."""
    tokens: int
    """Most tokens of a reply."""
    budget_s: float
    """Replies are shortened to fit into it, and a block that does not fit is not begun, except for the first
    one of each kind of text."""
    deadline_s: float
    """The measurement is broken off after this; may be infinite."""

    @property
    def settings(self) -> tuple[Depth, ...]:
        """One block: plain decoding as depth 0, the fixed depths, auto, plain decoding again."""
        return (0, *self.depths, *(("auto",) if self.depths else ()), 0)

    def blocks(self, workloads: Sequence[Workload]) -> list[tuple[Workload, int]]:
        """The prompts as kinds of text and indices, in turn over the kinds."""
        return [
            (workload, index)
            for index in range(self.rounds)
            for workload in workloads
            if index < len(workload.prompts)
        ]


FULL = Plan((1, 2, 3, 4, 6, 8), (12, 16), rounds=6, tokens=128, budget_s=600, deadline_s=float("inf"))
QUICK = Plan((1, 2, 4), (8, 16), rounds=2, tokens=64, budget_s=35, deadline_s=38)


def plan_of(options: BenchOptions, predict: int = -1) -> Plan:
    """The plan that the options ask for. ``predict``: most tokens of a reply; -1 is the plan's own number.
    Raises UsageError for replies too short to take a speed from."""
    plan = QUICK if options.quick else FULL
    if 0 <= predict < FEWEST_TOKENS:
        raise UsageError(
            f"-n {predict} is too short a reply to take a speed from: bench takes -n {FEWEST_TOKENS} or more."
        )
    return replace(plan, tokens=predict) if predict >= 0 else plan
