"""Bytes to text, stop strings, thinking apart from answers and the ends of turns, however tokens cut them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jinja2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ds4chat.engine.events import Message
from ds4chat.engine.reply_text import ReplyFormat, ReplyText
from ds4chat.engine.thinking import (
    FAMILIES,
    Family,
    TurnMarks,
    declared_by_template,
    declared_by_tokens,
    switches,
    system_switch,
    turn_marks,
    turn_of,
    with_word,
)

SPELLED = ReplyFormat({})
"""Of a vocabulary without special tokens."""


def with_tokens(*texts: str, **more: Any) -> ReplyFormat:
    """The format of a vocabulary with these control tokens, numbered from 0."""
    special = {text: token for token, text in enumerate(texts)}
    return ReplyFormat(special, set(special.values()), **more)


def cut(written: str, special: tuple[str, ...]) -> list[tuple[bytes, int]]:
    """A text as tokens: special ones, and of the rest one a character."""
    pattern = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)"
    pieces: list[tuple[bytes, int]] = []
    for part in re.split(f"({pattern})", written):
        if part in special:
            pieces.append((b"", special.index(part)))
        else:
            pieces += [(char.encode(), -1) for char in part]
    return pieces


def read(text: ReplyText, pieces: list[tuple[bytes, int]]) -> tuple[str, str]:
    """The thinking and the answer that the pieces come to."""
    said = {True: "", False: ""}
    for piece, token in pieces:
        added, thinking = text.push(piece, token)
        said[thinking] += added
        if text.stopped:
            break
    tail, thinking_tail = text.finish()
    return said[True] + thinking_tail, said[False] + tail


# ---------------------------------------------------------------------------- characters, stop strings


def push_all(text: ReplyText, pieces: list[bytes]) -> list[str]:
    return [text.push(piece)[0] for piece in pieces]


def test_a_character_comes_with_the_token_that_completes_it() -> None:
    """An emoji split over tokens, as it may be over accepted tokens or over two steps."""
    whole = "🙂".encode()
    pieces = [b"a", whole[:1], whole[1:3], whole[3:] + b"b"]
    assert push_all(ReplyText(SPELLED), pieces) == ["a", "", "", "🙂b"]


def test_bytes_that_are_not_utf8_come_out_as_replacement_characters() -> None:
    text = ReplyText(SPELLED)
    assert push_all(text, [b"\x80", b"\xc3", b"x"]) == ["\ufffd", "", "\ufffdx"]
    assert text.push(b"\xe2\x82")[0] == ""
    assert text.finish() == ("\ufffd", "")


@given(st.text(), st.lists(st.integers(1, 4), max_size=40))
def test_any_cutting_of_utf8_gives_the_text_back(written: str, cuts: list[int]) -> None:
    raw = ("." + written).encode("utf-8", "replace")
    text, out, at = ReplyText(SPELLED), "", 0
    for n in cuts:
        out += text.push(raw[at : at + n])[0]
        at += n
    assert out + text.push(raw[at:])[0] + text.finish()[0] == raw.decode("utf-8", "replace")


def test_a_stop_string_over_three_tokens_never_shows() -> None:
    text = ReplyText(SPELLED, stop=["\nUser:"])
    assert push_all(text, [b"fine.\n", b"Us", b"er: hi"]) == ["fine.", "", ""]
    assert text.stopped == "stop"


def test_text_held_back_for_a_stop_string_comes_when_it_does_not_complete() -> None:
    text = ReplyText(SPELLED, stop=["\nUser:"])
    assert push_all(text, [b"a\nUs", b"age"]) == ["a", "\nUsage"]
    assert not text.stopped
    assert text.push(b"\nUse")[0] == ""
    assert text.finish() == ("\nUse", "")


def test_text_before_a_stop_string_in_the_same_token_is_kept() -> None:
    text = ReplyText(SPELLED, stop=["END"])
    assert text.push(b"last words END and more")[0] == "last words "
    assert text.stopped


def test_a_special_token_stops_as_its_text() -> None:
    form = with_tokens("<think>", "</think>", "<|tool|>")
    assert read(ReplyText(form, stop=["</think>"]), [(b"", 0), (b"hm", -1), (b"", 1), (b"x", -1)]) == (
        "hm",
        "",
    )
    assert read(ReplyText(form, stop=["<|tool|>"]), [(b"x", -1), (b"", 2), (b"y", -1)]) == ("", "x")


# ---------------------------------------------------------------------------- families

GPT_OSS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>")
COMMAND = ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
SOLAR = ("<|begin|>", "<|think|>", "<|content|>", "<|end|>")
KIMI = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
MUSE = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
CASES: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "think": (("<think>", "</think>"), "<think>\nhm\n</think>\n\nyes", "hm", "yes"),
    "think, spelled": ((), "<think>\nhm\n</think>\n\nyes", "hm", "yes"),
    "think, unclosed": (("<think>", "</think>"), "<think>\nhm so", "hm so", ""),
    "think, unclosed and spelled, cut in its tag": ((), "<think>hm</thi", "hm</thi", ""),
    "think, empty": (("<think>", "</think>"), "<think>\n\n</think>\n\nyes", "", "yes"),
    "think, not at all": (("<think>", "</think>"), "\nyes\n", "", "\nyes\n"),
    "think, in between": (("<think>", "</think>"), "a\n<think>b</think>c", "b", "a\nc"),
    "think, twice": (("<think>", "</think>"), "<think>a</think>b<think>c</think>d", "a\n\nc", "b\n\nd"),
    "think, closed again": (("<think>", "</think>"), "<think>a</think>b</think>c", "a", "bc"),
    "mistral": (("[THINK]", "[/THINK]"), "[THINK]hm[/THINK]yes", "hm", "yes"),
    "mistral, spelled": ((), "[THINK]hm[/THINK]yes", "hm", "yes"),
    "seed": (("<seed:think>", "</seed:think>"), "<seed:think>hm</seed:think>yes", "hm", "yes"),
    "kimi-vl, spelled": ((), "◁think▷hm◁/think▷yes", "hm", "yes"),
    "command": (
        COMMAND,
        "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>yes<|END_RESPONSE|>",
        "hm",
        "yes",
    ),
    "command, answer alone": (COMMAND, "<|START_RESPONSE|>yes<|END_RESPONSE|>", "", "yes"),
    "gemma": (("<|channel>", "<channel|>"), "<|channel>thought\nhm\n<channel|>yes", "hm", "yes"),
    "gemma, no label": (
        ("<|channel>", "<channel|>"),
        "<|channel>thoughtful<channel|>yes",
        "thoughtful",
        "yes",
    ),
    "gemma, empty": (("<|channel>", "<channel|>"), "<|channel>thought\n<channel|>yes", "", "yes"),
    "gemma, unclosed": (("<|channel>", "<channel|>"), "<|channel>thought\nhm", "hm", ""),
    "apertus": (
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        "<|inner_prefix|>hm<|inner_suffix|>yes",
        "hm",
        "yes",
    ),
    "openpangu": (("[unused16]", "[unused17]"), "[unused16]hm[unused17]yes", "hm", "yes"),
    "gpt-oss": (
        GPT_OSS,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
        "hm",
        "yes",
    ),
    "gpt-oss, answer alone": (GPT_OSS, "<|channel|>final<|message|>yes", "", "yes"),
    "gpt-oss, unclosed": (GPT_OSS, "<|channel|>analysis<|message|>hm", "hm", ""),
    "gpt-oss, no channels": (GPT_OSS, "yes", "", "yes"),
    "gpt-oss, spoken to twice": (
        GPT_OSS,
        "<|channel|>commentary<|message|>wait<|end|><|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
        "<|start|>assistant<|channel|>final<|message|>yes",
        "hm",
        "wait\n\nyes",
    ),
    "gpt-oss, a call": (
        GPT_OSS,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{}",
        "hm\n\n{}",
        "",
    ),
    "muse": (
        MUSE,
        " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes to=me",
        "hm",
        "yes to=me",
    ),
    "muse, answer alone": (MUSE, " to=user<|message|>yes", "", "yes"),
    "muse, empty thought": (
        MUSE,
        " to=self<|message|><|eom|><|start|>assistant to=user<|message|>a",
        "",
        "a",
    ),
    "muse, unclosed": (MUSE, " to=self<|message|>hm", "hm", ""),
    "muse, a call": (MUSE, " to=a.b<|message|>{}", "{}", ""),
    "muse, cut in its header": (MUSE, " to=sel", "", ""),
    "muse, no header": (MUSE, " too much to=say", "", " too much to=say"),
    "solar": (SOLAR, "<|think|>hm<|end|><|begin|>assistant<|content|>yes", "hm", "yes"),
    "kimi k3": (
        KIMI,
        "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>yes<|close|>response<|sep|>",
        "hm",
        "yes",
    ),
    "a pair of the vocabulary": (
        ("<|begin_of_cot|>", "<|end_of_cot|>"),
        "<|begin_of_cot|>hm<|end_of_cot|>yes",
        "hm",
        "yes",
    ),
    "thinking, spelled": ((), "<thinking>\nhm\n</thinking>\n\nyes", "hm", "yes"),
    "thought, spelled": ((), "<thought>hm</thought>yes", "hm", "yes"),
    "reasoning, spelled": ((), "<reasoning>hm</thought></reasoning>yes", "hm</thought>", "yes"),
    "think, opened twice and spelled": ((), "<think>\n<think>\nhm <think></think>yes", "hm <think>", "yes"),
    "open thoughts, spelled": (
        (),
        "<|begin_of_thought|>\nhm\n<|end_of_thought|>\n\n<|begin_of_solution|>\nyes\n<|end_of_solution|>",
        "hm",
        "yes\n",
    ),
    "open thoughts": (
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        "<|begin_of_thought|>hm<|end_of_thought|><|begin_of_solution|>yes<|end_of_solution|>",
        "hm",
        "yes",
    ),
}


@pytest.mark.parametrize(("special", "written", "thinking", "answer"), CASES.values(), ids=CASES)
def test_a_reply_is_told_into_thinking_and_answer(
    special: tuple[str, ...], written: str, thinking: str, answer: str
) -> None:
    assert read(ReplyText(with_tokens(*special)), cut(written, special)) == (thinking, answer)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case[0]])
@given(cuts=st.lists(st.integers(1, 9), max_size=20))
@example(cuts=[])
@example(cuts=[99])
def test_a_spelled_tag_may_be_cut_anywhere(name: str, cuts: list[int]) -> None:
    """Over tokens, and inside of one that holds both thinking and answer."""
    _, written, thinking, answer = CASES[name]
    raw, at, pieces = written.encode(), 0, []
    for n in cuts:
        pieces.append((raw[at : at + n], -1))
        at += n
    assert read(ReplyText(SPELLED), [*pieces, (raw[at:], -1)]) == (thinking, answer)


def test_each_token_is_told_by_what_it_shows() -> None:
    text = ReplyText(SPELLED)
    pieces = [b"<", b"think", b">", b"hm", b"</", b"think", b">\n\nso", b" yes"]
    assert [text.push(piece) for piece in pieces] == [
        ("", False),
        ("", False),
        ("", True),
        ("hm", True),
        ("", True),
        ("", True),
        ("so", False),
        (" yes", False),
    ]


def test_tags_that_are_tokens_count_as_thinking() -> None:
    text = ReplyText(with_tokens("<think>", "</think>"))
    assert [text.push(*p) for p in [(b"", 0), (b"hm", -1), (b"", 1), (b"yes", -1)]] == [
        ("", True),
        ("hm", True),
        ("", True),
        ("yes", False),
    ]


@pytest.mark.parametrize("special", [("<think>", "</think>"), GPT_OSS])
def test_a_tag_that_is_spelled_is_text_where_the_vocabulary_has_tokens(special: tuple[str, ...]) -> None:
    """As in an answer about HTML or about chat formats, and in a thought that mentions another family's."""
    written = "The tags <think>, </think> and [THINK], and <|channel|>analysis<|message|>."
    pieces = [(char.encode(), -1) for char in written]
    assert read(ReplyText(with_tokens(*special)), pieces) == ("", written)
    thought = with_tokens("<think>", "</think>")
    assert read(ReplyText(thought), [(b"", 0), *pieces, (b"", 1), (b"yes", -1)]) == (written, "yes")


