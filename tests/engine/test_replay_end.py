"""The lossless check and the end of a reply: one that stops short differs, though all it emitted is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
from kits.engine import END_NOW, Bench, load_of, opened
from kits.scripted import Scripted

from ds4chat.engine import replay

CYCLE = tiny.reply(tiny.encode(END_NOW)[-1], 40)
"""What plain decoding answers to END_NOW; it never ends by itself."""


def end_after(bench: Bench, tokens: int, depth: int) -> None:
    """Make the drafter right, except that it drafts the end token behind this many tokens of the reply."""
    start = len(tiny.encode(END_NOW))
    stream = [*CYCLE[:tokens], tiny.EOS, *CYCLE[tokens:]]

    def plan(committed: int, room: int) -> Sequence[int]:
        at = committed + 1 - start
        return stream[at : at + room]

    bench.session.caches.drafter = Scripted(depth, plan)


@pytest.mark.parametrize("tokens", [4, 5, 6])
def test_an_end_token_that_comes_too_early_is_the_first_difference(tiny_dir: Path, tokens: int) -> None:
    """Margin 0 accepts a drafted end as the first, second and third of its block; plain decoding goes on."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        start = bench.ask(n=1, depth=0).ended.prompt_tokens
        assert start == len(tiny.encode(END_NOW))
        bench.session.reset()
        end_after(bench, tokens, depth=3)
        got = bench.ask(n=40, depth=3, margin=0.0)
        assert (got.ended.finish_reason, got.ids) == ("stop", CYCLE[:tokens])
        answer = bench.check()
    assert (answer.equal, answer.first_difference, answer.compared) == (False, tokens, tokens + 1)
    assert (answer.spec_token, answer.plain_token) == (tiny.EOS, CYCLE[tokens])
    assert answer.spec_text == "<｜end▁of▁sentence｜>"
    assert answer.gap > replay.TIE
    assert "where the reply ends" in answer.detail and "approximate" in answer.detail


@pytest.mark.parametrize("prompt", [" please stop", " please cut"])
@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_an_end_that_plain_decoding_has_too_is_compared_and_equal(
    tiny_dir: Path, prompt: str, depth: int
) -> None:
    """Both replies have two tokens, then the end: three rows are compared."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        got = bench.ask(prompt, depth=depth)
        assert (got.ended.finish_reason, len(got.ids)) == ("stop", 2)
        answer = bench.check()
    assert (answer.equal, answer.compared, answer.first_difference) == (True, 3, -1)
    assert "All 2 tokens and the end of the reply" in answer.detail


def test_a_stop_string_is_no_end_token_and_is_not_looked_for(tiny_dir: Path) -> None:
    """The reply ends behind the string's last token; what plain decoding says next is of no concern."""
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        text = bench.ask(n=12, depth=0).text
        word = text.split()[4]
        bench.session.reset()
        got = bench.ask(n=12, depth=3, stop=(word,))
        assert got.ended.finish_reason == "stop"
        answer = bench.check()
    assert (answer.equal, answer.compared) == (True, len(got.ids))
