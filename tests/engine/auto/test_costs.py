"""The cost table and its cache file, by numbers worked out by hand."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from ds4chat.engine.auto import costs
from ds4chat.engine.auto.costs import CostTable, Curve, Samples


def table_of(*verify: tuple[int, float], draft: tuple[tuple[int, float], ...] = ()) -> CostTable:
    """Each figure measured three times; half a millisecond of overhead in a drafting step."""
    table = CostTable()
    for _ in range(3):
        for rows, ms in verify:
            table.verify.add(rows, ms)
        for calls, ms in draft:
            table.draft.add(calls, ms)
        table.drafting_overhead.add(0.5)
    return table


def test_a_stalled_measurement_does_not_move_the_mean() -> None:
    """10, 10.5, 11 and one of 210: the mean of the three. Two measurements: the smaller one."""
    samples = Samples()
    for ms in (210, 10.5):
        samples.add(ms)
    assert samples.value == 10.5
    for ms in (10, 11):
        samples.add(ms)
    assert samples.value == pytest.approx(10.5)


def test_what_is_no_time_is_passed_over() -> None:
    """NaN, infinity and negative milliseconds, as a clock that was set back gives."""
    samples = Samples()
    for ms in (math.nan, math.inf, -1.0):
        samples.add(ms)
    assert samples.count == 0
    assert math.isnan(samples.value)


def test_interpolation_between_measured_rows_is_a_line() -> None:
    """Rows 1 and 5 at 10 and 18 ms: 14 at row 3; above, 2 ms a row."""
    table = table_of((1, 10), (5, 18))
    assert table.verify.value(3) == pytest.approx(14)
    assert table.verify.value(7) == pytest.approx(22)
    assert table.verify_ratio(2) == pytest.approx(1.4)


def test_interpolation_stays_between_its_neighbours() -> None:
    """A curve that falls between two points is not made to overshoot them."""
    curve = Curve()
    for x, ms in ((1, 10.0), (3, 29.0), (4, 20.0), (9, 26.0)):
        for _ in range(3):
            curve.add(x, ms)
    for x in range(1, 10):
        below = max(m for m in curve.measured if m <= x)
        above = min(m for m in curve.measured if m >= x)
        low, high = sorted((curve.value(below), curve.value(above)))
        assert low <= curve.value(x) <= high


def test_a_step_is_verification_draft_and_overhead() -> None:
    """2 drafts: verification of 3 rows 14, two drafter passes 2, overhead 0.5."""
    table = table_of((1, 10), (5, 18), draft=((1, 1), (4, 4)))
    assert table.step_ms(2) == pytest.approx(16.5)
    assert table.step_ms(0) == table.plain_ms() == pytest.approx(10)
    assert table.step_ms(1, 2) == pytest.approx(12 + 2 + 0.5)


def test_an_unmeasured_depth_has_a_least_and_a_most() -> None:
    """Rows 1, 2 at 10, 12. Row 4: at least 12 (the next two rows may be free), at most 2 x 6 more."""
    table = table_of((1, 10), (2, 12), draft=((1, 1),))
    assert table.verify.least(4) == pytest.approx(12)
    assert table.verify.least(6) == pytest.approx(12 + 0.5 * 2 * 2)
    assert table.verify.most(4) == pytest.approx(12 + 2 * 6)
    assert table.least_ms(3) == pytest.approx(12 + 3 + 0.5, abs=2)
    assert table.most_ms(3) >= table.step_ms(3) >= table.least_ms(3)


def test_the_first_measurement_of_a_depth_counts_as_no_more_than_its_most() -> None:
    """Row 2 is stalled at 200 ms the first time: it counts as 20, and as 12 after a true one."""
    curve = Curve()
    for _ in range(3):
        curve.add(1, 10)
    curve.add(2, 200)
    assert curve.value(2) == pytest.approx(20)
    curve.add(2, 12)
    assert curve.value(2) == pytest.approx(12)


def test_the_table_comes_back_from_its_json() -> None:
    """Through text and back: the same costs at every depth."""
    table = table_of((1, 10), (3, 13.5), draft=((1, 1.25), (2, 2.5)))
    again = CostTable.from_dict(json.loads(json.dumps(table.to_dict())))
    assert [again.step_ms(k) for k in range(17)] == pytest.approx([table.step_ms(k) for k in range(17)])
    assert again.to_dict() == table.to_dict()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"verify": 3, "draft": [], "plain_overhead": [], "drafting_overhead": []},
        {"verify": [[1, "x", 1]], "draft": [], "plain_overhead": [], "drafting_overhead": []},
        {"verify": [[99, 1.0, 1]], "draft": [], "plain_overhead": [], "drafting_overhead": []},
        {"verify": [[1, float("inf"), 1]], "draft": [], "plain_overhead": [], "drafting_overhead": []},
        {"verify": [[1, 1.0]], "draft": [], "plain_overhead": [], "drafting_overhead": []},
    ],
)
def test_what_is_no_table_is_refused(data: dict[str, object]) -> None:
    """A ValueError, whatever is wrong with it."""
    with pytest.raises(ValueError, match="not a cost table"):
        CostTable.from_dict(data)


def test_the_key_changes_with_the_model_file_drafter_threads_and_device(tmp_path: Path) -> None:
    """Every part of what was measured makes another key; the same makes the same."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    first = costs.key(model, "nextn-embedded", 4, "CPU")
    assert first == costs.key(str(model), "nextn-embedded", 4, "CPU")
    others = {
        costs.key(model, "lookup", 4, "CPU"),
        costs.key(model, "nextn-embedded", 8, "CPU"),
        costs.key(model, "nextn-embedded", 4, "CUDA0"),
        costs.key(tmp_path / "gone.gguf", "nextn-embedded", 4, "CPU"),
    }
    model.write_bytes(b"GGUF, another one")
    others.add(costs.key(model, "nextn-embedded", 4, "CPU"))
    assert len(others | {first}) == 6