@pytest.mark.parametrize("before", ["The tag ", "\n\nSee "])
def test_a_spelled_tag_opens_no_thought_in_the_midst_of_an_answer(before: str) -> None:
    written = f"{before}<think> opens a thought and </think> ends it."
    assert read(ReplyText(SPELLED), [(written.encode(), -1)]) == ("", written)


def test_ordinary_words_open_a_thought_at_a_prompts_end_alone() -> None:
    written = b"Here are my reasoning steps:\nfirst"
    assert read(ReplyText(SPELLED), [(written, -1)]) == ("", written.decode())


def test_a_spelled_tag_counts_beside_tokens_of_another_family() -> None:
    """Every Gemma has <unused94>, which MedGemma alone thinks with."""
    form = with_tokens("<unused94>", "<unused95>")
    assert read(ReplyText(form), [(b"<think>hm</think>yes", -1)]) == ("hm", "yes")


def test_a_spelled_thought_is_ended_by_its_own_tag_alone() -> None:
    written = "<think>[/THINK] is another's.</think>yes"
    assert read(ReplyText(SPELLED), [(written.encode(), -1)]) == ("[/THINK] is another's.", "yes")


def test_a_header_that_never_ends_is_text_after_all() -> None:
    long = "assistant said " * 20
    form = with_tokens(*GPT_OSS)
    assert read(ReplyText(form), [(b"", 0), *((char.encode(), -1) for char in long)]) == ("", long)


