"""Measuring what drafts cost, on tiny models: what it leaves behind, and when it stops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from kits.engine import END_NOW, load_of, opened

from ds4chat.engine.auto import measure
from ds4chat.engine.drafters.base import STEP, Draft, Policy


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of its own."""
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))


@pytest.mark.parametrize("name", ["llama-draft", "eagle3", "qwen35-nextn"])
def test_measuring_finds_every_cost_and_leaves_nothing(tiny_dir: Path, name: str) -> None:
    """The costs of up to 16 drafts, as far as the drafter goes; both caches are empty afterwards, and a reply
    is the one that it would have been."""
    with opened(load_of(tiny_dir, name)) as bench:
        session = bench.session
        assert session.measure()
        table = session._costs.at(0)
        assert table is not None
        assert session.caches.drafter is not None
        assert table.depth == min(16, session.caches.drafter.max_depth)
        assert table.plain_ms > 0
        assert (session.caches.tokens, session.caches.target.used) == ([], 0)
        assert bench.ask(n=60, depth=3).ids == tiny.reply(tiny.encode(END_NOW)[-1], 60)


@pytest.mark.parametrize("asked", [1, 2, 5, 1000], ids=lambda n: f"stopped at {n}")
@pytest.mark.parametrize("name", ["eagle3", "llama-draft", "gemma4-assistant", "mimo2-nextn"])
def test_measuring_behind_a_conversation_keeps_it(tiny_dir: Path, name: str, asked: int) -> None:
    """All of it, however far it came: what goes on with the reply decodes its last token, which the cache
    never held, and no other."""
    with opened(load_of(tiny_dir, name)) as bench:
        cut = bench.ask(n=40, depth=2)
        before = list(bench.session.caches.tokens)
        left = iter(range(asked - 1))
        done = bench.session.measure(lambda: next(left, None) is None)
        assert done == (asked == 1000)
        assert bench.session.caches.tokens == before and bench.session.caches.target.used == len(before)
        more = bench.ask(END_NOW + cut.text, 40, depth=2)
        assert more.ended.prompt_tokens - more.ended.reused_tokens == 1
        assert [*cut.ids, *more.ids] == tiny.reply(tiny.encode(END_NOW)[-1], 80)


def test_a_command_interrupts_measuring(tiny_dir: Path) -> None:
    """Nothing is kept of it, and it begins anew the next time."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        asked: list[int] = []
        assert not bench.session.measure(lambda: len(asked) > 5 or asked.append(1) is not None)
        assert bench.session._costs.at(0) is None
        assert bench.session.caches.tokens == []
        assert bench.session.measure()


def test_what_is_known_is_not_measured_again(tiny_dir: Path) -> None:
    """Neither in this load nor in the next one."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        assert bench.session.measure()
        known = bench.session._costs.at(0)
        assert bench.session.measure(lambda: pytest.fail("it measured again"))
        assert known is not None
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        assert bench.session.measure(lambda: pytest.fail("it measured again"))
        kept = bench.session._costs.at(0)
        assert kept is not None
        assert kept == known


class Card:
    """The clock, target and drafter of a GPU: it loads what a batch size needs when that comes for the first
    time, builds a graph where the size changes, and records it in the second step. Milliseconds."""

    LOADS, BUILDS, RECORDS = 40.0, 1.2, 2.0
    max_depth = 16

    def __init__(self) -> None:
        self.ms = 0.0
        self.seen: set[tuple[str, int]] = set()
        self.rows = self.same = self.lacking = 0

    def perf_counter(self) -> float:
        return self.ms / 1000

    def _first(self, what: str, size: int) -> None:
        self.ms += 0.0 if (what, size) in self.seen else self.LOADS
        self.seen.add((what, size))

    def decode(self, tokens: list[int], pos: int, outputs: str = "all") -> None:
        self._first("rows", len(tokens))
        self.same = self.same + 1 if len(tokens) == self.rows else 0
        self.rows = len(tokens)
        self.ms += 3.0 + 0.6 * self.rows + (self.BUILDS, self.RECORDS, 0.0)[min(self.same, 2)]

    def logits(self, rows: int) -> np.ndarray:
        return np.zeros((rows, 8), np.float32)

    def remove_from(self, n: int) -> bool:
        return True

    def observe(self, tokens: list[int], pos: int, n: int) -> None:
        self.lacking += n

    def behind(self, n: int) -> int:
        return self.lacking if self.lacking > STEP else 0

    def draft(self, tokens: list[int], last: int, depth: int, policy: Policy) -> Draft:
        if self.lacking > STEP:
            self._first("behind", self.lacking)
            self.ms += 0.07 * self.lacking
        self._first("draft", depth)
        self.ms += 0.5 * depth
        self.lacking = 0
        return Draft([last] * depth)


def test_what_a_gpu_loads_once_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Booked as the cost of a change or of catching up, it would keep auto from ever drafting."""
    card = Card()
    monkeypatch.setattr("time.perf_counter", card.perf_counter)
    table = measure.measure_costs(card, card, [], 1, lambda: False, 60.0)  # type: ignore[arg-type]
    assert table is not None
    assert table.change == pytest.approx([card.BUILDS, card.RECORDS])
    assert table.catch_up == pytest.approx(0.07)
    assert [table.verify[drafts] for drafts in (0, 1, 8, 16)] == pytest.approx([3.6, 4.2, 8.4, 13.2])
    assert [table.draft[depth] for depth in (1, 4, 16)] == pytest.approx([0.5, 2.0, 8.0])
