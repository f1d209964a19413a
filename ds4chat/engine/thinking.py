"""How models mark their thinking and their turns, and how templates have them think or not.

A family of models marks its thinking by tokens of its own, or by tags spelled in ordinary ones. FAMILIES
holds the known ones; ``declared_by_template`` and ``declared_by_tokens`` find others. Templates are asked by
example, through ``Render``: in a rendered conversation of made-up words, the template's text is what is
between the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any, Literal

from ds4chat.engine.events import Message

Render = Callable[..., str]
"""``render(messages, **switches)``: the prompt of a conversation. It may raise anything."""

Effect = Literal["think", "answer", "header", "closing", "body", "drop"]
"""What follows a mark: a thought; the answer; a header, which says what follows it; a header that no thought
follows; what the header said; the same as before."""


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of models marks its thinking. The marks themselves are never shown."""

    think: str = ""
    """Begins a thought."""
    answer: str = ""
    """Ends it; what follows is the answer."""
    label: str = ""
    """A word that names the thought and may be its first."""
    around: tuple[str, ...] = ()
    """Enclose the answer."""
    header: tuple[str, ...] = ()
    """Begin a header that ends at ``body`` and says by one of THOUGHTS that a thought follows."""
    opening: str = ""
    """Begins a reply whose first header began in the prompt. With ``body`` at its end it is that header's
    whole rest, and a thought follows."""
    closing: tuple[str, ...] = ()
    """Begin a header that no thought follows."""
    body: str = ""
    spelled: bool = False
    """Models without tokens for it may spell it in ordinary ones."""

    @property
    def whole_opening(self) -> str:
        """``opening`` where a thought follows it at once; empty where it only begins a header."""
        return self.opening if self.body and self.opening.endswith(self.body) else ""

    def needed(self) -> tuple[str, ...]:
        """The marks without which a vocabulary does not have the family as tokens."""
        return tuple(filter(None, (self.think, self.answer, *self.header, self.body)))

    def marks(self) -> dict[str, Effect]:
        """Each mark's text and its effect."""
        effects: dict[Effect, tuple[str, ...]] = {
            "think": (self.think, self.whole_opening),
            "answer": (self.answer,),
            "drop": self.around,
            "header": (*self.header, "" if self.whole_opening else self.opening),
            "closing": self.closing,
            "body": (self.body,),
        }
        return {text: effect for effect, texts in effects.items() for text in texts if text}