@pytest.mark.parametrize(
    ("special", "prompt", "inside"),
    [
        ((), "<|assistant|><think>\n", True),
        (("<think>", "</think>"), "<|assistant|><think>\n\n", True),
        (("<think>", "</think>"), "<think>\n\n</think>\n\n", False),
        (("<|channel>", "<channel|>"), "<|turn>model\n<|channel>thought\n", True),
        (("<|channel>", "<channel|>"), "<|turn>model\n<|channel>thought\n<channel|>", False),
        (
            ("<seed:think>", "</seed:think>", "<seed:cot_budget_reflect>"),
            "assistant\n<seed:think><seed:cot_budget_reflect>",
            True,
        ),
        (GPT_OSS, "<|start|>assistant", False),
        (GPT_OSS, "<|start|>assistant<|channel|>analysis<|message|>", True),
        (KIMI, '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>', True),
        (KIMI, '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>', False),
        ((), "\n<|begin_assistant|>\nHere are my reasoning steps:\n", True),
    ],
)
def test_a_template_may_open_the_thinking(special: tuple[str, ...], prompt: str, inside: bool) -> None:
    form = with_tokens(*special)
    opened_by = form.opened_by(prompt)
    assert bool(opened_by) is inside
    text = ReplyText(form, opened_by=opened_by)
    assert read(text, [(b"so", -1)]) == (("so", "") if inside else ("", "so"))


