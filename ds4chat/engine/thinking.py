"""What the tokens of a reply say: its thinking apart from its answer, and where it ends.

A family of models marks its thinking by tokens of its own, or by tags spelled in ordinary ones. FAMILIES
holds the known ones; a pair that a template or a vocabulary declares is found by ``declared_by_template`` and
``declared_by_tokens``. Templates are asked through ``Render``, by example: conversations of made-up words
are rendered, and what stands between the words is what the template writes there.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ds4chat.engine.events import Message

Render = Callable[..., str]
"""``render(messages, **switches)``: the prompt of a conversation. It may raise whatever it likes."""

Effect = Literal["think", "answer", "header", "closing", "body", "drop"]
"""What follows a mark: a thought; the answer; a header, which says what follows it; a header after which no
thought follows; what the header said; the same as before it."""


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of models marks its thinking. The marks themselves are never shown."""

    think: str = ""
    """Begins a thought."""
    answer: str = ""
    """Ends it; what follows is the answer."""
    label: str = ""
    """A word that names the thought and may stand at its beginning."""
    around: tuple[str, ...] = ()
    """Stand around the answer."""
    header: tuple[str, ...] = ()
    """Begin a header that ends at ``body`` and says by one of THOUGHTS that a thought follows."""
    closing: tuple[str, ...] = ()
    """Begin a header after which no thought follows."""
    body: str = ""
    spelled: bool = False
    """May be spelled in ordinary tokens, by models without tokens for it."""

    def marks(self) -> dict[str, Effect]:
        """Each mark's text and its effect."""
        effects: dict[Effect, tuple[str, ...]] = {
            "think": (self.think,),
            "answer": (self.answer,),
            "drop": self.around,
            "header": self.header,
            "closing": self.closing,
            "body": (self.body,),
        }
        return {text: effect for effect, texts in effects.items() for text in texts if text}


