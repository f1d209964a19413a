"""Prompts of the training data and the chat format around them. Needs no PyTorch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from eagle3_training.errors import TrainingError
from eagle3_training.prompts import (
    ASSISTANT,
    USER,
    ChatFormat,
    Prompts,
    catalogue,
    check_template,
    expand,
    prepare,
)
from tiny import vocab

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenize(text: str, special: bool) -> list[int]:
    """ChatML's marks as 0, 1, 2 where special, every other character by its code."""
    ids: list[int] = []
    while text:
        mark = next((m for m in MARKS if special and text.startswith(m)), None)
        ids.append(MARKS.index(mark) if mark else ord(text[0]))
        text = text[len(mark) if mark else 1 :]
    return ids


def spell(ids: list[int]) -> str:
    return "".join(MARKS[i] if i < 3 else chr(i) for i in ids)


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return prepare(tokenize, 256, ChatFormat(), catalogue(), n_prompts=300, n_continuations=400)


def test_a_seed_always_gives_the_same_prompts() -> None:
    """The shipped head was trained on these prompts; an edit of the lists would go unseen otherwise."""
    text = "\0".join(expand(catalogue(), 2000, 0))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("cc36374f4542aa3b7ac8dd35bc768a25")


def test_prompts_differ_from_each_other_and_from_the_held_out_ones() -> None:
    lists = catalogue()
    drawn = expand(lists, 3000)
    assert len(set(drawn)) == 3000
    held_out = {text for texts in lists["evaluation"].values() for text in texts}
    assert len(held_out) == 50
    assert not held_out & set(drawn)


def test_rows_start_in_the_chat_format(prompts: Prompts) -> None:
    for ids in prompts.starts:
        text = spell(ids)
        assert text.startswith(("<|im_start|>system\n", "<|im_start|>user\n"))
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert text.count("<|im_start|>user\n") == 1
        assert len(ids) <= 330
    openings = [spell(ids) for ids in prompts.openings]
    assert openings[0] == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n"
    )
    assert openings[-1] == "<|im_start|>user\n"
    assert prompts.opening_weights == [60, *[3] * 10, 10]
    assert (prompts.stops, prompts.assistant_close) == ([0, 1, 2], 2)
    assert spell(prompts.user_close) == "<|im_end|>\n<|im_start|>assistant\n"


def test_a_third_of_the_continuations_leaves_the_user_to_the_target(prompts: Prompts) -> None:
    by_role = {role: [c for c in prompts.continuations if c.role == role] for role in (USER, ASSISTANT)}
    assert 110 <= len(by_role[USER]) <= 170  # 35 % of 400
    assert {spell(c.tokens) for c in by_role[USER]} == {"\n<|im_start|>user\n"}
    for c in by_role[ASSISTANT]:
        assert spell(c.tokens).startswith("\n<|im_start|>user\n")
        assert spell(c.tokens).endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_users_words_hold_no_marks() -> None:
    lists = catalogue() | {"evaluation": {"mark": ["say <|im_end|> please"]}}
    made = prepare(tokenize, 256, ChatFormat(), lists, n_prompts=5, n_continuations=5)
    assert made.held_out[0].tokens.count(2) == 2  # the system's and the user's own end


def test_prompts_survive_the_file(prompts: Prompts, tmp_path: Path) -> None:
    prompts.save(tmp_path / "p.json")
    assert Prompts.load(tmp_path / "p.json") == prompts
    (tmp_path / "p.json").write_text('{"n_vocab": 3}', "utf-8")
    with pytest.raises(TrainingError, match="step 'prompts'"):
        Prompts.load(tmp_path / "p.json")


def test_held_out_prompts_are_cut_by_kind(prompts: Prompts) -> None:
    assert len(prompts.held_out_of(None)) == 50
    assert [p.kind for p in prompts.held_out_of(2)] == [
        kind for kind in ("chat", "code", "list", "maths", "rewrite") for _ in range(2)
    ]


def test_the_format_must_be_the_targets() -> None:
    assert check_template(CHATML, ChatFormat()) == ""
    assert "chat format" in check_template(CHATML.replace("assistant", "model"), ChatFormat())
    assert "does not render" in check_template("{{ 1 + }}", ChatFormat())
    deepseek = ChatFormat(
        start=vocab.CONTROL[0],
        system_open="",
        system_close="",
        user_open="<｜User｜>",
        user_close="<｜Assistant｜></think>",
    )
    assert check_template(vocab.CHAT_TEMPLATE, deepseek) == ""


def test_a_mark_that_is_no_token_is_refused() -> None:
    with pytest.raises(TrainingError, match="--chat-format"):
        prepare(tokenize, 256, ChatFormat(assistant_close="</s>"), catalogue(), n_prompts=5)


def test_a_chat_format_file(tmp_path: Path) -> None:
    path = tmp_path / "format.json"
    path.write_text(json.dumps({"start": "<s>", "stops": ["</s>"]}), "utf-8")
    form = ChatFormat.load(path)
    assert (form.start, form.stops, form.assistant_close) == ("<s>", ("</s>",), "<|im_end|>")
    assert form.opening("Be brief.") == ("<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    for bad in ('{"unknown": 1}', "[1]", "{"):
        path.write_text(bad, "utf-8")
        with pytest.raises(TrainingError, match="is not a chat format"):
            ChatFormat.load(path)
