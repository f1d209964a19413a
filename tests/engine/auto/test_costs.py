"""The cost table and its cache file, by numbers worked out by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ds4chat.engine.auto import costs
from ds4chat.engine.auto.costs import CostTable, StepCost, Tables, by_drafts


def costs_of(plain_ms: float) -> CostTable:
    """Up to two drafts, of a millisecond each; each adds a fifth of a plain step to the verification."""
    return CostTable([plain_ms, 1.2 * plain_ms, 1.4 * plain_ms], [0.0, 1.0, 2.0], [0.0, 0.0])


def plain_step(ms: float) -> StepCost:
    return StepCost(0, 0, 0, 0, 0.0, ms, 1)


def test_what_was_not_measured_lies_on_a_line_between_its_neighbours() -> None:
    """0 and 4 drafts take 10 and 18 ms: 14 for 2 drafts, and nothing is known of 5."""
    assert by_drafts({4: 18.0, 0: 10.0}) == pytest.approx([10, 12, 14, 16, 18])


def test_a_step_is_verification_and_draft() -> None:
    """2 drafts: verification 14, two passes 2. The draft of the second pass may be dropped."""
    table = costs_of(10.0)
    assert table.depth == 2
    assert table.step_ms(0) == table.plain_ms == pytest.approx(10)
    assert table.step_ms(2) == pytest.approx(14 + 2)
    assert table.step_ms(1, 2) == pytest.approx(12 + 2)


def test_a_step_moves_its_own_cost_by_an_eighth() -> None:
    """16 ms for a step of one draft, one of them for the draft: 15 for a verification that took 12."""
    table = costs_of(10.0)
    table.learn(StepCost(1, 1, 1, 1, 1.0, 16.0, 2), 1, 2, 0)
    assert table.verify == pytest.approx([10, 12 + 3 / 8, 14])
    assert table.draft == pytest.approx([0, 1, 2])


def test_a_time_that_is_far_shorter_is_believed_sooner() -> None:
    """10 ms, and a step of 2: half of the difference."""
    table = costs_of(10.0)
    table.learn(plain_step(2.0), 0, 2, 0)
    assert table.plain_ms == pytest.approx(6)


def test_a_stalled_step_counts_as_half_as_long_again_as_usual() -> None:
    """10 ms, and a step of 200: they count as 15."""
    table = costs_of(10.0)
    table.learn(plain_step(200.0), 0, 2, 0)
    assert table.plain_ms == pytest.approx(10 + 5 / 8, rel=1e-3)


def test_a_change_of_size_and_catching_up_are_learned_apart_from_the_steps() -> None:
    """The first plain step after drafts takes 5 ms longer, where 3 were known; a drafter that has to catch up
    with 10 tokens takes 11 ms for 1, where 0.2 ms a token were known."""
    table = CostTable([10.0, 12.0, 14.0], [0.0, 1.0, 2.0], [3.0, 0.0], 0.2)
    table.learn(plain_step(15.0), 0, 0, 0)
    assert table.change == pytest.approx([3 + 1.51 / 8, 0]), "no more than half as long again as usual"
    table.learn(StepCost(1, 1, 1, 0, 11.0, 23.0, 1), 1, 2, 10)
    assert table.catch_up == pytest.approx(0.2 + (0.31 - 0.2) / 8)
    assert (table.plain_ms, table.draft) == (10.0, [0.0, 1.0, 2.0])


def test_the_key_changes_with_everything_that_the_costs_depend_on() -> None:
    """The same parts make the same key, and each other one another."""
    parts = (["a.gguf", 5], "lookup", 4, "CPU")
    others = [(["a.gguf", 6], *parts[1:]), (*parts[:2], 8, "CPU"), (*parts[:3], "CUDA0")]
    assert costs.key(*parts) == costs.key(["a.gguf", 5], "lookup", 4, "CPU")
    assert len({costs.key(*parts), *(costs.key(*other) for other in others)}) == 4


def test_the_cache_keeps_tables_of_several_keys(tmp_path: Path) -> None:
    """A second save leaves the first table in place, and no temporary file behind."""
    path = tmp_path / "new" / "costs.json"
    Tables(path, "a").put(0, costs_of(10.0))
    Tables(path, "b").put(0, costs_of(20.0))
    a, b = Tables(path, "a").at(0), Tables(path, "b").at(0)
    assert a is not None
    assert b is not None
    assert (a.plain_ms, b.plain_ms) == pytest.approx((10, 20))
    assert Tables(path, "c").at(0) is None
    assert [entry.name for entry in path.parent.iterdir()] == ["costs.json"]


def test_a_longer_context_has_a_table_of_its_own() -> None:
    """Measured at 100 tokens: 5,000 start from a copy, and what is learned there stays there."""
    tables = Tables()
    tables.put(100, costs_of(10.0))
    longer, short = tables.at(5000), tables.at(900)
    assert longer is not None
    assert short is not None
    longer.learn(plain_step(12.0), 0, 2, 0)
    assert longer.plain_ms > short.plain_ms == 10
    assert tables.at(7000) is longer


def test_the_cache_keeps_the_64_loads_saved_last(tmp_path: Path) -> None:
    """The one that was saved longest ago goes."""
    path = tmp_path / "costs.json"
    for number in range(65):
        Tables(path, f"k{number}").put(0, costs_of(10.0))
    assert Tables(path, "k0").at(0) is None
    assert Tables(path, "k1").at(0) is not None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'{"version": 5, "tables": {"a": {}}}',
        b"\xff\xfe",
        b'{"a": 5}',
        b'{"a": {"x": {"verify": [1.0], "draft": [0.0], "change": [0.0, 0.0]}}}',
        b'{"a": {"0": {"verify": 3}}}',
        b'{"a": {"0": {"verify": [0.0], "draft": [0.0], "change": [0.0, 0.0]}}}',
        b'{"a": {"0": {"verify": [1e999], "draft": [0.0], "change": [0.0, 0.0]}}}',
        b'{"a": {"0": {"verify": [1.0], "draft": [-1.0]}}}',
        b'{"a": {"0": {"verify": [1.0], "draft": [0.0], "change": [0.0]}}}',
        b'{"a": {"0": {"verify": [1.0], "draft": [0.0], "change": [0.0, 0.0], "more": 1}}}',
        pytest.param(b"[" * 100_000, id="nested"),
    ],
)
def test_a_damaged_cache_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    """It reads as empty, and the next save makes it whole."""
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    tables = Tables(path, "a")
    assert tables.at(0) is None
    tables.put(0, costs_of(10.0))
    assert Tables(path, "a").at(0) == costs_of(10.0)


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    """A file lies where the folder would be: the table is there all the same."""
    (tmp_path / "taken").write_text("")
    tables = Tables(tmp_path / "taken" / "costs.json", "a")
    tables.put(0, costs_of(10.0))
    assert tables.at(0) == costs_of(10.0)


def test_a_failed_replacement_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses the last step: the old file stays as it was."""
    path = tmp_path / "costs.json"
    Tables(path, "a").put(0, costs_of(10.0))
    before = path.read_bytes()

    def refuse(source: object, target: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(os, "replace", refuse)
    Tables(path, "b").put(0, costs_of(20.0))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