FAMILIES: tuple[Family, ...] = (
    # DeepSeek, Qwen, GLM, Kimi, MiniMax, Nemotron, Granite and most others
    Family("<think>", "</think>", spelled=True),
    Family("<seed:think>", "</seed:think>", spelled=True),  # Seed-OSS
    # Seed-OSS without a budget: its template opens the thought so.
    Family("<seed:think><seed:cot_budget_reflect>", "</seed:think>"),
    Family("[THINK]", "[/THINK]", spelled=True),  # Magistral, Ministral
    Family("◁think▷", "◁/think▷", spelled=True),  # Kimi-VL
    Family(  # Command A and R7B
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    Family("<|channel>", "<channel|>", label="thought"),  # Gemma 4
    Family("<unused94>", "<unused95>", label="thought"),  # MedGemma
    Family("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    Family("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", spelled=True),  # Apriel
    Family(  # gpt-oss
        answer="<|end|>", header=("<|start|>", "<|channel|>"), body="<|message|>", around=("<|constrain|>",)
    ),
    Family("<|think|>", "<|end|>", header=("<|begin|>",), body="<|content|>"),  # Solar Open
    Family(header=("<|open|>",), closing=("<|close|>",), body="<|sep|>"),  # Kimi K3
)
"""Known families; the marks of one that a vocabulary has as tokens count as those tokens alone."""

THOUGHTS = frozenset({"analysis", "think", "thinking", "thought", "reasoning"})
"""Words of a header after which a thought follows. One that names a recipient (``to=``) is not for the user
either."""
ASIDES = frozenset({"commentary"})
"""Words of a header after which the user is spoken to, but not for the last time."""
_LONGEST_HEADER = 120
THINKING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Names by which templates ask for a message's thinking."""

SWITCHES: Mapping[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),  # Qwen, GLM, Gemma 4, Nemotron and most others
    "thinking": (True, False),  # DeepSeek V3.1, Granite, Kimi
    "reasoning": (True, False),  # Command A
    "thinking_budget": (None, 0),  # Seed-OSS
    "thinking_option": ("on", "off"),  # Ling
}
"""A template's variable and its values to think and not to; None leaves it undefined."""
EFFORTS = ("none", "minimal", "low")
"""Values of ``reasoning_effort``, least first: the first that a template compares with is how not to think.
One that compares with none of them, as gpt-oss's, prints the value: "low" is the least it was trained on."""
SYSTEM_SWITCHES = (("/no_think", ""), ("detailed thinking off", "detailed thinking on"))
"""Words that templates look for in the system prompt, to think not and to think."""


def switches(template: str, think: bool) -> dict[str, Any]:
    """The variables by which the text of a template says that it can be told to think or not."""
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
            found["reasoning_effort"] = "high"  # what such templates do without it is not to think
    return found


def system_switch(template: str, render: Render) -> tuple[str, str]:
    """The words by which the system prompt of a template without a variable says to think not, and to think;
    empty where that takes none."""
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
    """A message as templates read it. Past thinking stands beside the content, under the names that the
    text of the template holds: most ask for that since the last prompt alone, or for none."""
    asked = [name for name in THINKING_FIELDS if thinking and name in template]
    return {"role": role, "content": content, **dict.fromkeys(asked, thinking)}


# ---------------------------------------------------------------------------- what a template declares

_USER, _NEXT, _SAID, _THOUGHT = "Quoxim", "Vezrul", "Plimdor", "Zibnate"
"""Words that no template has."""
_TAG = re.compile(r"<[^<>\s]{2,48}>|\[[^\[\]\s]{2,48}\]|◁[^◁▷]{2,48}▷")


TAGS = tuple(text for family in FAMILIES if family.spelled for text in family.marks() if _TAG.fullmatch(text))
"""Tags that may be spelled in ordinary tokens: a text that holds one must not be taken for the model's."""


def declared_by_template(render: Render, template: str = "") -> tuple[Family, ...]:
    """The pairs that a template writes around thinking and answers, or tells the model to write, as its text
    says, and that FAMILIES does not hold."""
    asked = {"role": "user", "content": _USER}
    said = {"role": "assistant", "content": _SAID}
    found: list[Family] = []
    with_thought = _rendered(
        render, [asked, {**said, **dict.fromkeys(THINKING_FIELDS, _THOUGHT)}], think=True
    )
    plain = _rendered(render, [asked, said], think=True)
    if _THOUGHT in with_thought and _SAID in with_thought.partition(_THOUGHT)[2]:
        before, _, after = with_thought.partition(_THOUGHT)
        begins = _TAG.findall(before.rpartition(_USER)[2])[-1:]
        ends = _TAG.findall(after.partition(_SAID)[0])
        usual = _TAG.findall(plain.partition(_SAID)[0].rpartition(_USER)[2])
        if begins and ends and (ends[0] == _closing(begins[0]) or begins[0] not in usual):
            around = tuple(ends[1:]) + tuple(map(_closing, ends[1:]))
            found.append(Family(begins[0], ends[0], around=around, spelled=True))
    # A template that never writes a thought may still open one, or an empty one where it is switched off.
    thinks, answers = (_rendered(render, [asked], think=on).rpartition(_USER)[2] for on in (True, False))
    shared = _common(thinks, answers)
    on, off = _TAG.findall(thinks[len(shared) :]), _TAG.findall(answers[len(shared) :])
    if len(off) == 2 and off[1] == _closing(off[0]) and on in ([], off[:1]):
        found.append(Family(off[0], off[1], spelled=True))
    elif len(on) == 1 and off in ([], [_closing(on[0])]):
        found.append(Family(on[0], _closing(on[0]), spelled=True))
    if told := _TOLD.search(template):
        found.append(Family("<think>", "</think>", around=(told[1], told[3]), spelled=True))
    known = {text for family in FAMILIES for text in family.marks()}
    return tuple(f for f in dict.fromkeys(found) if not known.issuperset((f.think, *f.around)))


_TOLD = re.compile(r"<think></think>[^\n]{0,80}?(<(\w+)>)(</\2>)")
"""Words of a system prompt that say how to think and to answer, as Granite 3.3's."""
_ROOT = re.compile("think|thought|reason|reflect|scratchpad|deliberat|ponder|(?<![a-z])cot(?![a-z])")
_END = re.compile("/|end|close|stop|suffix")
_EDGE = re.compile(r"/|start|begin|open|end|close|stop|prefix|suffix|(?<![a-z])of(?![a-z])|[\W_]")


def declared_by_tokens(special: Iterable[str]) -> tuple[Family, ...]:
    """The pairs among the texts of special tokens that speak of thinking and differ as a begin and an end
    do, such as ``<|begin_of_thought|>`` and ``<|end_of_thought|>``."""
    known = {text for family in FAMILIES for text in family.marks()}
    pairs: dict[str, tuple[list[str], list[str]]] = {}
    for text in special:
        lower = text.lower().replace("_", " ")
        if _ROOT.search(lower) and text not in known:
            ends = bool(_END.search(lower))
            pairs.setdefault(_EDGE.sub("", lower), ([], []))[ends].append(text)
    return tuple(
        Family(begins[0], ends[0]) for begins, ends in pairs.values() if len(begins) == len(ends) == 1
    )


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
        # The template opens the assistant's turn unasked: only the first mark is certain.
        first = _TAG.search(between)
        end = between[: first.end()] if first else ""
    return TurnMarks(end, between[len(end) :])


def _rendered(render: Render, messages: list[dict[str, str]], *, think: bool, **more: Any) -> str:
    try:
        return render(messages, think=think, **more)
    except Exception:  # noqa: BLE001  a template is foreign code; what it refuses declares nothing
        return ""


def _common(a: str, b: str) -> str:
    """What two texts begin with alike."""
    n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return a[:n]


def _closing(tag: str) -> str:
    """The tag that goes with one that begins something."""
    ending = re.sub("(?i)start|begin", lambda m: "END" if m[0].isupper() else "end", tag, count=1)
    return ending if ending != tag else f"{tag[0]}/{tag[1:]}"


# ---------------------------------------------------------------------------- reading a reply


class ReplyFormat:
    """How one model's replies are read. Texts of special tokens become characters that no text holds (lone
    surrogates), so that a mark that is a token, and a tag that is spelled, are looked for in the same way
    and never taken for each other.

    ``special``: text -> id of the vocabulary's special tokens; ``hidden``: those that say nothing themselves.
    """

    def __init__(
        self,
        special: Mapping[str, int],
        hidden: Collection[int] = (),
        *,
        declared: Sequence[Family] = (),
        turns: TurnMarks | None = None,
    ) -> None:
        self._special = {text: token for text, token in special.items() if text}
        self._hidden = hidden
        self.symbols: dict[int, str] = {}
        """Token -> its character, for those of which a mark is made."""
        self.shown: dict[int, str] = {}
        """Character -> the text of its token, for str.translate."""
        self.marks: dict[str, Effect] = {}
        self.closes: dict[str, str] = {}
        """Marks that begin a thought -> those that end it."""
        self.labels: dict[str, str] = {}
        self.ends: frozenset[int] = frozenset()
        """Tokens by which the template ends the assistant's turn."""
        self.stops: tuple[str, ...] = ()
        """The same, spelled in ordinary tokens."""
        self.openers: tuple[str, ...] = ()
        """Begin the user's next turn."""
        self._openings: dict[str, str] = {}
        """How a prompt may end that leaves a thought open -> the mark that opened it."""
        families = [*declared_by_tokens(special), *declared, *FAMILIES]
        as_tokens = [f for f in families if all(map(_is_symbol, self.spell("".join(_needed(f)))))]
        for family in as_tokens:
            self._add(family)
        for family in families:
            if family.spelled and family not in as_tokens:
                self._add(family)
        if turns is not None:
            self._end_at(turns)

    def spell(self, text: str) -> str:
        """A text with the special tokens in it as their characters."""
        within = sorted((t for t in self._special if t in text), key=len, reverse=True)
        if not within:
            return text
        pieces = re.split(f"({'|'.join(map(re.escape, within))})", text)
        return "".join(self._symbol(piece) if n % 2 else piece for n, piece in enumerate(pieces))

    def opened_by(self, prompt: str) -> str:
        """The mark that began a thought at the prompt's end, as some templates do; empty where none did."""
        tail = prompt.rstrip()
        return next((mark for end, mark in self._openings.items() if tail.endswith(end)), "")

    def _add(self, family: Family) -> None:
        marks = {self.spell(text): effect for text, effect in family.marks().items()}
        think, answer = self.spell(family.think), self.spell(family.answer)
        if not _is_symbol(think) and not _TAG.fullmatch(think):
            marks.pop(think, None)  # ordinary words, or several marks: only a prompt's end opens a thought so
        self.marks = {**marks, **self.marks}
        if think:
            self.closes.setdefault(think, answer)
            self.labels[think] = family.label
            for end in {family.think, f"{family.think}{family.label}"}:
                self._openings.setdefault(end, think)
        for begin in family.header:
            for word in THOUGHTS:
                self._openings.setdefault(f"{begin}{word}{family.body}", self.spell(family.body))

    def _end_at(self, turns: TurnMarks) -> None:
        end = self.spell(turns.end)
        self.ends = frozenset(token for token, symbol in self.symbols.items() if symbol in end)
        if not any(map(_is_symbol, end)) and _TAG.fullmatch(end.strip()):
            self.stops = (end.strip(),)
        opener = self.spell(turns.next).lstrip()
        if opener and _is_symbol(opener[0]) and not self.ends and not self.stops:
            # Nothing else ends a turn here, so this is how one ends.
            self.ends = frozenset(token for token, symbol in self.symbols.items() if symbol == opener[0])
        opener = opener.split("\n")[0].rstrip()
        if any(map(_is_symbol, opener)) or _TAG.match(opener):
            self.openers = (opener,)
        elif sum(map(str.isalnum, opener)) > 1:
            self.openers = (f"\n{opener}",)  # ordinary words open a turn at the beginning of a line alone

    def _symbol(self, text: str) -> str:
        token = self._special[text]
        if token not in self.symbols:
            self.symbols[token] = char = chr(0xD800 + len(self.symbols))
            self.shown[ord(char)] = "" if token in self._hidden else text
        return self.symbols[token]


def _needed(family: Family) -> tuple[str, ...]:
    """The marks without which a vocabulary does not have the family as tokens."""
    return tuple(t for t in (family.think, family.answer, *family.header, family.body) if t)


def _is_symbol(char: str) -> bool:
    return len(char) == 1 and "\ud800" <= char <= "\udfff"


class ReplyText:
    """Tokens in, text out, one token at a time, each told whether it belongs to the thinking.

    A character, a mark or a stop string may be spread over tokens, and may end in the midst of one. Text that
    may still turn out to begin one is held back and comes with a later token, so that the text of the tokens
    outside the thinking, joined, is the answer and never shows a part of a mark. A token whose text lies on
    both sides gives its first part; the rest comes with the next token, or from ``finish``.
    """

    def __init__(
        self,
        form: ReplyFormat,
        *,
        stop: Sequence[str] = (),
        opened_by: str = "",
        turns: bool = True,
    ) -> None:
        self.inside = bool(opened_by)
        """What comes now belongs to the thinking."""
        self.stopped: Literal["", "stop", "turn"] = ""
        """A stop string, or the beginning of the user's next turn, has completed: the text before it is out,
        it and what follows it is not."""
        self._form = form
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        stops = {*stop, *map(form.spell, stop), *(form.stops if turns else ())}
        self._ends: dict[str, Literal["stop", "turn"]] = {text: "stop" for text in stops if text}
        self._openers = form.openers if turns else ()
        self._ends |= dict.fromkeys(self._openers, "turn")
        self._always = (*filter(_is_symbol, form.marks), *self._ends)
        """The marks that count wherever they stand."""
        self._shown_as_is = not (self._always or form.symbols)
        """Within an answer that has begun no mark counts."""
        self._by = opened_by
        self._label = form.labels.get(opened_by, "")
        self._fresh = self.inside
        self._header: str | None = None
        """The header so far, its mark included; None outside one."""
        self._last = True
        """Nothing is expected after this part of the answer."""
        self._held = ""
        self._ready: deque[tuple[str, bool]] = deque()
        self._said = {False: "", True: ""}
        """The last character of the answer and of the thinking."""
        self._answered = False
        """The answer has more than blanks."""
        self._wrapped = False
        """A mark that stands around the answer has begun it."""

    def ends_at(self, token: int) -> bool:
        """Whether an end token ends the reply here: one that is a mark too may end no more than a thought."""
        if self._form.symbols.get(token) not in self._form.marks:
            return True
        return not self.inside and self._header is None and self._last

    def push(self, piece: bytes, token: int = -1) -> tuple[str, bool]:
        """The text that a token adds, and whether it belongs to the thinking. Bytes that are not UTF-8 come
        out as U+FFFD."""
        symbol = self._form.symbols.get(token)
        return self.push_text(
            self._decoder.decode(piece) if symbol is None else self._decoder.decode(b"", True) + symbol
        )

    def push_text(self, text: str) -> tuple[str, bool]:
        """As ``push``, for whole characters."""
        pending = self.inside or self._wrapped or self._held or self._ready
        if self._shown_as_is and self._answered and not pending:
            return text, False
        before = self.inside
        self._read(text)
        if not self._ready:
            return "", before or self.inside
        _, thinking = self._ready[0]
        text = ""
        while self._ready and self._ready[0][1] == thinking:
            text += self._ready.popleft()[0]
        return text, thinking

    def finish(self) -> tuple[str, str]:
        """What was held back of the answer and of the thinking, at the reply's end."""
        if not self.stopped:
            self._read(self._decoder.decode(b"", True), final=True)
        rest = {False: "", True: ""}
        for text, thinking in self._ready:
            rest[thinking] += text
        self._ready.clear()
        return rest[False], rest[True]

    # -- parts

    def _read(self, text: str, *, final: bool = False) -> None:
        text, self._held = self._held + text, ""
        while text and not self.stopped:
            marks = self._looked_for(text)
            found = _first_mark(text, marks)
            if found is None:
                keep = 0 if final else self._undecided(text, marks)
                self._say(text[: len(text) - keep])
                self._held = text[len(text) - keep :]
                return
            begin, mark = found
            before, text = text[:begin], text[begin + len(mark) :]
            if mark in self._ends:
                self._say(before)
                self.stopped = self.stopped or self._ends[mark]
            else:
                self._say(before.rstrip("\n") if self._blanks_wait else before)
                if not self.stopped:
                    self._obey(mark)

    @property
    def _blanks_wait(self) -> bool:
        """Line ends at the edges of a thought belong to its marks."""
        return self.inside or not (self._said[False] or self._said[True])

    def _looked_for(self, text: str) -> Sequence[str]:
        """The marks that count now. One that is spelled counts where it belongs alone: a thought begins
        before the answer, and ends with the tag that goes with its own."""
        form = self._form
        if self.inside:
            close = form.closes.get(self._by, "")
            ends = form.marks.get(close) == "answer" and not _is_symbol(close)
            return (*self._always, close) if ends else self._always
        if self._answered and not self._wrapped:
            return self._always
        begin = text.lstrip()
        spelled = [
            mark
            for mark, effect in form.marks.items()
            if not _is_symbol(mark)
            and (
                (effect == "drop" and self._wrapped)
                or (effect in ("think", "drop") and not self._answered and _agree(begin, mark))
            )
        ]
        return (*self._always, *spelled)

    def _undecided(self, text: str, marks: Sequence[str]) -> int:
        """How many characters at the end of a text may still become a mark or part of one."""
        if self._label and self._label.startswith(text.lstrip("\n")):
            return len(text)
        keep = max((_overlap(text, mark) for mark in marks), default=0)
        if self._blanks_wait:
            keep = len(text) - len(text[: len(text) - keep].rstrip("\n"))
        return keep

    def _obey(self, mark: str) -> None:
        effect = self._form.marks[mark]
        was = self.inside
        if effect == "drop":
            self._wrapped = True
            return
        if effect in ("header", "closing"):
            self._header = mark
            return
        if self._header is not None and effect == "body":
            self._end_header(mark)
        elif effect == "think":
            self.inside, self._by, self._label = True, mark, self._form.labels.get(mark, "")
        elif effect == "answer":
            self.inside, self._label = False, ""
        self._header = None
        self._fresh = self._fresh or was is not self.inside or effect == "body"

    def _end_header(self, body: str) -> None:
        assert self._header is not None
        begin, header = self._header[0], self._header[1:]
        if any(f"{self._header}{body}".startswith(opener) for opener in self._openers):
            self.stopped = "turn"
            return
        words = header.replace("=", "= ").split()
        thinks = not THOUGHTS.isdisjoint(words) or "to=" in words
        self.inside = thinks and self._form.marks[begin] == "header"
        self._last = not self.inside and ASIDES.isdisjoint(words)
        self._by = body

    def _say(self, text: str) -> None:
        text = text.translate(self._form.shown)
        if self._header is not None:
            self._header += text
            if any(self._header.startswith(opener) for opener in self._openers):
                self.stopped = "turn"
            if len(self._header) <= _LONGEST_HEADER:
                return
            text, self._header = self._header[1:], None  # no header after all
        if self._fresh:
            text = text.lstrip("\n")
        if not text:
            return
        if self._label:
            rest = text.removeprefix(self._label)
            if not rest[:1].isalnum():
                text = rest.lstrip("\n")
            self._label = ""
            if not text:
                return
        if self._fresh and self._said[self.inside] not in ("", "\n"):
            text = f"\n\n{text}"
        self._fresh = False
        self._ready.append((text, self.inside))
        self._said[self.inside] = text[-1]
        self._answered = self._answered or (not self.inside and not text.isspace())


def _first_mark(text: str, marks: Sequence[str]) -> tuple[int, str] | None:
    """Where the mark that completes first begins, of several the longest; None without one."""
    found = [(i + len(mark), i, mark) for mark in marks if (i := text.find(mark)) >= 0]
    return min(found)[1:] if found else None


def _agree(a: str, b: str) -> bool:
    """One of two texts begins with the other."""
    return a.startswith(b) or b.startswith(a)


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that ``mark`` begins with, the whole of it left out."""
    for n in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:n]):
            return n
    return 0
