"""The constructed vocabulary, chains and simulation, by numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from tiny import chain, vocab

END_NOW = tiny.encode(" end now")


def test_texts_have_the_tokens_that_the_merges_dictate() -> None:
    assert tiny.encode(" we go.", bos=False) == [vocab.word("we"), vocab.word("go"), vocab.byte(ord("."))]
    assert tiny.encode("<think>a", bos=True) == [vocab.BOS, vocab.THINK, vocab.byte(ord("a"))]
    assert len(set(chain.CYCLE)) == 24


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ("<think>", " let me see this yes it is fine."),
        ("</think>", " yes it is fine."),
        (" ponder", " let me see this yes it is fine."),
        (" emoji", " look\U0001f600€ wowé"),
        (" broken", "� ok�"),
        (" stop", " all done"),
        (" cut", " off here"),
    ],
)
def test_each_chain_says_its_text_and_ends(last: str, text: str) -> None:
    assert tiny.text(tiny.reply(tiny.encode(last)[-1], 100)) == text


def test_the_cycle_is_endless_and_entered_from_any_other_token() -> None:
    reply = tiny.reply(tiny.ASSISTANT, 50)
    assert reply == [*chain.CYCLE, *chain.CYCLE, *chain.CYCLE[:2]]


@pytest.mark.parametrize(
    "kind",
    ["deepseek4-support", "deepseek4-nextn", "qwen35-nextn", "gemma4-assistant", "eagle3", "llama-draft"],
)
@pytest.mark.parametrize(
    ("depth", "steps", "drafted", "judged", "accepted"),
    [
        (0, 200, 0, 0, 0),
        (1, 101, 100, 100, 99),
        (2, 100, 200, 150, 100),
        (3, 51, 152, 150, 149),
        (4, 51, 202, 199, 149),
    ],
)
def test_known_counts_when_every_fourth_word_is_wrong(
    kind: tiny.simulate.DrafterKind, depth: int, steps: int, drafted: int, judged: int, accepted: int
) -> None:
    got = tiny.simulate(END_NOW, 200, depth, kind)
    assert (got.steps, got.drafted, got.judged, got.accepted) == (steps, drafted, judged, accepted)
    assert got.tokens == tiny.reply(END_NOW[-1], 200)
    assert got.finish_reason == "length"


def test_known_counts_of_chained_heads() -> None:
    # Wrong after every third word, head i two words earlier: " now" misses; from there the steps are full,
    # full, a miss: 9 tokens in 3 steps. 1 + 22 * 9 + 1 tokens; the last miss has room for one draft, the last
    # step for none.
    got = tiny.simulate(END_NOW, 200, 4, "mimo2-nextn", wrong_every=3)
    assert (got.steps, got.drafted, got.judged, got.accepted) == (68, 199, 155, 132)


def test_characters_are_split_over_tokens_and_steps() -> None:
    got = tiny.simulate(tiny.encode("hi emoji"), 50, 2)
    emitted = [b"".join(vocab.piece(t) for t in step.emitted) for step in got.log]
    assert emitted == [b" look\xf0\x9f", b"\x98\x80\xe2", b"\x82\xac wow", b"\xc3\xa9"]


def test_an_end_token_inside_a_block_ends_the_reply_and_counts_as_accepted() -> None:
    got = tiny.simulate(tiny.encode("hi stop"), 50, 8)
    assert tiny.text(got.tokens) == " all done"
    assert (got.steps, got.drafted, got.judged, got.accepted) == (1, 3, 3, 3)
    assert got.finish_reason == "stop"


def test_a_drafter_that_misses_the_end_is_cut_off_by_the_target() -> None:
    got = tiny.simulate(tiny.encode("hi cut"), 50, 4)
    assert tiny.text(got.tokens) == " off here"
    assert (got.steps, got.drafted, got.judged, got.accepted) == (1, 4, 3, 2)
    assert got.origins == ["accepted", "accepted"]


def test_drafting_stops_at_a_control_token_and_the_reply_goes_on() -> None:
    got = tiny.simulate(tiny.encode("<｜Assistant｜><think>"), 50, 8)
    # " let me see this </think>" with " yes" after it, then " it is fine . EOS".
    assert [(len(s.drafts), s.accepted, len(s.emitted)) for s in got.log] == [(5, 5, 6), (5, 5, 4)]


def test_the_context_clamps_the_depth_and_then_ends_the_reply() -> None:
    # Two prompt tokens decoded, room for three: the last with two drafts, which miss.
    got = tiny.simulate(END_NOW, 50, 8, n_ctx=5)
    assert [(len(s.drafts), s.accepted) for s in got.log] == [(2, 0), (1, 1)]
    assert got.finish_reason == "context"


def test_files_are_made_once_and_named_by_their_parameters(tiny_dir: Path) -> None:
    first = tiny.build("llama-draft", tiny_dir, wrong_every=3)
    stamp = first.stat().st_mtime_ns
    assert tiny.build("llama-draft", tiny_dir, wrong_every=3) == first
    assert first.stat().st_mtime_ns == stamp
    assert tiny.build("llama-draft", tiny_dir, wrong_every=0) != first
    with pytest.raises(TypeError):
        tiny.build("llama", tiny_dir, wrong_every=3)
