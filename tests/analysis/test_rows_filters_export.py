"""Columns, histograms, filters and exports, by numbers worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest
from kits.explorer_stage import many_rows
from kits.recorded import draft, judged, step
from kits.work import calls

from ds4chat.analysis.export import COLUMNS, write_csv, write_jsonl
from ds4chat.analysis.filters import Filter, Texts, select
from ds4chat.analysis.histogram import histogram, reliability, wilson
from ds4chat.analysis.rows import rows_from_steps
from ds4chat.engine.events import Tuning

ROWS = rows_from_steps(
    [
        step(
            0,
            [
                judged(1, True, gap=4.0, draft_prob=0.95, texts=(" The", " A")),
                judged(2, False, ratio=0.25, gap=0.5, draft_prob=0.15, texts=(" cat", " dog")),
            ],
            drafted=3,
            depth=3,
        ),
        step(1, [], depth=0),
        step(
            2,
            [
                judged(
                    1, True, ratio=0.75, by_ratio=True, draft_gap=None, draft_prob=None, texts=("=1+1", "\n")
                )
            ],
            tuning=Tuning(depth=1, margin=0.5, gate=0.25),
            reply=2,
        ),
    ]
)


def test_columns_lead_from_a_row_to_its_step() -> None:
    """Three rows in three steps, the second of which judged nothing."""
    assert ROWS.step.tolist() == [0, 0, 2]
    assert ROWS.step_first.tolist() == [0, 2, 2]
    assert ROWS.step_judged.tolist() == [2, 0, 1]
    assert ROWS.step_accepted.tolist() == [1, 0, 1]
    assert ROWS.step_emitted.tolist() == [2, 1, 2]
    assert ROWS.step_margin.tolist() == [1, 1, 0.5]
    assert ROWS.step_gate.tolist() == [0, 0, 0.25]
    assert ROWS.match.tolist() == [True, False, False]
    assert math.isnan(ROWS.draft_gap[2])
    assert ROWS.step_ms[0].tolist() == [1.234, 18.1, 0.25, 0.125, 0.5, 20.209]


def test_strict_mode_has_no_margin() -> None:
    """The setting is 0.5, but 1 is in force."""
    rows = rows_from_steps([step(0, draft("+"), tuning=Tuning(depth=1, margin=0.5, strict=True))])
    assert rows.step_margin.tolist() == [1.0]


def test_no_steps_make_empty_columns() -> None:
    """Every analysis of nothing is nothing, without an error."""
    empty = rows_from_steps([])
    assert (len(empty), empty.steps) == (0, 0)
    assert select(empty, Filter(text="x", ratio=(0, 1)), Texts(empty)).tolist() == []
    assert histogram(empty.gap, empty.accepted).accepted.sum() == 0
    assert reliability(empty.draft_prob, empty.accepted).count.sum() == 0
    assert write_jsonl(empty, io.StringIO()) == 0


def test_a_histogram_counts_accepted_and_rejected_apart() -> None:
    """Ratios 1, 0.25 (rejected), 0.75: the upper edge belongs to the last bin."""
    result = histogram(ROWS.ratio, ROWS.accepted, 1.0)
    assert result.accepted.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]
    assert result.rejected.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert histogram(ROWS.draft_prob, ROWS.accepted, 1.0).missing == 1


def test_a_histogram_of_gaps_puts_the_largest_into_its_last_bin() -> None:
    """None is lost, an infinite gap included."""
    rows = rows_from_steps(
        [step(i, [judged(1, True, gap=math.inf if i == 0 else i / 100)]) for i in range(300)]
    )
    result = histogram(rows.gap, rows.accepted)
    assert result.accepted.sum() == 300
    assert result.missing == 0


def test_the_reliability_curve_by_hand() -> None:
    """Bin 0.8..0.9: probabilities 0.8, 0.85, 0.85, 0.9 - epsilon with three accepted; the rest is empty."""
    probs = (0.8, 0.85, 0.85, 0.899)
    rows = rows_from_steps([step(i, [judged(1, i > 0, draft_prob=prob)]) for i, prob in enumerate(probs)])
    curve = reliability(rows.draft_prob, rows.accepted)
    assert curve.count.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 4, 0]
    assert curve.mean_prob[8] == pytest.approx(0.84975)
    assert curve.acceptance[8] == pytest.approx(0.75)
    assert (curve.low[8], curve.high[8]) == pytest.approx((0.300642, 0.954413), abs=1e-5)
    assert curve.calibration_error == pytest.approx(0.09975)
    assert math.isnan(curve.acceptance[0])


def test_the_wilson_interval_by_hand() -> None:
    """0 of 10 at z = 1.96: 0 to z2 / (n + z2) = 3.8416 / 13.8416; 10 of 10 is its mirror image."""
    assert wilson(0, 10) == pytest.approx((0, 3.8416 / 13.8416))
    assert wilson(10, 10) == pytest.approx((1 - 3.8416 / 13.8416, 1))
    assert all(math.isnan(bound) for bound in wilson(0, 0))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), [0, 1, 2]),
        (Filter(accepted=False), [1]),
        (Filter(lossy=True), [2]),
        (Filter(outcomes=frozenset({"full"})), [2]),
        (Filter(positions=frozenset({2})), [1]),
        (Filter(ratio=(0.25, 0.75)), [1, 2]),
        (Filter(gap=(0, 1)), [1]),
        (Filter(draft_gap=(0, 99)), [0, 1]),
        (Filter(draft_prob=(0.9, 1)), [0]),
        (Filter(text="dog"), [1]),
        (Filter(text="the"), [0]),
        (Filter(text="THE"), []),
        (Filter(accepted=True, positions=frozenset({1}), ratio=(0.9, 1)), [0]),
    ],
)
def test_a_filter_finds(wanted: Filter, found: list[int]) -> None:
    """Every condition alone, and three together; a row without a value is in no range."""
    assert select(ROWS, wanted, Texts(ROWS)).tolist() == found


def test_filtering_200_000_rows_scales_with_the_rows() -> None:
    """Columns are compared whole: a hundred times the rows take no more calls."""
    work = []
    for count in (2_000, 200_000):
        rows = many_rows(count)
        texts = Texts(rows)
        wanted = Filter(text="the", ratio=(0.5, 1), accepted=True)
        assert len(select(rows, wanted, texts))
        work.append(calls(lambda rows=rows, texts=texts, wanted=wanted: select(rows, wanted, texts)))
    assert work[1] == work[0]


def test_jsonl_holds_every_value() -> None:
    """Texts as they are; what has no value is null."""
    file = io.StringIO()
    assert write_jsonl(ROWS, file) == 3
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert all(tuple(line) == COLUMNS for line in lines)
    assert [line["draft_text"] for line in lines] == [" The", " cat", "=1+1"]
    assert lines[2]["target_text"] == "\n"
    assert lines[2]["draft_gap"] is None
    assert (
        lines[1]
        | {
            "reply": 1,
            "step": 0,
            "position": 2,
            "accepted": False,
            "ratio": 0.25,
            "outcome": "partial",
            "drafted": 3,
            "judged": 2,
            "committed": 1,
            "verify_ms": 18.1,
        }
        == lines[1]
    )


def test_csv_reads_back_and_holds_no_formula() -> None:
    """A draft that a spreadsheet would compute gets an apostrophe; a line break stays inside its cell."""
    file = io.StringIO(newline="")
    assert write_csv(ROWS, file, np.array([2, 0])) == 2
    lines = list(csv.DictReader(io.StringIO(file.getvalue(), newline="")))
    assert [line["draft_text"] for line in lines] == ["'=1+1", " The"]
    assert lines[0]["target_text"] == "\n"
    assert lines[0]["draft_gap"] == ""
    assert lines[1]["accepted"] == "1"


def test_export_survives_texts_that_are_no_unicode() -> None:
    """A lone surrogate and a NUL can be written to a UTF-8 file in both formats."""
    rows = rows_from_steps([step(0, [judged(1, False, texts=("\ud800", "\0"))])])
    as_json, as_csv = io.StringIO(), io.StringIO()
    write_jsonl(rows, as_json)
    write_csv(rows, as_csv)
    assert json.loads(as_json.getvalue())["draft_text"] == "\ud800"
    assert b"\0" not in (as_json.getvalue() + as_csv.getvalue()).encode("utf-8")