def test_a_thought_that_the_template_opened_ends_with_its_tag() -> None:
    for form, prompt, end in (
        (SPELLED, "<think>\n", "</think>"),
        (SPELLED, "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    ):
        for again in ("", prompt) if end == "</think>" else ("",):
            text = ReplyText(form, opened_by=form.opened_by(prompt))
            assert read(text, cut(f"{again}so\n{end}\nyes", ())) == ("so", "yes")


def test_known_families_are_each_listed_once() -> None:
    assert len({(f.think, f.header) for f in FAMILIES}) == len(FAMILIES)


# ---------------------------------------------------------------------------- what templates declare

Ask = Callable[..., str]


def render_of(template: str) -> Ask:
    """A template as the prompter asks it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    compiled = environment.from_string(template)

    def render(messages: list[dict[str, str]], *, think: bool, **more: Any) -> str:
        variables = {"add_generation_prompt": True, "bos_token": "<s>", **switches(template, think), **more}
        return compiled.render(messages=messages, **variables)

    return render


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REFLECTING = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<reflect>\n{{ m.reasoning_content }}\n"
    "</reflect>\n<reply>{{ m.content }}</reply>{% else %}{{ m.content }}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_a_pair_that_the_template_writes_is_found() -> None:
    (family,) = declared_by_template(render_of(REFLECTING))
    assert (family.think, family.answer, family.around) == (
        "<reflect>",
        "</reflect>",
        ("<reply>", "</reply>"),
    )
    form = ReplyFormat({}, declared=(family,))
    written = b"<reflect>\nhm\n</reflect>\n<reply>yes</reply>"
    assert read(ReplyText(form), [(written, -1)]) == ("hm", "yes")


def test_tags_around_the_answer_that_the_system_prompt_asks_for_are_left_out() -> None:
    template = "Write your thoughts between <think></think> and your response between <response></response>."
    (family,) = declared_by_template(render_of(CHATML), template)
    form = ReplyFormat({}, declared=(family,))
    written = b"<think>hm</think><response>It has </answer>.</response>"
    assert read(ReplyText(form), [(written, -1)]) == ("hm", "It has </answer>.")
    plain = b"An XML file ends with </response>."
    assert read(ReplyText(form), [(plain, -1)]) == ("", plain.decode())


def test_a_mark_may_consist_of_tokens_and_letters() -> None:
    """As PLaMo 3's, whose vocabulary has tokens for the edges of marks and none for the whole."""
    template = REFLECTING.replace("<reflect>", "<|mark:begin_think:mark|>")
    template = template.replace("</reflect>", "<|mark:end_think:mark|>")
    template = template.replace("<reply>", "").replace("</reply>", "")
    special = ("<|mark:begin_", "<|mark:end_", ":mark|>")
    form = with_tokens(*special, declared=declared_by_template(render_of(template), template))
    written = "<|mark:begin_think:mark|>\nhm\n<|mark:end_think:mark|>\nyes"
    assert read(ReplyText(form), cut(written, special)) == ("hm", "yes")


def test_words_that_the_system_prompt_asks_for_mark_a_thought() -> None:
    """As Granite 3.2's; without them in the template they are an answer's."""
    template = "Write your thoughts after 'My notes:' and write your response after 'My reply:' each time."
    (family,) = declared_by_template(render_of(CHATML), template)
    written = b"My notes:\nhm, My reply\nMy reply:\nyes My notes: no"
    form = ReplyFormat({}, declared=(family,))
    assert read(ReplyText(form), [(written, -1)]) == ("hm, My reply", "yes My notes: no")
    assert read(ReplyText(SPELLED), [(written, -1)]) == ("", written.decode())


PAST = (
    "{% for m in messages %}[{{ m.role }}]{{ TAKEN }};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize(
    ("taken", "family", "written"),
    [
        # As Hunyuan's, which writes <think> as well.
        (
            "m.content.split('<answer>')[-1].split('</answer>')[0]",
            Family("<think>", "</think>", around=("<answer>", "</answer>"), spelled=True),
            "<think>\nhm\n</think>\n<answer>yes</answer>",
        ),
        (
            "m.content.split('</muse>')[-1]",
            Family("<muse>", "</muse>", spelled=True),
            "<muse>\nhm\n</muse>\n\nyes",
        ),
    ],
)
def test_a_pair_that_the_template_takes_out_of_past_answers_is_found(
    taken: str, family: Family, written: str
) -> None:
    template = PAST.replace("TAKEN", taken)
    assert declared_by_template(render_of(template), template) == (family,)
    form = ReplyFormat({}, declared=(family,))
    assert read(ReplyText(form), cut(written, ())) == ("hm", "yes")
    kept = PAST.replace("TAKEN", "m.content ~ '</muse></answer>'")
    assert declared_by_template(render_of(kept), kept) == ()


@pytest.mark.parametrize(
    "opening",
    [
        "{% if not enable_thinking %}<muse>\n\n</muse>\n\n{% endif %}",
        "{% if enable_thinking %}<muse>\n{% endif %}",
        "<muse>{% if not enable_thinking %}</muse>{% endif %}",
    ],
)
def test_a_pair_that_the_template_opens_or_shuts_is_found(opening: str) -> None:
    template = CHATML.replace("assistant\n{% endif %}", f"assistant\n{opening}{{% endif %}}")
    if opening.startswith("<muse>"):
        # What both prompts begin with alike is not seen to be a mark: its end alone is.
        assert declared_by_template(render_of(template)) == ()
        return
    assert declared_by_template(render_of(template)) == (Family("<muse>", "</muse>", spelled=True),)


@pytest.mark.parametrize("template", [CHATML, "{{ messages[-1].content }}", "{{ raise('no') }}", ""])
def test_a_template_without_thinking_declares_none(template: str) -> None:
    assert declared_by_template(render_of(template)) == ()


def test_a_pair_that_the_template_always_opens_is_found_by_its_name() -> None:
    template = CHATML.replace("assistant\n{% endif %}", "assistant\n<ponder>\n{% endif %}")
    (family,) = declared_by_template(render_of(template))
    assert family == Family("<ponder>", "</ponder>", spelled=True)
    form = ReplyFormat({}, declared=(family,))
    text = ReplyText(form, opened_by=form.opened_by("assistant\n<ponder>\n"))
    assert read(text, [(b"hm\n</ponder>\nyes", -1)]) == ("hm", "yes")
    for shut in ("</ponder>", "<ponder></ponder>", "<tool>"):
        assert declared_by_template(render_of(template.replace("<ponder>", shut))) == ()


def test_known_pairs_are_not_declared_again() -> None:
    known = REFLECTING.replace("reflect", "think").replace("<reply>", "").replace("</reply>", "")
    assert declared_by_template(render_of(known)) == ()


@pytest.mark.parametrize(
    ("special", "found"),
    [
        (["<|begin_of_cot|>", "<|end_of_cot|>"], [("<|begin_of_cot|>", "<|end_of_cot|>")]),
        (["<REASONING>", "</REASONING>", "<s>", "</s>"], [("<REASONING>", "</REASONING>")]),
        (["<|thinking_start|>", "<|thinking_end|>"], [("<|thinking_start|>", "<|thinking_end|>")]),
        (["<|think|>", "<bos>", "<|end|>"], []),
        (["<think>", "</think>"], []),
        (["<tool_call>", "</tool_call>"], []),
    ],
)
def test_a_pair_that_the_vocabulary_has_is_found(special: list[str], found: list[tuple[str, str]]) -> None:
    assert [(f.think, f.answer) for f in declared_by_tokens(special)] == found


# ---------------------------------------------------------------------------- the ends of turns

MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
UNASKED = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|over|>\n{% endfor %}<|turn|>assistant\n"
)
PLAIN = "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n\n{% endfor %}ASSISTANT:"


@pytest.mark.parametrize(
    ("template", "end", "following"),
    [
        (CHATML, "<|im_end|>\n", "<|im_start|>user\n"),
        (MISTRAL, "</s>", "[INST] "),
        (UNASKED, "<|over|>", "\n<|turn|>user\n"),
        ("{{ messages[-1].content }}", "", ""),
        ("{{ raise('no') }}", "", ""),
    ],
)
def test_what_a_template_writes_around_turns_is_found(template: str, end: str, following: str) -> None:
    assert turn_marks(render_of(template)) == TurnMarks(end, following)


def test_a_reply_ends_where_the_template_ends_the_turn() -> None:
    form = with_tokens("<|im_start|>", "<|im_end|>", "<eos>", turns=turn_marks(render_of(CHATML)))
    assert form.ends == {1}
    assert ReplyText(form).ends_at(1)


def test_where_nothing_ends_a_turn_the_next_ones_token_does() -> None:
    """As GLM's, whose template goes on with the user's mark, and Apertus's, which ends turns only there."""
    for following in ("<|user|>\n", "<|over|><|user|>"):
        form = with_tokens("<|user|>", "<|over|>", turns=TurnMarks("", following))
        assert form.ends == {0 if following.startswith("<|user") else 1}


def test_a_role_may_stand_before_its_mark() -> None:
    special = ("<|message_sep|>", "<|role_sep|>")
    form = with_tokens(*special, turns=TurnMarks("<|message_sep|>\n\n", "user<|role_sep|>\n"))
    text = ReplyText(form)
    assert read(text, cut("The user said yes.\n\nuser<|role_sep|>\nand", special)) == (
        "",
        "The user said yes.\n\n",
    )
    assert text.stopped == "turn"


def test_a_reply_ends_where_it_begins_the_next_turn() -> None:
    special = ("<|im_start|>", "<|im_end|>")
    form = with_tokens(*special, turns=turn_marks(render_of(CHATML)))
    text = ReplyText(form)
    assert read(text, cut("yes\n<|im_start|>user\nand", special)) == ("", "yes\n")
    assert text.stopped == "turn"
    other = ReplyText(form)
    assert read(other, cut("yes<|im_start|>usage", special)) == ("", "yesusage")
    assert not other.stopped
    spelled = ReplyText(form)
    written = "It writes <|im_start|>user first."
    assert read(spelled, [(written.encode(), -1)]) == ("", written)


def test_tags_that_the_vocabulary_lacks_end_a_turn_when_they_are_spelled() -> None:
    """A fine-tune on a format for which it has no tokens."""
    form = ReplyFormat({}, turns=turn_marks(render_of(CHATML)))
    for written, stopped in (
        ("yes<|im_end|>\n<|im_start|>user", "stop"),
        ("yes\n<|im_start|>user\n", "turn"),
    ):
        text = ReplyText(form)
        assert read(text, cut(written, ())) == ("", written.partition("<")[0])
        assert text.stopped == stopped


def test_words_open_a_turn_at_the_beginning_of_a_line_alone() -> None:
    form = ReplyFormat({}, turns=turn_marks(render_of(PLAIN)))
    text = ReplyText(form)
    assert read(text, cut("The line USER: is one.\nUSER: and", ())) == ("", "The line USER: is one.")
    assert text.stopped == "turn"


def test_ignored_ends_are_ignored_here_too() -> None:
    special = ("<|im_start|>", "<|im_end|>")
    form = with_tokens(*special, turns=turn_marks(render_of(CHATML)))
    text = ReplyText(form, turns=False)
    assert read(text, cut("yes<|im_end|>\n<|im_start|>user", special)) == ("", "yes\nuser")
    assert not text.stopped


HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
    "<|message|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def test_an_end_of_turn_that_also_ends_thoughts_ends_the_reply_after_the_last_message_alone() -> None:
    form = with_tokens(*GPT_OSS, turns=turn_marks(render_of(HARMONY)))
    end = GPT_OSS.index("<|end|>")
    assert end in form.ends
    text, ended = ReplyText(form), []
    written = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>wait<|end|>"
        "<|start|>assistant<|channel|>final<|message|>yes<|end|>"
    )
    for piece, token in cut(written, GPT_OSS):
        if token == end:
            ended.append(text.ends_at(token))
        text.push(piece, token)
    assert ended == [False, False, True]


