"""What is emitted of a verified block: ends, control tokens, limits, chance, characters."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from kits.engine import END_NOW, PAIRS, load_of, opened
from kits.scripted import Scripted
from tiny.vocab import byte, word

import ds4chat.engine.llama as llama
from ds4chat.engine.events import Load

THOUGHT, ANSWER = " let me see this", " yes it is fine."


def test_temperature_0_has_no_generator_at_all(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 8: where llama.cpp's random sampler cannot be made, greedy replies still come, penalties
    included, and a sampled one does not."""

    def refuse(seed: int) -> None:
        raise llama.LlamaError(f"a generator with seed {seed}")

    monkeypatch.setattr(llama.C, "llama_sampler_init_dist", refuse)
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        for depth in (0, 3):
            assert bench.ask(n=30, depth=depth).ids == tiny.reply(tiny.encode(END_NOW)[-1], 30)
            assert len(bench.ask(n=30, depth=depth, repeat_penalty=1.3).ids) == 30
        with pytest.raises(llama.LlamaError, match="generator with seed 5"):
            bench.ask(n=3, temp=1.0, seed=5)


def test_seeds_count_at_a_temperature_and_nowhere_else(tiny_dir: Path) -> None:
    """Pitfall 8: a target that prefers its token by 0.4 logits: 384 tokens are nearly alike when sampled."""
    draft = tiny.build("llama-draft", tiny_dir, gain=0.05)
    target = tiny.build("llama", tiny_dir, gain=0.05)
    with opened(Load(str(target), str(draft), ctx=512, threads=1)) as bench:
        greedy = {tuple(bench.ask(n=40, depth=3, seed=seed).ids) for seed in (-1, 1, 2)}
        assert greedy == {tuple(tiny.reply(tiny.encode(END_NOW)[-1], 40))}
        free = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}
        sampled = {tuple(bench.ask(n=40, depth=3, temp=1.0, seed=seed, **free).ids) for seed in (1, 2, 3)}
        assert len(sampled) == 3


@pytest.mark.parametrize("name", PAIRS)
def test_a_draft_ends_with_its_first_control_or_end_token(tiny_dir: Path, name: str) -> None:
    """Pitfall 14: a control token is the last of its draft; after "so ponder" two of them come early."""
    with opened(load_of(tiny_dir, name)) as bench:
        for prompt in ("so ponder", "hi stop"):
            got = bench.ask(prompt, depth=16)
            ends = [
                (s.drafted, row.position)
                for s in got.steps
                for row in s.judged
                if row.draft <= tiny.END_THINK
            ]
            assert ends
            assert all(drafted == position for drafted, position in ends)


def test_a_copied_draft_ends_with_its_first_control_token(tiny_dir: Path) -> None:
    """Pitfall 14: lookup copies from text that was said, role marks and end tokens among it."""
    said = f"so ponder<think>{THOUGHT}</think>{ANSWER}<｜end▁of▁sentence｜><｜User｜>so ponder"
    load = Load(str(tiny.build("llama", tiny_dir)), lookup=True, ctx=512, threads=1)
    with opened(load) as bench:
        got = bench.ask(said, depth=16)
        assert got.text == THOUGHT + ANSWER
        drafts = [[row.draft for row in s.judged] for s in got.steps if s.drafted == len(s.judged) > 0]
        assert any(draft[-1] <= tiny.END_THINK for draft in drafts)
        assert not [t for draft in drafts for t in draft[:-1] if t <= tiny.END_THINK]