FAMILIES: tuple[Family, ...] = (
    # DeepSeek, Qwen, GLM, Kimi, MiniMax, Nemotron, Granite and most others
    Family("<think>", "</think>", spelled=True),
    Family("<seed:think>", "</seed:think>", spelled=True),  # Seed-OSS
    # Seed-OSS without a budget, as its template opens the thought.
    Family("<seed:think><seed:cot_budget_reflect>", "</seed:think>"),
    Family("[THINK]", "[/THINK]", spelled=True),  # Magistral, Ministral
    # EXAONE Deep, Reka Flash and fine-tunes, which have no tokens for it
    *(Family(f"<{word}>", f"</{word}>", spelled=True) for word in ("thought", "thinking", "reasoning")),
    Family(  # OpenThinker, Sky-T1
        "<|begin_of_thought|>",
        "<|end_of_thought|>",
        around=("<|begin_of_solution|>", "<|end_of_solution|>"),
        spelled=True,
    ),
    Family("◁think▷", "◁/think▷", spelled=True),  # Kimi-VL
    Family(  # Command A and R7B
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    Family("<|channel>", "<channel|>", label="thought"),  # Gemma 4
    Family("<unused94>", "<unused95>", label="thought"),  # MedGemma
    Family("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    Family("[unused16]", "[unused17]"),  # openPangu
    Family("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", spelled=True),  # Apriel
    Family(  # gpt-oss
        answer="<|end|>", header=("<|start|>", "<|channel|>"), body="<|message|>", around=("<|constrain|>",)
    ),
    Family(answer="<|eom|>", header=("<|start|>",), opening=" to=", body="<|message|>"),  # Muse
    Family("<|think|>", "<|end|>", header=("<|begin|>",), body="<|content|>"),  # Solar Open
    Family(header=("<|open|>",), closing=("<|close|>",), body="<|sep|>"),  # Kimi K3
)
"""Known families; where a vocabulary has a family's marks as tokens, only these tokens count."""

THOUGHTS = frozenset({"analysis", "think", "thinking", "thought", "reasoning"})
"""Words of a header that a thought follows. A header with another recipient (``to=``) than the user is not
for the user either."""
ASIDES = frozenset({"commentary"})
"""Words of a header that a part of the answer follows which is not its last."""
THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Names by which templates ask for a message's thinking."""

SWITCHES: Mapping[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),  # Qwen, GLM, Gemma 4, Nemotron and most others
    "thinking": (True, False),  # DeepSeek V3.1, Granite, Kimi
    "reasoning": (True, False),  # Command A
    "thinking_budget": (None, 0),  # Seed-OSS
    "thinking_option": ("on", "off"),  # Ling
    "skip_reasoning": (None, True),  # HyperCLOVA X
    "reasoning_strength": (None, "low"),  # Muse, which has no less
}
"""A template's variable and its values to think and not to; None leaves it undefined."""
EFFORTS = ("none", "minimal", "low")
"""Values of ``reasoning_effort``, least first: the first that a template compares with is how not to think. A
template that compares with none of them, as gpt-oss's, prints the value: "low" is the least in its
training."""
SYSTEM_SWITCHES = (("/no_think", ""), ("detailed thinking off", "detailed thinking on"))
"""Words that templates look for in the system prompt: not to think, and to think."""


def switches(template: str, think: bool) -> dict[str, Any]:
    """The variables that have a template, by its text, think or not."""
    found = {
        name: values[not think]
        for name, values in SWITCHES.items()
        if re.search(rf"\b{name}\b", template) and values[not think] is not None
    }
    if re.search(r"\breasoning_effort\b", template):
        compared = [
            effort
            for effort in EFFORTS
            if re.search(rf"\breasoning_effort\b[^%}}\n]*['\"]{effort}['\"]", template)
        ]
        if not think:
            found["reasoning_effort"] = compared[0] if compared else EFFORTS[-1]
        elif compared[:1] == ["none"]:
            found["reasoning_effort"] = "high"  # without it such templates do not think
    return found


def system_switch(template: str, render: Render) -> tuple[str, str]:
    """The words in the system prompt that have a template not think, and think; empty where it has a
    variable, or looks for none."""
    words = next((words for words in SYSTEM_SWITCHES if words[0] in template), ("", ""))
    asked = [{"role": "user", "content": _USER}]
    by_variable = words[0] and _rendered(render, asked, think=True) != _rendered(render, asked, think=False)
    return ("", "") if by_variable else words


def with_word(messages: Sequence[Message], word: str) -> Sequence[Message]:
    """The conversation with ``word`` at the end of its system prompt; as it is for an empty one."""
    if not word:
        return messages
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{messages[0].content}\n{word}".strip()), *messages[1:]]
    return [Message("system", word), *messages]


def turn_of(role: str, content: str, thinking: str, template: str) -> dict[str, Any]:
    """A message as templates read it. Its thinking is given under the names that the template's text holds;
    most templates only write that of the latest turn, or none."""
    asked = [name for name in THINKING_FIELDS if thinking and name in template]
    return {"role": role, "content": content, **dict.fromkeys(asked, thinking)}


# ---------------------------------------------------------------------------- what a template declares

_USER, _NEXT, _SAID, _THOUGHT = "Quoxim", "Vezrul", "Plimdor", "Zibnate"
"""Words that no template has."""
TAG = re.compile(r"<[^<>\s]{2,48}>|\[[^\[\]\s]{2,48}\]|◁[^◁▷]{2,48}▷")


TAGS = tuple(text for family in FAMILIES if family.spelled for text in family.marks() if TAG.fullmatch(text))
"""Tags that may be spelled in ordinary tokens, and must not be taken for the model's in a user's text."""


def declared_by_template(render: Render, template: str = "") -> tuple[Family, ...]:
    """The pairs, other than those of FAMILIES, that a template writes around thinking and answers, or by its
    text tells the model to write."""
    asked = {"role": "user", "content": _USER}
    said = {"role": "assistant", "content": _SAID}
    found: list[Family] = []
    with_thought = _rendered(
        render, [asked, {**said, **dict.fromkeys(THINKING_FIELDS, _THOUGHT)}], think=True
    )
    plain = _rendered(render, [asked, said], think=True)
    thinks, answers = (_rendered(render, [asked], think=on).rpartition(_USER)[2] for on in (True, False))
    before, _, after = with_thought.rpartition(_USER)[2].partition(_THOUGHT)
    opening, _, end = plain.rpartition(_USER)[2].partition(_SAID)
    begins, usual = TAG.findall(before)[-1:], TAG.findall(opening)
    ends, closing = TAG.findall(after.partition(_SAID)[0]), TAG.findall(end)[:1]
    turn = _thought_turn(thinks, answers, thinks, closing)
    if ends[:1] == closing:
        turn = _thought_turn(before, opening, thinks, closing) or turn
    if turn is not None:
        found.append(turn)
    elif _SAID in after and begins and ends and (ends[0] == _closing(begins[0]) or begins[0] not in usual):
        around = tuple(ends[1:]) + tuple(map(_closing, ends[1:]))
        found.append(Family(begins[0], ends[0], around=around, spelled=True))
    # A template that never writes a thought may still open one, or an empty one where thinking is off.
    shared = len(commonprefix((thinks, answers)))  # noqa: RUF071  characters are meant
    on, off = TAG.findall(thinks[shared:]), TAG.findall(answers[shared:])
    if len(off) == 2 and off[1] == _closing(off[0]) and on in ([], off[:1]):
        found.append(Family(off[0], off[1], spelled=True))
    elif len(on) == 1 and off in ([], [_closing(on[0])]):
        found.append(Family(on[0], _closing(on[0]), spelled=True))
    opened = TAG.findall(thinks)[-1:]  # also where it opens the thought either way
    if opened and thinks.rstrip().endswith(opened[0]) and _names_thinking(opened[0]) == "begins":
        found.append(Family(opened[0], _closing(opened[0]), spelled=True))
    if told := _TOLD.search(template):
        found.append(Family("<think>", "</think>", around=(told[1], told[3]), spelled=True))
    if told := _TOLD_IN_WORDS.search(template):
        found.append(Family(told[1], told[2], spelled=True))
    found += _taken_out(render, template)
    known = {text for family in FAMILIES for text in family.marks()}
    return tuple(f for f in dict.fromkeys(found) if not known.issuperset((f.think, *f.around)))


def _taken_out(render: Render, template: str) -> Iterator[Family]:
    """The pairs of tags that a template takes out of past answers: with what they enclose, a thought; or
    alone, what is around an answer that follows a thought."""
    known = {text for family in FAMILIES for text in family.marks()}
    closing = [tag for tag in dict.fromkeys(TAG.findall(template)) if tag[1] == "/" and tag not in known]
    for end in closing[:_MOST_PAIRS]:
        begin = end[0] + end[2:]

        def past(content: str) -> str:
            turns = [("user", _USER), ("assistant", content), ("user", _NEXT)]
            messages = [{"role": role, "content": text} for role, text in turns]
            return _rendered(render, messages, think=True)

        thought, around = past(f"{begin}{_THOUGHT}{end}{_SAID}"), past(f"{begin}{_SAID}{end}")
        if _SAID in thought and _THOUGHT not in thought:
            yield Family(begin, end, spelled=True)
        elif _SAID in around and begin not in around:
            yield Family("<think>", "</think>", around=(begin, end), spelled=True)


_MOST_PAIRS = 16


def _thought_turn(thought: str, answer: str, prompt: str, closing: list[str]) -> Family | None:
    """The family of a template that opens a turn of its own for a thought; None if it does not. ``thought``,
    ``answer`` and ``prompt``: what it writes between the user's words and each of them, or the reply;
    ``closing``: the tag that ends a turn, if any does."""
    shared = len(commonprefix((thought, answer)))  # noqa: RUF071  characters are meant
    begins, tags = TAG.findall(thought[:shared]), TAG.findall(thought[shared:])
    body = (tags or ["\n"])[0]
    if not (closing and begins and tags == TAG.findall(answer[shared:]) and body in answer[shared:]):
        return None
    header, ended, _ = thought.rpartition(begins[-1])[2].partition(body)
    if not ended or THOUGHTS.isdisjoint(re.findall("[a-z]+", header.lower())):
        return None
    written = prompt.rpartition(begins[-1])[2]
    opening = (header + body).removeprefix(written) if header.startswith(written) else ""
    return Family(answer=closing[0], header=(begins[-1],), opening=opening, body=body, spelled=True)


_TOLD = re.compile(r"<think></think>[^\n]{0,80}?(<(\w+)>)(</\2>)")
"""A system prompt's words on how to think and to answer, as in Granite 3.3's."""
_TOLD_IN_WORDS = re.compile(r"thoughts after '([\w ]{4,60}:)' and write your response after '([\w ]{4,60}:)'")
"""The same in Granite 3.2's, where no tag marks them."""
_ROOT = re.compile("think|thought|reason|reflect|scratchpad|deliberat|ponder|(?<![a-z])cot(?![a-z])")
_END = re.compile("/|end|close|stop|suffix")
_EDGE = re.compile(r"/|start|begin|open|end|close|stop|prefix|suffix|(?<![a-z])of(?![a-z])|[\W_]")


def declared_by_tokens(special: Iterable[str]) -> tuple[Family, ...]:
    """The pairs among the texts of special tokens that name thinking and differ as a begin and an end, such
    as ``<|begin_of_thought|>`` and ``<|end_of_thought|>``."""
    known = {text for family in FAMILIES for text in family.marks()}
    pairs: dict[str, tuple[list[str], list[str]]] = {}
    for text in special:
        if text not in known and (edge := _names_thinking(text)):
            name = _EDGE.sub("", text.lower().replace("_", " "))
            pairs.setdefault(name, ([], []))[edge == "ends"].append(text)
    return tuple(
        Family(begins[0], ends[0]) for begins, ends in pairs.values() if len(begins) == len(ends) == 1
    )


def _names_thinking(mark: str) -> Literal["", "begins", "ends"]:
    """Whether a mark, by its name, begins or ends a thought."""
    lower = mark.lower().replace("_", " ")
    if not _ROOT.search(lower):
        return ""
    return "ends" if _END.search(lower) else "begins"


@dataclass(frozen=True, slots=True)
class TurnMarks:
    """What a template writes around turns."""

    end: str = ""
    """Follows the assistant's content."""
    next: str = ""
    """Follows that and opens the user's next turn."""


def turn_marks(render: Render) -> TurnMarks:
    """What the template writes after an assistant's turn, and before the user's next one."""
    asked = {"role": "user", "content": _USER}
    said = {"role": "assistant", "content": _SAID}
    two = _rendered(render, [asked, said, {"role": "user", "content": _NEXT}], think=True)
    if _NEXT not in two.partition(_SAID)[2]:
        return TurnMarks()
    between = two.partition(_SAID)[2].partition(_NEXT)[0]
    after_turn = _rendered(render, [asked, said], think=True, add_generation_prompt=False).partition(_SAID)[2]
    if between.startswith(after_turn):
        end = after_turn
    else:
        # The template always opens the assistant's turn: only the first mark is certain.
        first = TAG.search(between)
        end = between[: first.end()] if first else ""
    return TurnMarks(end, between[len(end) :])


def _rendered(render: Render, messages: list[dict[str, str]], *, think: bool, **more: Any) -> str:
    try:
        return render(messages, think=think, **more)
    except Exception:  # noqa: BLE001  a template is foreign code; what it refuses declares nothing
        return ""


def _closing(tag: str) -> str:
    """The tag that ends what a tag begins."""
    ending = re.sub("(?i)start|begin", lambda m: "END" if m[0].isupper() else "end", tag, count=1)
    return ending if ending != tag else f"{tag[0]}/{tag[1:]}"
