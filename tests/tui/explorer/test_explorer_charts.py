"""The charts as lines, by counts worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from kits.explorer_stage import steps_from
from rich.cells import cell_len

from ds4chat.analysis.histogram import Histogram, Reliability, reliability
from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.tui.explorer.charts import NAMES, column_histogram, histogram_lines, reliability_lines
from ds4chat.tui.explorer.listing import Column
from ds4chat.tui.kit.lines import Line

SMALL = ("++", "-", "+-", "~+")
"""Ratios 1, 1, 0.25 (rejected), 1, 0.45 (rejected), 0.55, 1; probabilities 0.55, 0.65, 0.35 (rejected),
0.85, 0.55 (rejected), 0.55, 0.65."""


def rows() -> JudgedRows:
    return rows_from_steps(steps_from(SMALL))


def binned(found: JudgedRows, column: Column) -> Histogram:
    return column_histogram(found, np.arange(len(found)), column)


def curve(found: JudgedRows) -> Reliability:
    return reliability(found.draft_prob, found.accepted)


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def cells(line: Line, role: str) -> int:
    return sum(cell_len(text) for text, r in line if r == role)


def test_a_histogram_counts_accepted_and_rejected_apart() -> None:
    found = binned(rows(), "ratio")
    lines = histogram_lines(found, "ratio", 60)
    counts = [line.split()[-2:] for line in texts(lines)[1:]]
    assert counts == [["0", "0"]] * 2 + [["0", "1"], ["0", "0"], ["0", "1"], ["1", "0"]] + [
        ["0", "0"]
    ] * 3 + [["4", "0"]]


def test_the_longest_bar_fills_the_room_and_the_others_keep_its_scale() -> None:
    """60 cells less a label of 8, two counts of 7 and a blank leave 37; one of four is 9."""
    lines = histogram_lines(binned(rows(), "ratio"), "ratio", 60)
    assert cells(lines[10], "good") == 37
    assert (cells(lines[3], "bad"), cells(lines[3], "good")) == (9, 0)
    assert {cell_len(text) for text in texts(lines)} == {60}


def test_a_bar_of_both_is_divided_by_their_counts() -> None:
    found = Histogram(np.array([0.0, 0.5, 1.0]), np.array([3, 0]), np.array([1, 0]), 0)
    line = histogram_lines(found, "ratio", 63)[1]
    assert (cells(line, "good"), cells(line, "bad")) == (30, 10)


@pytest.mark.parametrize("column", NAMES)
@pytest.mark.parametrize("width", [24, 37, 56, 90])
def test_every_line_of_a_histogram_has_the_same_width(column, width) -> None:
    lines = histogram_lines(binned(rows(), column), column, width)
    assert len({cell_len(text) for text in texts(lines)[1:]}) == 1


def test_rows_without_a_value_are_counted_below() -> None:
    one = rows()
    one.draft_prob[:2] = float("nan")
    lines = texts(histogram_lines(binned(one, "draft_prob"), "draft_prob", 60))
    assert lines[-1] == "2 rows have no value"


def test_a_column_that_no_row_has_a_value_in_is_said_to_be_empty_instead_of_drawn() -> None:
    """Like the ratio over a server, which reports none."""
    one = rows()
    one.ratio[:] = float("nan")
    lines = texts(histogram_lines(binned(one, "ratio"), "ratio", 60))
    assert lines == ["By ratio", "None of these drafts has a value."]


def test_the_curve_says_acceptance_and_count_of_each_bin() -> None:
    lines = texts(reliability_lines(curve(rows()), 60))
    figures = [line.split()[-3:] for line in lines[1:11]]
    assert figures[3] == ["0.0", "%", "1"]
    assert figures[5] == ["66.7", "%", "3"]
    assert figures[6] == ["100.0", "%", "2"]
    assert lines[1].split()[-2:] == ["–", "0"]


def test_the_curve_stands_where_it_was_measured_and_the_scale_where_it_was_stated() -> None:
    """60 cells less 9, 8 and 7 leave 36: a probability of 0.85 is cell round(0.85 * 35) = 30, 1 is 35."""
    line = texts(reliability_lines(curve(rows()), 60))[9]
    scale = line[9:45]
    assert (scale.index("●"), scale.index("┊")) == (35, 30)
    assert "─" in scale


def test_the_sentence_says_how_far_off_and_to_which_side() -> None:
    """|mean - acceptance| by bin: 0.35 once, 0.55 against 2/3 thrice, 0.65 against 1 twice, 0.85 against 1:
    (0.35 + 0.35 + 0.7 + 0.15) / 7 = 0.2214; the signed sum is 0.35 - 0.35 - 0.7 - 0.15 < 0."""
    lines = texts(reliability_lines(curve(rows()), 60))
    assert lines[-1] == "● measured  ┊ stated  ·  off by 22.1 points, too modest"
    assert texts(reliability_lines(curve(rows()), 40))[-1] == "off by 22.1 points, too modest"


def test_a_drafter_without_probabilities_gets_a_sentence() -> None:
    one = rows()
    one.draft_prob[:] = float("nan")
    assert texts(reliability_lines(curve(one), 60))[1:] == ["This drafter gives no probabilities."]
