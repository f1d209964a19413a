"""The shipped pair: the PyTorch target and head compute what llama.cpp computes from the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the training needs PyTorch: pip install torch==2.13.0")

from eagle3_training import reference  # noqa: E402
from eagle3_training.export import read_head  # noqa: E402
from eagle3_training.prompts import ChatFormat, catalogue  # noqa: E402
from eagle3_training.target import Target  # noqa: E402
from train_llama import llama_drafts, torch_drafts  # noqa: E402

from ds4chat.models.demo import demo_model, demo_support  # noqa: E402

QUESTION = "Write a Python function that returns the n-th Fibonacci number."


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(demo_model(), dtype=torch.float32)


@pytest.fixture(scope="module")
def text() -> tuple[list[int], reference.Floats]:
    """The question in the chat format with 40 greedy tokens behind it, and llama.cpp's logits."""
    form = ChatFormat()
    prompt = form.opening(catalogue()["default_system"]) + QUESTION + form.user_close
    with reference.llama_model(Path(demo_model())) as model:
        return reference.greedy_text(model, reference.tokenize(model, prompt, True), 40)


def test_the_target_agrees_with_llama_cpp(target: Target, text: tuple[list[int], reference.Floats]) -> None:
    agreement = reference.compare(target, *text)
    assert agreement.argmax >= 0.95
    assert agreement.kl <= 0.02
    assert agreement.good


def test_a_target_with_a_wrong_rope_is_found_out(text: tuple[list[int], reference.Floats]) -> None:
    """Half-turned heads (the layout of unpermuted weights) must not pass for the real thing."""
    broken = Target.load(demo_model(), dtype=torch.float32)
    half = broken.rope.cos.shape[1] // 2
    broken.rope = type(broken.rope)(broken.rope.cos.roll(half, 1), broken.rope.sin.roll(half, 1))
    assert not reference.compare(broken, *text).good


def test_the_shipped_head_drafts_as_in_llama_cpp(
    target: Target, text: tuple[list[int], reference.Floats]
) -> None:
    """The first three drafts are the same tokens; over all positions the first draft is the same in 95 %."""
    ids, _ = text
    head = read_head(Path(demo_support()), target)
    assert head.config.layers == (15, 21, 29)
    assert head.output.shape == (12288, 576)
    theirs = llama_drafts(Path(demo_model()), Path(demo_support()), ids, 3)
    ours = torch_drafts(head, target, ids, theirs.tokens)
    assert ours.tokens == theirs.tokens
    same = (ours.first.argmax(-1) == theirs.first.argmax(-1)).mean()
    assert same >= 0.95
    shifted = llama_drafts(Path(demo_model()), Path(demo_support()), ids, 1, feature_shift=1)
    assert (ours.first.argmax(-1) == shifted.first.argmax(-1)).mean() < 0.8


def test_the_shipped_head_predicts_the_targets_text(
    target: Target, text: tuple[list[int], reference.Floats]
) -> None:
    """Of the 40 greedy tokens the first draft has at least half right, as it should for code."""
    ids, _ = text
    head = read_head(Path(demo_support()), target)
    first = torch_drafts(head, target, ids, [0]).first.argmax(-1)
    drafted = head.vocabulary[torch.from_numpy(first)].tolist()  # row p is the draft of token p + 2
    right = sum(drafted[p - 2] == ids[p] for p in range(len(ids) - 40, len(ids)))
    assert right >= 20


def test_the_chat_format_is_the_targets_own() -> None:
    from eagle3_training.prompts import check_template

    with reference.llama_model(Path(demo_model())) as model:
        assert check_template(model.chat_template, ChatFormat()) == ""
        other = ChatFormat(**json.loads('{"user_open": "<|im_start|>human\\n"}'))
        assert "chat format" in check_template(model.chat_template, other)