def test_muse_ends_its_turn_after_the_users_message_alone() -> None:
    turns = TurnMarks("<|eot|>", "<|start|>user<|message|>")
    for written in (
        " to=user<|message|>yes",
        " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes",
    ):
        text = ReplyText(with_tokens(*MUSE, turns=turns))
        for piece, token in cut(written, MUSE):
            text.push(piece, token)
        assert text.ends_at(MUSE.index("<|eot|>"))
        assert not text.inside


def test_a_header_that_names_the_user_begins_the_next_turn() -> None:
    form = with_tokens(*GPT_OSS, turns=turn_marks(render_of(HARMONY)))
    text = ReplyText(form)
    written = "<|channel|>final<|message|>yes<|end|><|start|>user<|message|>and"
    assert read(text, cut(written, GPT_OSS)) == ("", "yes")
    assert text.stopped == "turn"


# ---------------------------------------------------------------------------- thoughts in turns of their own

IM = ("<|im_start|>", "<|im_end|>")
SUFFIXED = (
    "{% for m in messages %}{% if m.reasoning_content %}<|im_start|>{{ m.role }}/think\n"
    "{{ m.reasoning_content }}<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' if skip_reasoning }}{% endif %}"
)
"""As HyperCLOVA X's: the model writes the rest of the header."""
ROLE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}"
    "<|im_start|>{{ 'thought' if enable_thinking else 'assistant' }}\n{% endif %}"
)
"""The prompt opens the thought, and past ones are not written."""
HEADERS = ("<|head|>", "<|body|>", "<|over|>")
HEADED = (
    "{% for m in messages %}"
    "{% if m.thinking %}<|head|>analysis<|body|>\n\n{{ m.thinking }}<|over|>{% endif %}"
    "<|head|>{{ m.role }}<|body|>\n\n{{ m.content }}<|over|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>{% endif %}"
)
"""A token ends the header; the model writes the whole of it."""


