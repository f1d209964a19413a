"""What bench says of a batch's cost by its rows: the same size repeated, a change of size told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tiny
from kits.engine import END_NOW, load_of, opened

from ds4chat.commands.bench import runs
from ds4chat.commands.bench.runs import VERIFY_ROWS, verify_cost
from ds4chat.engine.session import Session

SIZES = range(1, VERIFY_ROWS + 1)


@dataclass
class Machine:
    """A target on which a decode takes 2 ms and 1 ms a row, 7 ms more after one of another size, 100 ms more
    where the size is new; ``drift`` is by how much it grows slower each time. Time stands still otherwise."""

    change_ms: float = 7.0
    drift: float = 0.0
    now: float = 0.0
    before: int = 0
    seen: set[int] = field(default_factory=set)
    sizes: list[int] = field(default_factory=list)
    """Rows of every decode with logits."""

    def decode(self, tokens: Sequence[int], pos: int, outputs: str) -> None:
        rows = len(tokens)
        if outputs == "none":
            return
        ms = 2.0 + rows
        ms += self.change_ms if rows != self.before else 0.0
        ms += 100.0 if rows not in self.seen else 0.0
        self.now += ms * (1 + self.drift * len(self.sizes)) / 1000
        self.before = rows
        self.seen.add(rows)
        self.sizes.append(rows)

    def remove_from(self, pos: int) -> bool:
        return True

    def session(self) -> Session:
        caches = SimpleNamespace(target=self, rollback="kv")
        made = SimpleNamespace(caches=caches, n_ctx=512, reset=lambda: None)
        return cast(Session, made)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(runs.time, "perf_counter", lambda: made.now)
    return made


def test_a_size_costs_what_it_costs_again_and_again_and_the_change_stands_beside_it(machine: Machine) -> None:
    """3, 4, .. 11 ms; taken in turn they would be 10, 11, .. 18: nine rows for 1.8 of one instead of 3.7."""
    cost = verify_cost(machine.session(), [1, 2, 3], SIZES, budget_s=60)
    assert cost.ms == pytest.approx([2.0 + rows for rows in range(1, VERIFY_ROWS + 1)])
    assert cost.switch_ms == pytest.approx(7.0)


def test_without_a_cost_of_changing_none_is_found(machine: Machine) -> None:
    """New sizes cost 100 ms once, which is no part of any figure."""
    machine.change_ms = 0.0
    cost = verify_cost(machine.session(), [1], SIZES, budget_s=60)
    assert cost.ms == pytest.approx([2.0 + rows for rows in range(1, VERIFY_ROWS + 1)])
    assert cost.switch_ms == pytest.approx(0.0)


def test_a_machine_that_grows_slower_raises_all_sizes_alike(machine: Machine) -> None:
    """Every decode is 0.1 % slower than the one before: up and down again, each ratio stays within 3 %."""
    machine.drift = 0.001
    cost = verify_cost(machine.session(), [1], SIZES, budget_s=60)
    for rows, ms in enumerate(cost.ms, 1):
        assert ms / cost.ms[0] == pytest.approx((2 + rows) / 3, rel=0.03)


def test_a_short_time_gives_two_decodes_of_every_size_and_no_more(machine: Machine) -> None:
    """One round, of which the first decode of a size counts for the change alone."""
    cost = verify_cost(machine.session(), [1], SIZES, budget_s=0.0)
    assert machine.sizes == [rows for rows in range(1, VERIFY_ROWS + 1) for _ in range(2)]
    assert cost.ms == pytest.approx([2.0 + rows for rows in range(1, VERIFY_ROWS + 1)])


def test_a_stop_ends_it_after_a_round(machine: Machine) -> None:
    verify_cost(machine.session(), [1], SIZES, budget_s=60, stop=lambda: True)
    assert machine.sizes[0] == 1 and machine.sizes[-1] == VERIFY_ROWS
    assert machine.sizes == sorted(machine.sizes)


@pytest.mark.parametrize("name", ["llama-draft", "qwen35-nextn"])
def test_the_real_engine_is_measured_and_left_empty(tiny_dir: Path, name: str) -> None:
    """Also where the cache cannot be cut back to a position: each decode then begins an empty one."""
    with opened(load_of(tiny_dir, name)) as bench:
        tokens: Any = tiny.encode(END_NOW)
        cost = verify_cost(bench.session, tokens, SIZES, budget_s=0.2)
        assert len(cost.ms) == VERIFY_ROWS and min(cost.ms) > 0
        assert bench.session.caches.target.used == 0
