"""Step times from recorded steps, by numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from kits.recorded import draft, step

from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.analysis.times import StepTimes, plain_times
from ds4chat.analysis.whatif import what_if
from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Phases, Step
from ds4chat.engine.stats import Stats

PLAIN = Phases(0, 10, 0.5, 0.5, 0, 11)
DRAFTING = Phases(1.5, 16, 0.25, 0.25, 0, 18)


def drafting(index: int, ms: Phases = DRAFTING) -> Step:
    return step(index, draft("+++"), depth=3, ms=ms)


def a_pass(index: int, ms: Phases = PLAIN) -> Step:
    return replace(step(index, [], depth=0, ms=ms), baseline=True)


def rows_of(*steps: Step) -> JudgedRows:
    return rows_from_steps(replace(one, index=index) for index, one in enumerate(steps))


def test_the_parts_of_a_step_make_up_its_time() -> None:
    """A plain step of 11 ms; with 3 drafts 1.5 draft, 16 verify, 0.5 the rest."""
    times = StepTimes(rows_of(drafting(0), drafting(1), a_pass(2)))
    assert times.step_ms(0) == pytest.approx(11)
    assert times.step_ms(3) == pytest.approx(18)
    assert [times.timed(drafts) for drafts in (0, 1, 2, 3, 4)] == [True, False, False, True, False]


def test_what_was_not_timed_lies_between_what_was() -> None:
    """Verification 10 ms at one row and 16 at four: 14 at three, 18 at five."""
    times = StepTimes(rows_of(drafting(0), a_pass(1)))
    assert times.step_ms(2) == pytest.approx(14 + 1.5 + 0.5)
    assert times.step_ms(4) == pytest.approx(18 + 1.5 + 0.5)


def test_the_same_settings_give_the_recorded_speed_however_the_last_steps_went() -> None:
    """2,000 steps of 18 ms and 15 of 60, four tokens each, the last plain ones among them."""
    slow = Phases(1.5, 58, 0.25, 0.25, 0, 60)
    steps = [*(drafting(i) for i in range(2000)), *(drafting(i, slow) for i in range(15))]
    rows = rows_of(*steps)
    found = what_if(rows, gate=0.0)
    assert not found.estimate
    assert found.tokens_per_s == pytest.approx(2015 * 4 / (2000 * 18 + 15 * 60) * 1000)


def test_an_interrupted_step_does_not_make_its_depth_dear() -> None:
    """Depth 1 was timed five times, once at 500 ms: its share of that is spread over all steps alike."""
    one = Phases(0.5, 12, 0.25, 0.25, 0, 13)
    stalled = Phases(0.5, 499, 0.25, 0.25, 0, 500)
    short = [step(0, draft("+"), depth=1, ms=ms) for ms in (one, one, stalled, one, one)]
    times = StepTimes(rows_of(*short, *(drafting(i) for i in range(100))))
    scale = (4 * 13 + 500 + 1800) / (5 * 13 + 1800)
    assert times.step_ms(1) == pytest.approx(13 * scale)
    assert times.step_ms(3) == pytest.approx(18 * scale)


def test_depth_0_is_as_fast_as_the_baseline_says_and_no_other() -> None:
    steps = [a_pass(0), *(drafting(i) for i in range(20)), a_pass(21, Phases(0, 30, 0.5, 0.5, 0, 31))]
    rows = rows_of(*steps)
    stats = Stats()
    for index, one in enumerate(steps):
        stats.fold(replace(one, index=index))
    found = what_if(rows, depth=0)
    assert found.speedup == pytest.approx(1.0)
    assert found.plain_ms == pytest.approx(stats.plain.ms)
    assert found.tokens_per_s == pytest.approx(stats.plain.tokens_per_s)


def test_plain_steps_for_the_baseline_stay_plain_at_the_recorded_depth() -> None:
    """They would be plain in a run at that depth as well: the record determines every step."""
    steps = [replace(a_pass(0), depth=3), *(drafting(i) for i in range(20)), replace(a_pass(21), depth=3)]
    found = what_if(rows_of(*steps), depth=3)
    assert not found.estimate
    assert (found.steps, found.judged) == (22, 60)


def test_each_reply_has_passes_of_its_own() -> None:
    """The second reply has its own pass of 31 ms."""
    first = [a_pass(0), drafting(1)]
    second = [replace(a_pass(0, Phases(0, 31, 0, 0, 0, 31)), reply=2), replace(drafting(1), reply=2)]
    rows = rows_from_steps([*first, *second])
    assert {reply: plain.ms for reply, plain in plain_times(rows).items()} == {1: 5 * 11.0, 2: 5 * 31.0}
    assert StepTimes(rows).plain.speedup == pytest.approx((55 + 155) / (11 + 18 + 31 + 18))


def test_a_pass_at_the_load_stands_in_where_it_is_known() -> None:
    rows = rows_of(drafting(0))
    assert math.isnan(StepTimes(rows).step_ms(0))
    (plain,) = plain_times(rows).values()
    plain.load_ms = 20.0
    times = StepTimes(rows, [plain])
    assert times.step_ms(0) == 20.0
    assert times.plain.at_load and times.plain.speedup == pytest.approx(80 / 18)


def test_plain_steps_of_a_log_that_names_no_pass_tell_what_a_plain_step_takes() -> None:
    rows = rows_of(step(0, [], depth=0, ms=PLAIN), drafting(1))
    times = StepTimes(rows)
    assert times.step_ms(0) == pytest.approx(11)
    assert times.plain.speedup is None


def test_without_steps_or_times_nothing_is_said() -> None:
    assert math.isnan(StepTimes(rows_from_steps([])).step_ms(3))
    nan = float("nan")
    rows = rows_of(drafting(0, Phases(nan, nan, nan, nan, nan, nan)))
    assert StepTimes(rows, [PlainTime()]).step_ms(3) != StepTimes(rows).step_ms(3)