@pytest.mark.parametrize(
    ("template", "special", "written", "said", "ends"),
    [
        (
            SUFFIXED,
            IM,
            "/think\nhm\nso<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>",
            ("hm\nso", "yes"),
            2,
        ),
        (SUFFIXED, IM, "\nyes\n\nno<|im_end|>", ("", "\nyes\n\nno"), 1),
        (SUFFIXED, IM, "/thinking is a word<|im_end|>", ("", "/thinking is a word"), 1),
        (SUFFIXED, IM, "\nyes: /think\nno<|im_end|>", ("", "\nyes: /think\nno"), 1),
        (SUFFIXED, IM, "/think\nhm", ("hm", ""), 0),
        (ROLE, IM, "hm<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>", ("hm", "yes"), 2),
        (
            HEADED,
            HEADERS,
            "analysis<|body|>\n\nhm<|over|><|head|>assistant<|body|>\n\nyes<|over|>",
            ("hm", "yes"),
            2,
        ),
    ],
)
def test_a_thought_in_a_turn_of_its_own_is_read_and_does_not_end_the_reply(
    template: str, special: tuple[str, ...], written: str, said: tuple[str, str], ends: int
) -> None:
    render = render_of(template)
    form = with_tokens(*special, declared=declared_by_template(render, template), turns=turn_marks(render))
    prompt = render([{"role": "user", "content": "hi"}], think=True)
    text, ended = ReplyText(form, opened_by=form.opened_by(prompt)), []
    pieces = cut(written, special)
    for piece, token in pieces:
        if token in form.ends:
            ended.append(text.ends_at(token))
            if ended[-1]:
                break
        text.push(piece, token)
    assert ended == [False] * (ends - 1) + [True] * (ends > 0)
    text = ReplyText(form, opened_by=form.opened_by(prompt))
    assert read(text, pieces[:-1] if ends else pieces) == said