def test_the_cache_keeps_tables_of_several_keys(tmp_path: Path) -> None:
    """A second save leaves the first table in place, and no temporary file behind."""
    path = tmp_path / "new" / "costs.json"
    assert costs.save(path, "a", table_of((1, 10)))
    assert costs.save(path, "b", table_of((1, 20)))
    a, b = costs.load(path, "a"), costs.load(path, "b")
    assert a is not None
    assert b is not None
    assert (a.plain_ms(), b.plain_ms()) == pytest.approx((10, 20))
    assert costs.load(path, "c") is None
    assert [entry.name for entry in path.parent.iterdir()] == ["costs.json"]


def test_the_cache_keeps_the_64_tables_saved_last(tmp_path: Path) -> None:
    """The one that was saved longest ago goes."""
    path = tmp_path / "costs.json"
    for number in range(65):
        costs.save(path, f"k{number}", table_of((1, 10)))
    assert costs.load(path, "k0") is None
    assert costs.load(path, "k1") is not None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'{"version": 99, "tables": {}}',
        b"\xff\xfe",
        b'{"version": 1, "tables": {"a": 5}}',
    ],
)
def test_a_damaged_cache_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    """It reads as empty, and the next save makes it whole."""
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    assert costs.load(path, "a") is None
    assert costs.save(path, "a", table_of((1, 10)))
    assert costs.load(path, "a") is not None


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    """The folder's place is taken by a file: save says False."""
    (tmp_path / "taken").write_text("")
    assert not costs.save(tmp_path / "taken" / "costs.json", "a", table_of((1, 10)))


def test_a_failed_replacement_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses the last step: the old file stays as it was."""
    path = tmp_path / "costs.json"
    costs.save(path, "a", table_of((1, 10)))
    before = path.read_bytes()

    def refuse(source: object, target: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(os, "replace", refuse)
    assert not costs.save(path, "b", table_of((1, 20)))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
