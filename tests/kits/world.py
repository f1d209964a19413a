"""Machines and texts that a depth controller is tried on: what each step costs is given, and so is how often
a draft is right, so that a run takes no model and no clock. Every run is seeded."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ds4chat.engine.auto.controller import AutoDepth
from ds4chat.engine.auto.costs import CostTable
from ds4chat.engine.drafters.hidden import caught_up_before

REGIONS: dict[str, Callable[[int], float]] = {
    "0.50": lambda token: 0.5,
    "0.70": lambda token: 0.7,
    "0.85": lambda token: 0.85,
    "0.95": lambda token: 0.95,
    "mix": lambda token: 0.97 if token // 96 % 2 == 0 else 0.3,
    "0.20": lambda token: 0.2,
}
"""Share of right drafts by the token of the reply."""
GOOD = ("0.70", "0.85", "0.95", "mix")
FIXED = (1, 2, 3, 4, 6, 8, 10, 12, 16)


@dataclass(frozen=True, slots=True)
class Machine:
    """Milliseconds: verification of 1..17 rows, drafting of 1..16 tokens, what the first and the second step
    of another size take longer, the rest of a plain and of a drafting step, and what each token that the
    drafter has to catch up with adds to a draft."""

    verify: tuple[float, ...]
    draft: tuple[float, ...]
    change: tuple[float, float] = (0.0, 0.0)
    overhead: tuple[float, float] = (0.05, 0.25)
    catch_up: float = 0.0

    def table(self) -> CostTable:
        """What measuring finds."""
        plain, drafting = self.overhead
        return CostTable(
            verify=[self.verify[0] + plain, *(ms + drafting for ms in self.verify[1:])],
            draft=[0.0, *self.draft],
            change=list(self.change),
            catch_up=self.catch_up,
        )


_Q4_K = (3.4, 4.02, 4.58, 5.33, 5.95, 6.6, 7.33, 7.96, 7.1, 7.3, 7.5, 7.7, 7.9, 8.1, 8.3, 8.5, 8.6)
_GPU_DRAFT = (0.95, 1.6, 2.2, 2.72, 3.2, 3.63, 4.1, 4.6, 5.1, 5.6, 6.1, 6.6, 7.1, 7.6, 8.1, 8.6)
MACHINES = {
    "F16": Machine(
        (4.82, 6.98, 6.97, 6.95, 7.25, 7.31, 7.41, 7.46, 7.8, 8.5, 8.4, 8.7, 9.2, 9.5, 9.8, 9.1, 7.2),
        _GPU_DRAFT,
        change=(1.3, 3.2),
    ),
    "Q4_K": Machine(_Q4_K, _GPU_DRAFT, change=(1.2, 1.6)),
    "Q4_K, dear changes": Machine(_Q4_K, _GPU_DRAFT, change=(1.3, 4.5)),
    "two cores": Machine(
        tuple(8.0 * (1 + 0.25 * k if k < 9 else 3.25 + 0.22 * (k - 9)) for k in range(17)),
        tuple(0.6 * k for k in range(1, 17)),
    ),
}
"""8B weights with an EAGLE-3 head on an H200, in F16 and Q4_K, the latter also with the changes of batch size
of another host; F16 weights of a small model on two cores."""


class FixedDepth(AutoDepth):
    """``depth`` drafts in every step, as far as the limit allows."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def choose(self, limit: int, behind: int = 0) -> int:
        return min(self.depth, limit)


class Reply(NamedTuple):
    """A simulated reply: its milliseconds, and of each step the depth, the drafts and the tokens emitted."""

    ms: float
    steps: list[tuple[int, int, int, float]]


class World:
    """Replies on one machine. informed: the drafter is surer of drafts that are right, and otherwise about
    equally sure of all."""

    def __init__(self, machine: Machine, seed: int, *, informed: bool = True) -> None:
        self.machine = machine
        self._rng = random.Random(seed)
        self._informed = informed

    def reply(self, controller: AutoDepth, region: str, tokens: int = 256) -> Reply:
        """Answer with so many tokens."""
        rng, machine, right = self._rng, self.machine, REGIONS[region]
        steps: list[tuple[int, int, int, float]] = []
        at, spent, rows, same, behind = 0, 0.0, 0, 0, 0
        controller.begin()
        while at < tokens:
            limit = min(tokens - at - 1, 16)
            lag = caught_up_before(behind)
            depth = controller.choose(limit, lag) if limit else 0
            drafted, accepted, calls, alive = 0, 0, 0, True
            rate = right(at)
            for position in range(1, depth + 1):
                good = rng.random() < rate
                sure = rng.random() < (0.8 if good else 0.4) if self._informed else True
                prob = rng.gauss(0.97, 0.02) if sure else rng.gauss(0.8, 0.1)
                calls += 1
                if not controller.keep_drafting(position, min(0.999, max(0.3, prob))):
                    break
                drafted += 1
                alive = alive and good
                accepted += alive
            rows, same = drafted + 1, same + 1 if rows == drafted + 1 else 0
            verify = machine.verify[drafted] + (machine.change[same] if same < 2 else 0.0)
            verify *= max(0.9, rng.gauss(1, 0.01))
            draft = machine.draft[calls - 1] if calls else 0.0
            rest = machine.overhead[depth > 0]
            emitted = min(accepted + 1, tokens - at)
            if depth:
                draft += lag * machine.catch_up
            behind = accepted if depth else behind + 1
            total = verify + draft + rest
            judged = min(drafted, accepted + 1)
            controller.observe(drafted, judged, accepted, draft, total, emitted)
            steps.append((depth, drafted, emitted, total))
            at, spent = at + emitted, spent + total
        return Reply(spent, steps)


@dataclass(frozen=True, slots=True)
class Result:
    """Speeds of a controller over plain decoding."""

    speed: dict[str, float]
    """By region, of all its replies together."""
    replies: list[float]
    """Of each reply."""


def run(
    make: Callable[[], AutoDepth],
    machine: Machine,
    seeds: range,
    *,
    informed: bool = True,
    rounds: int = 4,
    tokens: int = 256,
) -> Result:
    """Replies from each region in turn, in ``rounds`` by a new controller for each seed."""
    plain = tokens * (machine.verify[0] + machine.overhead[0])
    took: dict[str, list[float]] = {region: [] for region in REGIONS}
    for seed in seeds:
        world, controller = World(machine, seed, informed=informed), make()
        for _ in range(rounds):
            for region in REGIONS:
                took[region].append(world.reply(controller, region, tokens).ms)
    return Result(
        {region: plain / statistics.mean(ms) for region, ms in took.items()},
        [plain / ms for replies in took.values() for ms in replies],
    )


def best_fixed(machine: Machine, seeds: range, *, informed: bool = True) -> dict[str, float]:
    """By region, the speed of the depth that is best for it in hindsight, over plain decoding."""
    free = Machine(machine.verify, machine.draft, machine.change, machine.overhead)
    runs = [run(lambda d=depth: FixedDepth(d), free, seeds, informed=informed) for depth in FIXED]
    return {region: max(result.speed[region] for result in runs) for region in REGIONS}
