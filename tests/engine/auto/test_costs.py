"""The cost table and its cache file, by numbers worked out by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ds4chat.engine.auto import costs
from ds4chat.engine.auto.costs import CostTable, Tables


def table_of(*verify: tuple[int, float], draft: tuple[tuple[int, float], ...] = ()) -> CostTable:
    """Half a millisecond of overhead in a drafting step."""
    return CostTable(dict(verify), dict(draft), overhead=(0.0, 0.5))


def test_interpolation_between_measured_rows_is_a_line() -> None:
    """Rows 1 and 5 at 10 and 18 ms: 14 at row 3; nothing is known of more rows."""
    table = table_of((1, 10), (5, 18), draft=((1, 1), (8, 8)))
    assert table.verify[3] == pytest.approx(14)
    assert table.depth == 4


def test_a_step_is_verification_draft_and_overhead() -> None:
    """2 drafts: verification of 3 rows 14, two drafter passes 2, overhead 0.5."""
    table = table_of((1, 10), (5, 18), draft=((1, 1), (4, 4)))
    assert table.step_ms(2) == pytest.approx(16.5)
    assert table.step_ms(0) == table.plain_ms == pytest.approx(10)
    assert table.step_ms(1, 2) == pytest.approx(12 + 2 + 0.5)


def test_a_stalled_step_moves_a_cost_by_an_eighth_and_a_fast_one_by_half() -> None:
    """10 ms a row: 200 ms count as 20, and move it to 11.25; 2 ms count as 5."""
    slow, fast = table_of((1, 10)), table_of((1, 10))
    slow.learn(1, 2, 0, 0, 0.0, 200.0, 0.0)
    fast.learn(1, 2, 0, 0, 0.0, 2.0, 0.0)
    assert slow.verify[1] == pytest.approx(10 * (1 + 1 / 8))
    assert fast.verify[1] == pytest.approx(10 * (1 - 0.5 / 2))


def test_what_slows_one_size_down_slows_the_others_down_a_little() -> None:
    """Two rows take 15 ms for 12: they move by an eighth of that quarter, the others by a 64th."""
    table = table_of((1, 10), (2, 12), (3, 14))
    table.learn(2, 2, 0, 0, 0.0, 15.0, 0.0)
    assert [table.verify[rows] for rows in (1, 2, 3)] == pytest.approx(
        [10 * (1 + 0.25 / 64), 12 * (1 + 0.25 / 8), 14 * (1 + 0.25 / 64)]
    )


def test_the_table_comes_back_from_its_json() -> None:
    """Through text and back: the same costs at every depth."""
    table = table_of((1, 10), (3, 13.5), draft=((1, 1.25), (2, 2.5)))
    again = CostTable.from_dict(json.loads(json.dumps(table.to_dict())))
    assert [again.step_ms(k) for k in range(3)] == pytest.approx([table.step_ms(k) for k in range(3)])
    assert again.to_dict() == table.to_dict()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"verify": 3, "draft": [], "change": [0, 0], "overhead": [0, 0], "catch_up": 0},
        {"verify": [[1, "x"]], "draft": [], "change": [0, 0], "overhead": [0, 0], "catch_up": 0},
        {"verify": [[1, 1.0], [99, 1.0]], "draft": [], "change": [0, 0], "overhead": [0, 0], "catch_up": 0},
        {"verify": [[1, float("inf")]], "draft": [], "change": [0, 0], "overhead": [0, 0], "catch_up": 0},
        {"verify": [[2, 1.0]], "draft": [], "change": [0, 0], "overhead": [0, 0], "catch_up": 0},
        {"verify": [[1]], "draft": [], "change": [0, 0], "overhead": [0, 0], "catch_up": 0},
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
    assert Tables(path, "a").put(0, table_of((1, 10)))
    assert Tables(path, "b").put(0, table_of((1, 20)))
    a, b = Tables(path, "a").at(0), Tables(path, "b").at(0)
    assert a is not None
    assert b is not None
    assert (a.plain_ms, b.plain_ms) == pytest.approx((10, 20))
    assert Tables(path, "c").at(0) is None
    assert [entry.name for entry in path.parent.iterdir()] == ["costs.json"]


def test_a_longer_context_has_a_table_of_its_own() -> None:
    """Measured at 100 tokens: 5,000 start from a copy, and what is learned there stays there."""
    tables = Tables()
    tables.put(100, table_of((1, 10)))
    longer, short = tables.at(5000), tables.at(900)
    assert longer is not None
    assert short is not None
    longer.learn(1, 2, 0, 0, 0.0, 12.0, 0.0)
    assert longer.plain_ms > short.plain_ms == 10
    assert tables.at(7000) is longer


def test_the_cache_keeps_the_64_loads_saved_last(tmp_path: Path) -> None:
    """The one that was saved longest ago goes."""
    path = tmp_path / "costs.json"
    for number in range(65):
        Tables(path, f"k{number}").put(0, table_of((1, 10)))
    assert Tables(path, "k0").at(0) is None
    assert Tables(path, "k1").at(0) is not None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'{"version": 99, "tables": {}}',
        b"\xff\xfe",
        b'{"version": 4, "tables": {"a": 5}}',
        b'{"version": 4, "tables": {"a": {"x": {}, "0": {"verify": 3}}}}',
    ],
)
def test_a_damaged_cache_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    """It reads as empty, and the next save makes it whole."""
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    tables = Tables(path, "a")
    assert tables.at(0) is None
    assert tables.put(0, table_of((1, 10)))
    assert Tables(path, "a").at(0) is not None


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    """The folder's place is taken by a file: it says False, and the table is there all the same."""
    (tmp_path / "taken").write_text("")
    tables = Tables(tmp_path / "taken" / "costs.json", "a")
    assert not tables.put(0, table_of((1, 10)))
    assert tables.at(0) is not None


def test_a_failed_replacement_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses the last step: the old file stays as it was."""
    path = tmp_path / "costs.json"
    Tables(path, "a").put(0, table_of((1, 10)))
    before = path.read_bytes()

    def refuse(source: object, target: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(os, "replace", refuse)
    assert not Tables(path, "b").put(0, table_of((1, 20)))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
