"""What a drafter does while it rests, and how it comes back: on tiny pairs whose drafts are all right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import tiny
from kits.engine import END_NOW, Bench, load_of, opened

from ds4chat.engine.control import Control
from ds4chat.engine.drafters.base import STEP
from ds4chat.engine.drafters.hidden import FLUSH, WINDOW
from ds4chat.engine.events import Event, Prefill, Step, Tuning
from ds4chat.engine.llama import _get_layer_input

HIDDEN = ["deepseek4-support", "deepseek4-nextn", "qwen35-nextn", "eagle3", "mimo2-nextn"]
SHIFT = {"eagle3": 1}


@contextmanager
def watched(folder: Path, name: str) -> Iterator[tuple[Bench, list[tuple[int, int, str]]]]:
    """A bench whose drafts are all right, and a list of what its drafter decodes: position, rows, outputs."""
    with opened(load_of(folder, name, wrong_every=0)) as bench:
        context = bench.session.caches.drafter._context  # type: ignore[union-attr]
        real, decoded = context.decode, []

        def decode(tokens: Any, pos: int, *, outputs: str = "all", **more: Any) -> None:
            decoded.append((pos, len(tokens), outputs))
            real(tokens, pos, outputs=outputs, **more)

        context.decode = decode
        yield bench, decoded


def drafting_after(tokens: int) -> Any:
    """A hook that has a reply draft from so many of its tokens on."""
    count = 0

    def hook(event: Event, control: Control) -> None:
        nonlocal count
        if isinstance(event, Step):
            count += len(event.tokens)
            if count >= tokens:
                control.tuning = Tuning(depth=3)

    return hook


@pytest.mark.parametrize("name", HIDDEN)
def test_a_resting_drafter_decodes_nothing_and_keeps_its_one_ring(tiny_dir: Path, name: str) -> None:
    """However long it rests, the target's rows go into the same memory."""
    with watched(tiny_dir, name) as (bench, decoded):
        drafter = bench.session.caches.drafter
        assert drafter is not None
        ring = drafter._hidden.ctypes.data  # type: ignore[attr-defined]
        bench.ask(n=300, depth=0)
        assert decoded == []
        assert drafter._hidden.ctypes.data == ring  # type: ignore[attr-defined]
        assert drafter.behind(len(bench.session.caches.tokens)) == WINDOW


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("rest", [1, STEP, FLUSH, WINDOW + 20])
def test_drafts_are_right_at_once_after_a_rest(tiny_dir: Path, name: str, rest: int) -> None:
    """The features are those of the tokens that they stand beside, wherever the ring has wrapped."""
    with watched(tiny_dir, name) as (bench, decoded):
        answer = bench.ask(n=rest + 40, depth=0, hook=drafting_after(rest))
        assert answer.ids == tiny.reply(tiny.encode(END_NOW)[-1], rest + 40)
        assert answer.stats.judged == answer.stats.accepted >= 20
        behind = len(tiny.encode(END_NOW)) - 1 + rest - SHIFT.get(name, 0)
        certain = takewhile(lambda batch: batch[2] == "none", decoded)
        cells = {cell for pos, rows, _ in certain for cell in range(pos, pos + rows)}
        # Its first draft goes along with what a step leaves, but for heads that have to run one by one.
        alone = behind > STEP or name == "mimo2-nextn"
        assert len(cells) == (min(behind, WINDOW) if alone else 0)


@pytest.mark.parametrize("name", ["deepseek4-nextn", "eagle3"])
def test_after_any_rest_the_batches_are_of_one_size(tiny_dir: Path, name: str) -> None:
    """Whether the first of the tokens had a cell or not, so that llama.cpp has one graph for all."""
    sizes = set()
    for rest in (20, FLUSH + 20, 170, WINDOW + 40):
        with watched(tiny_dir, name) as (bench, decoded):
            start = drafting_after(rest)

            def hook(event: Event, control: Control, start: Any = start, decoded: list = decoded) -> None:
                start(event, control)
                if isinstance(event, Prefill):
                    decoded.clear()

            bench.ask(" we" * 299 + " now", n=rest + 30, depth=0, hook=hook)
            sizes |= {rows for _, rows, outputs in decoded if outputs == "none"}
    assert sizes == {FLUSH}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("keep", [2, 30, 120, 195])
