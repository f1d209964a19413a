"""Thinking and ends of turns in models of their own vocabulary and template, through llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny
from kits.engine import Answer, Bench, opened

from ds4chat.engine.events import Load, Message

TURNS = "{% for m in messages %}<|role>{{ m.role }}\n{{ m.content }}<role|>\n{% endfor %}"
OPENED = "{% if add_generation_prompt %}<|role>assistant\n{% endif %}"
MARKS = ("<|role>", "<role|>")
ANSWER = (" it", " is", " five", "<role|>")


@contextmanager
def speaker(folder: Path, *says: str, special: tuple[str, ...] = (), **more: Any) -> Iterator[Bench]:
    """A session of a model that says these tokens, whose template writes turns between MARKS."""
    parameters = {"template": TURNS + OPENED, "eos": "<role|>", **more}
    path = tiny.build("llama-speaker", folder, says=says, special=(*MARKS, *special), **parameters)
    with opened(Load(str(path), ctx=512, threads=1)) as bench:
        yield bench


def told(got: Answer) -> tuple[str, str]:
    """The thinking and the answer."""
    thinking = "".join(t.text for t in got.tokens if t.thinking) + got.ended.thinking_tail
    return thinking, "".join(t.text for t in got.tokens if not t.thinking) + got.ended.tail


def chat(bench: Bench, *messages: Message, **more: Any) -> Answer:
    return bench.ask(messages=messages or (Message("user", "hi"),), prompt=None, **more)


FAMILIES = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
    "command": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma": ("<|channel>", "<channel|>"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "its own": ("<|begin_of_thought|>", "<|end_of_thought|>"),
}


@pytest.mark.parametrize("user_defined", [False, True], ids=["control", "user-defined"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_told_by_its_tokens(tiny_dir: Path, family: str, user_defined: bool) -> None:
    begin, end = FAMILIES[family]
    says = (begin, " let", " me", " see", end, *ANSWER)
    with speaker(tiny_dir, *says, special=(begin, end), user_defined=user_defined) as bench:
        got = chat(bench)
        assert told(got) == (" let me see", " it is five")
        assert got.ended.finish_reason == "stop"
        assert [t.thinking for t in got.tokens] == [True] * 5 + [False] * 3
        # Cut within the thought, all of it is one; the conversation goes on without it.
        assert told(chat(bench, n=3)) == (" let me", "")
        past = Message("assistant", " it is five", " let me see")
        prompt = bench.session.prompter.chat([Message("user", "hi"), past, Message("user", "so")], think=True)
        text = b"".join(
            bench.session.caches.target.model.piece(t, special=True) for t in prompt.tokens
        ).decode()
        assert text == (
            "<|role>user\nhi<role|>\n<|role>assistant\n it is five<role|>\n"
            "<|role>user\nso<role|>\n<|role>assistant\n"
        )


def test_a_template_that_asks_for_past_thinking_gets_it(tiny_dir: Path) -> None:
    template = (
        "{% for m in messages %}<|role>{{ m.role }}\n{% if m.reasoning_content %}<think>"
        "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<role|>\n{% endfor %}" + OPENED
    )
    with speaker(tiny_dir, *ANSWER, special=("<think>", "</think>"), template=template) as bench:
        turns = [Message("user", "hi"), Message("assistant", "five", "hm"), Message("user", "so")]
        prompt = bench.session.prompter.chat(turns, think=True)
        text = b"".join(
            bench.session.caches.target.model.piece(t, special=True) for t in prompt.tokens
        ).decode()
        assert "<|role>assistant\n<think>hm</think>five<role|>" in text


def test_tags_that_the_template_alone_knows_are_found(tiny_dir: Path) -> None:
    template = (
        "{% for m in messages %}<|role>{{ m.role }}\n{% if m.reasoning_content %}<muse>\n"
        "{{ m.reasoning_content }}\n</muse>\n{% endif %}{{ m.content }}<role|>\n{% endfor %}" + OPENED
    )
    says = ("<mu", "se>\n", " let", " me", "\n</", "muse>\n", *ANSWER)
    with speaker(tiny_dir, *says, template=template) as bench:
        assert told(chat(bench)) == (" let me", " it is five")


def test_a_thought_in_a_turn_of_its_own_is_followed_by_the_answer(tiny_dir: Path) -> None:
    """The token that ends the thought is the one by which the template ends turns."""
    template = (
        "{% for m in messages %}{% if m.reasoning_content %}<|role>assistant/think\n{{ m.reasoning_content }}"
        "<role|>\n{% endif %}<|role>{{ m.role }}\n{{ m.content }}<role|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|role>assistant{% if skip_reasoning %}\n{% endif %}{% endif %}"
    )
    says = ("/th", "ink\n", " let", " me", "<role|>", "<|role>", "assistant", "\n", *ANSWER[:-1], "<eos>")
    with speaker(tiny_dir, *says, template=template, eos="") as bench:
        got = chat(bench)
        assert told(got) == (" let me", " it is five")
        assert got.ended.finish_reason == "stop"
        assert told(chat(bench, n=4)) == (" let me", "")


SWITCHES = {
    "enable_thinking": "enable_thinking is defined and not enable_thinking",
    "thinking": "thinking is defined and not thinking",
    "reasoning": "reasoning is defined and not reasoning",
    "reasoning_effort": "reasoning_effort == 'none'",
    "thinking_budget": "thinking_budget == 0",
    "/no_think": "'/no_think' in messages[0].content",
}


@pytest.mark.parametrize("off", SWITCHES.values(), ids=SWITCHES)
def test_the_templates_own_switch_shuts_the_thought(tiny_dir: Path, off: str) -> None:
    """As most templates do it: the prompt then ends with an empty one."""
    template = OPENED.replace("{% endif %}", f"{{% if {off} %}}<think></think>{{% endif %}}{{% endif %}}")
    says = ("<think>", " let", " me", "</think>", *ANSWER)
    with speaker(tiny_dir, *says, special=("<think>", "</think>"), template=TURNS + template) as bench:
        assert told(chat(bench, think=True)) == (" let me", " it is five")
        assert told(chat(bench, think=False)) == ("", " it is five")


def test_a_thought_that_the_template_opens_ends_with_its_token(tiny_dir: Path) -> None:
    template = OPENED.replace("{% endif %}", "<think>\n{% endif %}")
    says = (" let", " me", "</think>", *ANSWER)
    with speaker(tiny_dir, *says, special=("<think>", "</think>"), template=TURNS + template) as bench:
        assert told(chat(bench)) == (" let me", " it is five")
        assert told(chat(bench, n=1)) == (" let", "")


def test_a_wrong_end_token_does_not_let_the_model_go_on(tiny_dir: Path) -> None:
    """The file names <eos> as its end; the template says how the assistant's turn ends."""
    says = (*ANSWER, ".\n", "<|role>", "user", " and", "<eos>")
    with speaker(tiny_dir, *says, eos="") as bench:
        end = bench.session.prompter.chat([Message("user", "hi")], think=True).format.ends
        assert not any(bench.session.caches.target.model.is_eog(token) for token in end)
        got = chat(bench)
        assert told(got) == ("", " it is five")
        assert (got.ended.finish_reason, got.ended.detail, len(got.ids)) == ("stop", "", 3)
        on = chat(bench, ignore_eos=True, n=8)
        assert len(on.ids) == 8
        assert told(on) == ("", " it is five.\nuser and")
        raw = bench.ask("hi", n=6)
        assert len(raw.ids) == 6  # no template was asked


@pytest.mark.parametrize("depth", [0, 4])
def test_a_reply_that_begins_the_next_turn_ends_and_says_so(tiny_dir: Path, depth: int) -> None:
    says = (" it", " is", " five", ".\n", "<|role>", "user", " and", "<eos>")
    with speaker(tiny_dir, *says, eos="") as bench:
        got = chat(bench, depth=depth)
        assert told(got) == ("", " it is five.\n")
        assert got.ended.finish_reason == "stop"
        assert got.ended.detail.startswith("The model began to write the user's next turn itself")
        assert bench.session.caches.target.used == len(bench.session.caches.tokens)


def test_the_lossless_check_knows_the_templates_end(tiny_dir: Path) -> None:
    with speaker(tiny_dir, *ANSWER, eos="") as bench:
        got = chat(bench)
        assert got.ended.finish_reason == "stop"
        assert bench.session._last is not None
        assert bench.session._last.end_token == 2
