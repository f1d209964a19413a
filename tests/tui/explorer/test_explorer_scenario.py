"""What-if values and their figures, by numbers worked out by hand."""

from __future__ import annotations

import pytest
from kits.explorer_stage import steps_from

from ds4chat.analysis.rows import rows_from_steps
from ds4chat.analysis.times import StepTimes
from ds4chat.analysis.whatif import what_if
from ds4chat.engine.events import Tuning
from ds4chat.settings.validate import SettingError
from ds4chat.tui.explorer.scenario import HANDLES, Scenario, recorded, result_lines

ROWS = rows_from_steps(steps_from(("++", "-", "", "+-")))
"""5 rows, 3 accepted; 3 + 1 + 1 + 2 = 7 tokens in 4 steps; 40 + 40 + 20 + 40 = 140 ms."""
TIMES = StepTimes(ROWS)
BASE = recorded(ROWS, TIMES)


def lines_of(scenario: Scenario, times: StepTimes = TIMES) -> list[str]:
    result = what_if(ROWS, depth=scenario.depth, margin=scenario.margin, gate=scenario.gate, times=times)
    return ["".join(text for text, _ in line) for line in result_lines(BASE, result, scenario, times)]


def test_the_recorded_figures_are_those_of_the_steps() -> None:
    """Three of four steps had depth 2; a plain step took 18 + 2 = 20 ms, so 50 tokens/s is 1 x plain."""
    assert (BASE.depth, BASE.margin, BASE.gate) == (2, 1.0, 0.0)
    assert BASE.acceptance == 0.6
    assert BASE.tokens_per_step == 1.75
    assert BASE.tokens_per_s == pytest.approx(50.0)
    assert BASE.speedup == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "by", "value"),
    [
        ("depth", 1, 3),
        ("depth", -1, 1),
        ("depth", -5, 0),
        ("depth", 50, 16),
        ("margin", -1, 0.95),
        ("margin", 1, 1.0),
        ("margin", -50, 0.0),
        ("gate", 1, 0.5),
        ("gate", -1, 0.0),
    ],
)
def test_a_control_moves_from_the_recorded_value_within_its_range(name, by, value) -> None:
    moved = HANDLES[name].moved(Scenario(), by, BASE)
    assert getattr(moved, name) == value
    assert moved == HANDLES[name].put(Scenario(), value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("depth", "4", 4), ("depth", "0", 0), ("depth", "", None), ("margin", "0.5", 0.5), ("gate", " 2 ", 2.0)],
)
def test_a_value_can_be_typed(name, text, value) -> None:
    assert getattr(HANDLES[name].typed(Scenario(depth=3), text), name) == value


@pytest.mark.parametrize(
    ("name", "text"), [("depth", "17"), ("depth", "auto"), ("margin", "2"), ("gate", "x")]
)
def test_a_value_out_of_range_is_refused(name, text) -> None:
    with pytest.raises(SettingError):
        HANDLES[name].typed(Scenario(), text)


def test_applying_changes_what_was_set_and_nothing_else() -> None:
    tuning = Tuning(depth=2, gate=1.0, temp=0.7, strict=True)
    assert Scenario(depth=4).apply(tuning) == Tuning(depth=4, gate=1.0, temp=0.7, strict=True)
    assert Scenario(margin=0.8).apply(tuning) == Tuning(depth=2, margin=0.8, gate=1.0, temp=0.7)
    assert Scenario().apply(tuning) == tuning


def test_plain_decoding_has_no_acceptance_and_the_plain_speed() -> None:
    """7 steps of one token, each 20 ms: 50 tokens/s; most of them begin inside a recorded step."""
    lines = lines_of(Scenario(depth=0))
    assert lines[1].split() == ["acceptance", "60.0", "%", "–"]
    assert lines[2].split() == ["tokens/step", "1.75", "≈", "1.00", "0.57×"]
    assert lines[3].split() == ["tokens/s", "50.0", "≈", "50.0", "1.00×"]
    assert lines[4].split() == ["against", "plain", "1.00×", "≈", "1.00×"]


def test_what_the_record_determines_is_called_exact() -> None:
    """A gate of 0 is what was recorded: the walk gives the recorded figures."""
    lines = lines_of(Scenario(gate=0.0))
    assert lines[1].split() == ["acceptance", "60.0", "%", "60.0", "%", "±0.0"]
    assert lines[2].split() == ["tokens/step", "1.75", "1.75", "1.00×"]
    assert lines[5] == "exact: the record determines every step"


def test_what_it_does_not_determine_is_marked_as_an_estimate() -> None:
    lines = lines_of(Scenario(depth=8))
    assert "≈" in lines[1]
    assert lines[5].startswith("≈ estimate: the record determines ")
    assert lines[6] == "Speed: no step of depth 8 was timed."


def test_a_margin_says_how_many_verdicts_it_changes() -> None:
    """Rows 2 (ratio 0.25) and 4 (0.45) were rejected: a margin of 0.4 accepts the second."""
    assert lines_of(Scenario(margin=0.4))[6] == "1 verdict changes: the text would differ there"


def test_without_step_times_there_is_no_speed() -> None:
    lines = lines_of(Scenario(gate=0.0), StepTimes(rows_from_steps([])))
    assert lines[3].split() == ["tokens/s", "50.0", "–"]
    assert lines[6] == "No speed: the record has no step times."


def test_nothing_asked_shows_the_recorded_figures_alone() -> None:
    lines = ["".join(text for text, _ in line) for line in result_lines(BASE, None, Scenario(), TIMES)]
    assert lines[1].split() == ["acceptance", "60.0", "%", "–"]
    assert lines[5] == "Change a value to see what it would do."
    assert len(lines) == len(lines_of(Scenario(depth=8)))
