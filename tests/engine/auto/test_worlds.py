"""Auto depth on machines of real size, whose costs were measured: what it reaches of the better of plain
decoding and the depth that is best in hindsight, and what a reply may lose."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from kits.world import MACHINES, best_fixed, run

from ds4chat.engine.auto.controller import AutoDepth


@pytest.mark.slow
@pytest.mark.parametrize("informed", [True, False])
@pytest.mark.parametrize("catch_up", [0.0, 0.085])
@pytest.mark.parametrize("name", MACHINES)
def test_auto_is_near_the_better_of_plain_and_the_best_depth(
    name: str, catch_up: float, informed: bool
) -> None:
    """Over all regions 0.93 in the geometric mean, over a text that changes 0.95, and in each region 0.90.
    Hardly a reply is below 0.97 of plain decoding, and none below 0.95."""
    machine = replace(MACHINES[name], catch_up=catch_up)
    best = best_fixed(machine, range(100, 103), informed=informed)
    auto = run(lambda: AutoDepth(machine.table()), machine, range(80, 100), informed=informed)
    shares = {region: speed / max(1.0, best[region]) for region, speed in auto.speed.items()}
    assert statistics.geometric_mean(shares.values()) >= 0.93, shares
    assert min(shares.values()) >= 0.90, shares
    assert auto.speed["mix"] / best["mix"] >= 0.95
    assert min(auto.replies) >= 0.95
    assert sum(speed < 0.97 for speed in auto.replies) <= len(auto.replies) / 20


@pytest.mark.parametrize("name", MACHINES)
def test_a_reply_loses_little_where_drafts_are_seldom_right(name: str) -> None:
    """Every region in turn, on a machine whose drafter has to catch up: no reply below 0.95 of plain
    decoding, and speculation pays where drafts are right."""
    machine = replace(MACHINES[name], catch_up=0.085)
    auto = run(lambda: AutoDepth(machine.table()), machine, range(1), rounds=2)
    assert min(auto.replies) >= 0.95
    assert auto.speed["0.95"] > 1.3


def test_without_measured_costs_nothing_is_drafted() -> None:
    """Plain decoding, whatever the text."""
    machine = MACHINES["F16"]
    auto = run(AutoDepth, machine, range(1), rounds=1)
    assert max(auto.replies) == pytest.approx(1.0, abs=0.02)
