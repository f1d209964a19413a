"""The verification suite: ``pytest tests/verify --mtp-verify-depth N``.

With DS4_TEST_MODEL (and DS4_TEST_MTP, a support file or "embedded") it runs on that pair; without them on
constructed models whose streams are known. On a real model the batched kernels may round differently from
single decodes, so there a stream may leave plain decoding where the two best tokens are nearly equal: the
worst gap at such a place is what is asserted and printed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kits.engine import END_NOW, PAIRS, Bench, load_of, opened
from kits.scripted import accepted_lengths, every_length

from ds4chat.engine.control import Control
from ds4chat.engine.events import Event, Load, Prefill, Step

WORST_GAP = 2.0
"""Largest distance in logits between the best token and the emitted one that rounding can explain."""

COPY = (
    "Copy this code verbatim, and write nothing else:\n\n"
    "int main(void) {\n    int sum = 0;\n    for (int i = 0; i < 10; i++) {\n        sum += i;\n    }\n"
    '    printf("%d\\n", sum);\n    return 0;\n}\n'
)


@pytest.fixture(scope="module")
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--mtp-verify-depth"))


def _load(tiny_dir: Path, name: str) -> Load:
    model = os.environ.get("DS4_TEST_MODEL", "")
    if model:
        support = os.environ.get("DS4_TEST_MTP", "")
        return Load(model, support, lookup=not support, ctx=2048)
    return load_of(tiny_dir, name)


@pytest.fixture(
    scope="module",
    params=["real"] if os.environ.get("DS4_TEST_MODEL") else list(PAIRS),
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with opened(_load(tmp_path_factory.mktemp("tiny"), str(request.param))) as bench:
        yield bench


@pytest.fixture(scope="module")
def prompt() -> str:
    return COPY if os.environ.get("DS4_TEST_MODEL") else END_NOW


def worst_gap(bench: Bench, prompt: str, ids: Sequence[int]) -> float:
    """Largest (best logit - logit of the emitted token) when the stream is decoded one token at a time."""
    session = bench.session
    session.reset()
    tokens = [*session.prompter.raw(prompt).tokens, *ids]
    worst = 0.0
    first = len(tokens) - len(ids)
    for pos, token in enumerate(tokens[:-1]):
        session.caches.target.decode([token], pos, outputs="all")
        if pos + 1 >= first:
            row = session.caches.target.logits(1)[0]
            worst = max(worst, float(row.max() - row[tokens[pos + 1]]))
    session.reset()
    return worst


def test_the_stream_is_that_of_plain_decoding(
    bench: Bench, prompt: str, depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = bench.ask(prompt, 256, depth=0, ignore_eos=True)
    spec = bench.ask(prompt, 256, depth=depth, ignore_eos=True)
    gap = worst_gap(bench, prompt, spec.ids)
    with capsys.disabled():
        print(
            f"\nmtp-verify-depth depth={depth} tokens={len(spec.ids)} steps={spec.stats.steps} "
            f"accepted={spec.stats.accepted}/{spec.stats.judged} "
            f"equal={int(spec.ids == plain.ids)} worst_argmax_gap={gap:.3f}"
        )
    assert len(spec.ids) == 256
    assert spec.ids == plain.ids or 0 < gap <= WORST_GAP
    assert max(len(s.tokens) for s in spec.steps) > 1, "no step committed more than one token"


def test_every_acceptance_length_in_turn_gives_the_same_stream(bench: Bench, prompt: str, depth: int) -> None:
    """Lengths 0..N at successive steps: rollbacks of every size, each checked by all that follows."""
    session = bench.session
    plain = bench.ask(prompt, 120, depth=0, ignore_eos=True)
    start = len(session.prompter.raw(prompt).tokens)
    real = session.caches.drafter
    session.reset()
    session.caches.drafter = every_length(start, plain.ids, depth, wrong=(9, 10))
    try:
        got = bench.ask(prompt, 120, depth=depth, ignore_eos=True)
        used = session.caches.target.used
    finally:
        session.caches.drafter = real
        session.reset()
    assert got.stats.steps > depth + 1
    if os.environ.get("DS4_TEST_MODEL"):
        assert worst_gap(bench, prompt, got.ids) <= WORST_GAP
        return
    assert got.ids == plain.ids
    assert accepted_lengths(got, depth) >= set(range(depth + 1))
    assert used == start + 120 - 1


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_limits_inside_a_block(bench: Bench, prompt: str, depth: int, n: int) -> None:
    assert len(bench.ask(prompt, n, depth=depth, ignore_eos=True).ids) == n


def test_near_the_context_end(bench: Bench, prompt: str, depth: int) -> None:
    session = bench.session
    room = session.n_ctx
    plain = bench.ask(prompt, 6, depth=0, ignore_eos=True)
    session.n_ctx = len(session.prompter.raw(prompt).tokens) + 5
    try:
        got = bench.ask(prompt, depth=depth, ignore_eos=True)
    finally:
        session.n_ctx = room
    assert got.ended.finish_reason == "context"
    assert got.ids == plain.ids
    assert not got.notices


def test_a_stop_string_inside_a_block(bench: Bench, prompt: str, depth: int) -> None:
    whole = bench.ask(prompt, 60, depth=0, ignore_eos=True).text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
    got = bench.ask(prompt, 60, depth=depth, ignore_eos=True, stop=(stop,))
    assert got.text == whole[: whole.find(stop)]
    assert bench.session.caches.target.used == len(bench.session.caches.tokens)


@pytest.mark.parametrize("phase", ["prefill", "step"])
def test_a_cancel_leaves_the_next_reply_as_it_would_be(
    bench: Bench, prompt: str, depth: int, phase: str
) -> None:
    fresh = bench.ask(prompt, 40, depth=depth, ignore_eos=True)

    def hook(event: Event, control: Control) -> None:
        wanted = Prefill if phase == "prefill" else Step
        if isinstance(event, wanted):
            control.cancel()

    bench.ask(prompt + " and more" * 50, 40, depth=depth, hook=hook)
    again = bench.ask(prompt, 40, depth=depth, ignore_eos=True)
    assert again.ids == fresh.ids or worst_gap(bench, prompt, again.ids) <= WORST_GAP


@pytest.mark.parametrize("words", [1, 2, 127, 128, 129])
def test_odd_prompt_lengths(bench: Bench, depth: int, words: int) -> None:
    text = " now" * words
    plain = bench.ask(text, 16, depth=0, ignore_eos=True)
    bench.session.reset()
    got = bench.ask(text, 16, depth=depth, ignore_eos=True)
    assert got.ids == plain.ids or worst_gap(bench, text, got.ids) <= WORST_GAP
