"""The cost table and its cache file, by numbers worked out by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ds4chat.engine.auto.costs import CostTable, Tables, by_drafts


def costs_of(plain_ms: float) -> CostTable:
    """Up to two drafts, of a millisecond each; each adds a fifth of a plain step to the verification."""
    return CostTable([plain_ms, 1.2 * plain_ms, 1.4 * plain_ms], [0.0, 1.0, 2.0], [0.0, 0.0])


def learn_plain(table: CostTable, ms: float, same: int = 2) -> None:
    table.learn(drafts=0, passes=0, draft_ms=0.0, verify_ms=ms, same=same, behind=0)


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
    """15 ms for a verification of one draft that took 12, and the usual one for the draft."""
    table = costs_of(10.0)
    table.learn(drafts=1, passes=1, draft_ms=1.0, verify_ms=15.0, same=2, behind=0)
    assert table.verify == pytest.approx([10, 12 + 3 / 8, 14])
    assert table.draft == pytest.approx([0, 1, 2])


def test_a_time_that_is_far_shorter_is_believed_sooner() -> None:
    """10 ms, and a step of 2: half of the difference."""
    table = costs_of(10.0)
    learn_plain(table, 2.0)
    assert table.plain_ms == pytest.approx(6)


def test_a_stalled_step_counts_as_half_as_long_again_as_usual() -> None:
    """10 ms, and a step of 200: they count as 15."""
    table = costs_of(10.0)
    learn_plain(table, 200.0)
    assert table.plain_ms == pytest.approx(10 + 5 / 8, rel=1e-3)


def test_a_change_of_size_and_catching_up_are_learned_apart_from_the_steps() -> None:
    """The first plain step after drafts takes 5 ms longer, where 3 were known; a drafter that has to catch up
    with 10 tokens takes 11 ms for 1, where 0.2 ms a token were known."""
    table = CostTable([10.0, 12.0, 14.0], [0.0, 1.0, 2.0], [3.0, 0.0], 0.2)
    learn_plain(table, 15.0, same=0)
    assert table.change == pytest.approx([3 + 1.51 / 8, 0]), "no more than half as long again as usual"
    table.learn(drafts=1, passes=1, draft_ms=11.0, verify_ms=12.0, same=2, behind=10)
    assert table.catch_up == pytest.approx(0.2 + (0.31 - 0.2) / 8)
    assert (table.plain_ms, table.draft) == (10.0, [0.0, 1.0, 2.0])


def test_the_tables_come_back_from_their_file(tmp_path: Path) -> None:
    """The folder is made, and no temporary file stays behind."""
    path = tmp_path / "new" / "a.json"
    Tables(path).put(0, costs_of(10.0))
    assert Tables(path).at(0) == costs_of(10.0)
    assert Tables(path.with_name("b.json")).at(0) is None
    assert [entry.name for entry in path.parent.iterdir()] == ["a.json"]


def test_a_longer_context_has_a_table_of_its_own() -> None:
    """Measured at 100 tokens: 5,000 start from a copy, and what is learned there stays there."""
    tables = Tables()
    tables.put(100, costs_of(10.0))
    longer, short = tables.at(5000), tables.at(900)
    assert longer is not None
    assert short is not None
    learn_plain(longer, 12.0)
    assert longer.plain_ms > short.plain_ms == 10
    assert tables.at(7000) is longer


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe",
        b'{"0": 5}',
        b'{"x": {"verify": [1.0], "draft": [0.0], "change": [0.0, 0.0]}}',
        b'{"0": {"verify": 3}}',
        b'{"0": {"verify": [0.0], "draft": [0.0], "change": [0.0, 0.0]}}',
        b'{"0": {"verify": [1e999], "draft": [0.0], "change": [0.0, 0.0]}}',
        b'{"0": {"verify": [1.0], "draft": [-1.0]}}',
        b'{"0": {"verify": [1.0], "draft": [0.0], "change": [0.0]}}',
        b'{"0": {"verify": [1.0], "draft": [0.0], "change": [0.0, 0.0], "more": 1}}',
        pytest.param(b"[" * 100_000, id="nested"),
    ],
)
def test_a_damaged_cache_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    """It reads as empty, and the next save makes it whole."""
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    tables = Tables(path)
    assert tables.at(0) is None
    tables.put(0, costs_of(10.0))
    assert Tables(path).at(0) == costs_of(10.0)


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    """A file lies where the folder would be: the table is there all the same."""
    (tmp_path / "taken").write_text("")
    tables = Tables(tmp_path / "taken" / "costs.json")
    tables.put(0, costs_of(10.0))
    assert tables.at(0) == costs_of(10.0)


def test_a_failed_replacement_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses the last step: the old file stays as it was."""
    path = tmp_path / "costs.json"
    Tables(path).put(0, costs_of(10.0))
    before = path.read_bytes()

    def refuse(source: object, target: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(os, "replace", refuse)
    Tables(path).put(0, costs_of(20.0))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
