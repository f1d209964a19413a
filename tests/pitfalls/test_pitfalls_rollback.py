"""Rollback, cancels and the context's end, on caches whose every cell counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from kits.engine import END_NOW, PAIRS, Bench, load_of, opened
from kits.scripted import accepted_lengths, assert_plain, every_length

from ds4chat.engine.control import Control
from ds4chat.engine.events import MAX_DEPTH, Event, Load
from ds4chat.engine.llama import Context
from ds4chat.engine.reply import Generation
from ds4chat.engine.session import Session

PROMPT = " the old mill turns and the old mill turns and the"
RANDOM = ("llama-random", "deepseek4-random", "qwen35-random")
SPECIAL = range(tiny.END_THINK + 1)
"""The control tokens' ids."""


def random_twin(folder: Path, kind: str, **more: object) -> Load:
    """A target of random weights, whose next token depends on all that came before."""
    return Load(**{"model": str(tiny.build(kind, folder)), "lookup": True, "ctx": 512, "threads": 1, **more})  # type: ignore[arg-type]


def twin_with_draft_model(folder: Path) -> Load:
    """Random weights, and their Q4_0 twin as a draft model that is right often and wrong often."""
    draft = tiny.build("llama-random", folder, quant="Q4_0")
    return random_twin(folder, "llama-random", support=str(draft), lookup=False)


def scripted(bench: Bench, depth: int, n: int, wrong: tuple[int, ...]) -> None:
    """Swap the drafter for one that forces every acceptance length, at a session that is empty again."""
    plain = bench.ask(PROMPT, n, depth=0, ignore_eos=True)
    start = plain.ended.prompt_tokens
    bench.session.reset()
    bench.session.caches.drafter = every_length(start, plain.ids, depth, wrong)


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("depth", [1, 2, 3, 8, MAX_DEPTH])
def test_every_acceptance_length_with_special_tokens_rejected(tiny_dir: Path, kind: str, depth: int) -> None:
    """Pitfall 9: the rejected drafts are special tokens, BOS first; none may reach text or cache."""
    with opened(random_twin(tiny_dir, kind)) as bench:
        scripted(bench, depth, 200, (tiny.BOS, tiny.USER, tiny.THINK))
        got = bench.ask(PROMPT, 200, depth=depth, ignore_eos=True)
        assert accepted_lengths(got, depth) == set(range(depth + 1))
        assert not [t for t in got.ids if t in SPECIAL]
        assert bench.session.caches.target.used == got.ended.prompt_tokens + 199
        assert_plain(bench)