@pytest.mark.parametrize("drafter", [*PAIRS, "scripted"])
def test_nothing_after_an_accepted_end_token_counts(tiny_dir: Path, drafter: str) -> None:
    """Pitfall 13: [a, EOS, b, c] all as the target says; the scripted drafter does not even stop at EOS."""
    ids = tiny.encode("hi stop")
    after = [word("all"), word("done"), tiny.EOS, *tiny.reply(tiny.EOS, 3)]
    with opened(load_of(tiny_dir, "llama-draft" if drafter == "scripted" else drafter)) as bench:
        if drafter == "scripted":
            bench.session.caches.drafter = Scripted(8, lambda n, room: after[n + 1 - len(ids) :][:room])
        got = bench.ask("hi stop", depth=6)
        assert got.ids == after[:2]
        assert got.ended.finish_reason == "stop"
        # The end token itself may stand in the cache as the turn's last; what was drafted behind it may not.
        assert bench.session.caches.target.used == len(bench.session.caches.tokens) <= len(ids) + 3
        assert bench.session.caches.tokens == [*ids, *after][: len(bench.session.caches.tokens)]
        follow = "hi stop all done<｜end▁of▁sentence｜> now"
        assert bench.ask(follow, 12, depth=6).ids == tiny.reply(word("now"), 12)


@pytest.mark.parametrize("n", range(1, 12))
def test_a_budget_that_ends_at_any_token_of_the_thinking(tiny_dir: Path, n: int) -> None:
    """Pitfall 21: the budget is met inside a block, around ``</think>`` too; the marks stay right."""
    whole = tiny.reply(tiny.encode("so ponder")[-1], 99)
    end = whole.index(tiny.END_THINK)
    with opened(load_of(tiny_dir, "deepseek4-support", wrong_every=0)) as bench:
        for depth in (0, 3, 8):
            got = bench.ask("so ponder", n, depth=depth)
            assert got.ids == whole[:n]
            assert [t.thinking for t in got.tokens] == [i <= end for i in range(len(whole))][:n]


@pytest.mark.parametrize("stop", [" see", "see this", "</think>", " yes it", "fine.", "."])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 8])
def test_a_stop_string_at_any_place_of_a_block(tiny_dir: Path, stop: str, depth: int) -> None:
    """Pitfall 22: tested token by token, as an end of a tool call would be; text and cache end there."""
    with opened(load_of(tiny_dir, "deepseek4-support", wrong_every=0)) as bench:
        got = bench.ask("so ponder", depth=depth, stop=(stop,))
        whole = f"<think>{THOUGHT}</think>{ANSWER}"
        before = whole[: whole.find(stop)]
        assert got.text == before.removeprefix("<think>").replace("</think>", "")
        assert got.ended.finish_reason == "stop"
        assert bench.session.caches.target.used == len(bench.session.caches.tokens)
        assert bench.session.caches.target.used <= len(tiny.encode("so ponder")) + len(got.ids)


@pytest.mark.parametrize("first", range(1, 5))
def test_an_emoji_cut_by_blocks_at_each_of_its_bytes(tiny_dir: Path, first: int) -> None:
    """Pitfall 23: the first block ends after byte ``first`` - 1 of four; the character comes whole, once."""
    ids = tiny.encode("hi emoji")
    whole = tiny.reply(ids[-1], 99)
    with opened(load_of(tiny_dir, "llama-draft", wrong_every=0)) as bench:
        cut = len(ids) + first  # committed tokens from which the second block is drafted

        def plan(n: int, room: int) -> list[int]:
            at = n + 1 - len(ids)
            return whole[at : at + room] if n + 1 >= cut else whole[at : at + first - 1]

        bench.session.caches.drafter = Scripted(16, plan)
        got = bench.ask("hi emoji", depth=16)
        assert got.text == " look😀€ wowé"
        assert got.ids == whole
        assert [t.text for t in got.tokens[1:5]] == ["", "", "", "😀"]
        assert len(got.steps[0].tokens) == first


def test_bytes_that_are_no_character_end_nothing(tiny_dir: Path) -> None:
    """Pitfall 23: a lone continuation byte and a cut character among accepted drafts become U+FFFD."""
    for name in PAIRS:
        with opened(load_of(tiny_dir, name)) as bench:
            for depth in (0, 1, 8):
                got = bench.ask("hi broken", depth=depth)
                assert got.text == "\ufffd ok\ufffd"
                assert got.ids == [byte(0xBF), word("ok"), byte(0xF1)]
