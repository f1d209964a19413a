"""The frame rate, from processor seconds given by hand."""

from __future__ import annotations

import pytest

from ds4chat.tui.kit.pace import CROWDED_SHARE, FASTEST, SLOWEST, Pace


def paced(costs: list[float], *, crowded: bool) -> float:
    used = [0.0]
    pace = Pace(lambda: used[0])
    pace.crowded = crowded
    wait = 0.0
    for cost in costs:
        used[0] += cost
        wait = pace.wait()
    return wait


def test_cheap_frames_come_at_full_rate() -> None:
    assert paced([0.001] * 50, crowded=True) == FASTEST


def test_dear_frames_keep_to_their_share_of_a_core() -> None:
    assert paced([0.004] * 50, crowded=True) == pytest.approx(0.004 / CROWDED_SHARE, rel=1e-3)


def test_a_core_of_its_own_draws_at_full_rate() -> None:
    assert paced([0.014] * 50, crowded=False) == FASTEST


def test_no_frame_waits_for_ever() -> None:
    assert paced([5.0], crowded=True) == SLOWEST