def test_an_edit_within_a_rest_leaves_drafts_right(tiny_dir: Path, name: str, keep: int) -> None:
    """The conversation is cut back to where the drafter has no cells, no features, or both."""
    with watched(tiny_dir, name) as (bench, _):
        bench.ask(n=200, depth=0)
        said = tiny.text(bench.session.caches.tokens[:keep])
        answer = bench.ask(said, n=60, depth=3)
        assert answer.ids == tiny.reply(tiny.encode(said)[-1], 60)
        assert answer.stats.judged == answer.stats.accepted > 0


@pytest.mark.parametrize("name", [*HIDDEN, "llama-draft"])
def test_a_drafter_that_read_the_prompt_is_not_behind(tiny_dir: Path, name: str) -> None:
    prompt = " we" * 299 + " now"
    with watched(tiny_dir, name) as (bench, _):
        bench.ask(prompt, n=1, depth=0)
        assert bench.session.caches.drafter is not None
        assert bench.session.caches.drafter.behind(299) == 0


def test_a_draft_model_is_behind_by_what_it_has_not_decoded(tiny_dir: Path) -> None:
    with watched(tiny_dir, "llama-draft") as (bench, decoded):
        bench.ask(" we" * 99 + " now", n=50, depth=0)
        n = len(bench.session.caches.tokens)
        assert decoded == [(0, 100, "none")]
        assert bench.session.caches.drafter is not None
        assert bench.session.caches.drafter.behind(n) == n - 100 == 50


@pytest.mark.parametrize("wrong_every", [0, 4])
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_a_draft_models_first_pass_is_of_two_tokens(tiny_dir: Path, depth: int, wrong_every: int) -> None:
    """Whatever was accepted before: cells of accepted drafts stand, and one token is decoded again where all
    but the last one do. Every other pass is of one token."""
    with opened(load_of(tiny_dir, "llama-draft", wrong_every=wrong_every)) as bench:
        context = bench.session.caches.drafter._context  # type: ignore[union-attr]
        real, decoded = context.decode, []

        def decode(tokens: Any, pos: int, **more: Any) -> None:
            assert pos == context.used
            decoded.append((pos, len(tokens)))
            real(tokens, pos, **more)

        context.decode = decode
        answer = bench.ask(n=120, depth=depth)
        assert answer.ids == tiny.reply(tiny.encode(END_NOW)[-1], 120)
        drafting = sum(step.drafted > 0 for step in answer.steps)
        rows = [rows for _, rows in decoded[1:]]  # the first is the prompt
        assert set(rows) <= {1, 2}
        assert rows.count(2) == drafting


def test_a_prompt_that_follows_a_reply_gets_its_cells_once(tiny_dir: Path) -> None:
    """It is longer than the ring, and what the last step left goes before it."""
    with watched(tiny_dir, "eagle3") as (bench, decoded):
        bench.ask(n=30, depth=3)
        decoded.clear()
        said = tiny.text(bench.session.caches.tokens) + " we" * 200 + " so"
        answer = bench.ask(said, n=40, depth=3)
        assert answer.stats.judged - answer.stats.accepted <= 1  # no cycle of words foretells the first
        certain = [(pos, rows) for pos, rows, outputs in decoded if outputs == "none"]
        assert all(pos + rows == after for (pos, rows), (after, _) in pairwise(certain))
        assert 200 <= sum(rows for _, rows in certain) <= 200 + STEP


@pytest.mark.parametrize("layers", [[0, 1, 2], [2, 0], [1, 1]])
def test_layer_inputs_are_those_of_each_layer(tiny_dir: Path, layers: list[int]) -> None:
    """In the order in which they were enabled, whatever the order in which llama.cpp keeps them."""
    with opened(load_of(tiny_dir, "eagle3", wrong_every=0)) as bench:
        target = bench.session.caches.target
        target.enable_layer_inputs(range(target.model.n_layer + 1), on=False)
        target.enable_layer_inputs(layers)
        target.decode(tiny.encode(" we so now"), 0)
        inputs = target.layer_inputs(3)
        width = target.model.n_embd
        assert inputs.shape == (len(layers), 3, width)
        for layer, rows in zip(layers, inputs, strict=True):
            assert (rows == target._view(_get_layer_input(target.handle, layer), 3, width)).all()