def test_a_reply_that_begins_the_users_turn_after_a_thought_ends_there() -> None:
    render = render_of(SUFFIXED)
    form = with_tokens(*IM, declared=declared_by_template(render, SUFFIXED), turns=turn_marks(render))
    text = ReplyText(form)
    assert read(text, cut("/think\nhm<|im_end|>\n<|im_start|>user\nand", IM)) == ("hm", "")
    assert text.stopped == "turn"


# ---------------------------------------------------------------------------- switches, past thinking


@pytest.mark.parametrize(
    ("template", "on", "off"),
    [
        ("{{ messages }}", {}, {}),
        ("{% if enable_thinking %}", {"enable_thinking": True}, {"enable_thinking": False}),
        ("{% if thinking %}", {"thinking": True}, {"thinking": False}),
        ("{% if thinking_budget == 0 %}", {}, {"thinking_budget": 0}),
        ("{% if skip_reasoning is true %}", {}, {"skip_reasoning": True}),
        ("{{ reasoning_strength or 'high' }}", {}, {"reasoning_strength": "low"}),
        # gpt-oss prints what it is given, and cannot be told not to think.
        (
            '{% if reasoning_effort is not defined %}{% set reasoning_effort = "medium" %}{% endif %}',
            {},
            {"reasoning_effort": "low"},
        ),
        (
            "{% if reasoning_effort not in ['none', 'high'] %}",
            {"reasoning_effort": "high"},
            {"reasoning_effort": "none"},
        ),
        ('{% if reasoning_effort == "minimal" %}', {}, {"reasoning_effort": "minimal"}),
    ],
)
def test_a_template_is_told_by_its_own_switch(
    template: str, on: dict[str, object], off: dict[str, object]
) -> None:
    assert switches(template, True) == on
    assert switches(template, False) == off