def test_a_corrupt_row_after_a_partial_accept_would_show(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 9: the test above sees it when one rejected draft stays in the cache."""
    with opened(random_twin(tiny_dir, "llama-random")) as bench:
        scripted(bench, 3, 120, (tiny.BOS,))
        real = Session._roll_back

        def leave_one(self: Session, reply, rows):  # type: ignore[no-untyped-def]
            rows.committed += rows.decoded > rows.committed
            return real(self, reply, rows)

        monkeypatch.setattr(Session, "_roll_back", leave_one)
        bench.ask(PROMPT, 120, depth=3, ignore_eos=True)
        monkeypatch.undo()
        with pytest.raises(AssertionError, match="'equal': False"):
            assert_plain(bench)


@pytest.mark.parametrize("kind", RANDOM)
def test_a_refused_rollback_leaves_no_rejected_draft_behind(
    tiny_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 16: seq_rm says False; the cache is filled again, and the stream stays plain decoding's."""
    with opened(random_twin(tiny_dir, kind)) as bench:
        scripted(bench, 4, 100, (tiny.BOS,))
        real, refused = Context.remove_from, []

        def remove_from(self: Context, pos: int, seq: int = 0) -> bool:
            if self is bench.session.caches.target and len(refused) < 5:
                refused.append(pos)
                return False
            return real(self, pos, seq)

        monkeypatch.setattr(Context, "remove_from", remove_from)
        got = bench.ask(PROMPT, 100, depth=4, ignore_eos=True)
        monkeypatch.undo()
        assert len(refused) == 5
        assert got.stats.outcomes["fallback"] == 5
        assert_plain(bench)


def test_no_draft_is_longer_than_what_a_recurrent_state_can_drop(tiny_dir: Path) -> None:
    """Pitfall 17: the state goes back as far as the deepest draft, and is kept only when one is made."""
    with opened(load_of(tiny_dir, "qwen35-nextn", wrong_every=1)) as bench:
        assert bench.loaded.drafter is not None
        assert bench.loaded.drafter.max_depth <= bench.session.caches.target.rollback == MAX_DEPTH
        got = bench.ask(n=60, depth=MAX_DEPTH)
        assert max(s.drafted for s in got.steps) == MAX_DEPTH
        assert got.ids == tiny.reply(tiny.encode(END_NOW)[-1], 60)
    plain = Load(str(tiny.build("qwen35-nextn", tiny_dir, wrong_every=1)), ctx=512, threads=1)
    with opened(plain) as bench:
        assert bench.session.caches.target.rollback == 0


PHASES = {
    "draft": (Session, "_draft"),
    "verify": (Session, "_verify"),
    "accept": (Generation, "accept"),
    "catch-up": (Session, "_roll_back"),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_inside_any_phase_leaves_the_next_turn_as_a_fresh_run(
    tiny_dir: Path, phase: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 20: stopped in the fifth step's draft, verify, accept or catch-up, on a cache that matters."""
    owner, method = PHASES[phase]
    seen: list[Control] = []
    calls = 0
    real = getattr(owner, method)

    def stopping(self, *args, **more):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 5 and when == "before":
            seen[0].cancel()
        result = real(self, *args, **more)
        if calls == 5 and when == "after":
            seen[0].cancel()
        return result

    def keep_control(event: Event, control: Control) -> None:
        if not seen:
            seen.append(control)

    with opened(twin_with_draft_model(tiny_dir)) as bench:
        plain = bench.ask(PROMPT, 60, depth=0, ignore_eos=True)
        bench.session.reset()
        monkeypatch.setattr(owner, method, stopping)
        got = bench.ask(PROMPT, 60, depth=4, ignore_eos=True, hook=keep_control)
        monkeypatch.undo()
        assert got.ended.finish_reason == "cancelled"
        assert 0 < len(got.ids) < 60
        assert got.ids == plain.ids[: len(got.ids)]
        assert bench.session.caches.target.used == len(bench.session.caches.tokens)
        follow = PROMPT + got.text + " and all is done"
        after = bench.ask(follow, 40, depth=4, ignore_eos=True)
        assert after.ended.reused_tokens > 0
        bench.session.reset()
        fresh = bench.ask(follow, 40, depth=4, ignore_eos=True)
        assert (after.ids, after.counts) == (fresh.ids, fresh.counts)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("depth", [1, 8, MAX_DEPTH])
def test_the_real_end_of_the_context(tiny_dir: Path, name: str, depth: int) -> None:
    """Pitfall 15: five cells are left in a cache that holds no more, and the drafter's is as large."""
    with opened(load_of(tiny_dir, name, ctx=256)) as bench:
        n_ctx = bench.session.caches.target.n_ctx
        words = n_ctx - 5 - 1
        got = bench.ask(" now" * words, depth=depth)
        assert got.ended.prompt_tokens == n_ctx - 5
        # Five tokens are decoded into the five cells, and the sixth is said without a cell.
        assert got.ids == tiny.reply(tiny.encode(" now")[-1], 6)
        assert got.ended.finish_reason == "context"
        assert not got.notices
        assert bench.ask(n=9, depth=depth).ids == tiny.reply(tiny.encode(END_NOW)[-1], 9)