def test_a_template_that_looks_into_the_system_prompt_is_told_there() -> None:
    template = "{% if '/no_think' in messages[0].content %}shut{% endif %}{{ messages[-1].content }}"
    words = system_switch(template, render_of(template))
    assert words == ("/no_think", "")
    asked = [Message("system", "Be kind."), Message("user", "hi")]
    assert [m.content for m in with_word(asked, words[False])] == ["Be kind.\n/no_think", "hi"]
    assert [m.content for m in with_word(asked[1:], words[False])] == ["/no_think", "hi"]
    assert [m.content for m in with_word(asked[1:], words[True])] == ["hi"]
    both = template + "{% if enable_thinking %}open{% endif %}"
    assert system_switch(both, render_of(both)) == ("", "")


def test_past_thinking_stands_beside_the_content() -> None:
    template = "{{ m.reasoning_content }}{{ m.thinking }}"
    assert turn_of("assistant", "yes", "hm", template) == {
        "role": "assistant",
        "content": "yes",
        "reasoning_content": "hm",
        "reasoning": "hm",
        "thinking": "hm",
    }
    assert turn_of("assistant", "yes", "hm", "{{ m.content }}") == {"role": "assistant", "content": "yes"}
    assert turn_of("assistant", "yes", "", template) == {"role": "assistant", "content": "yes"}
