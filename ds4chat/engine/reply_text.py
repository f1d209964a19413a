"""What the tokens of a reply say: its thinking apart from its answer, and where it ends.

It reads text alone, so that a server's reply goes through it as well as the engine's.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from ds4chat.engine.thinking import (
    ASIDES,
    FAMILIES,
    TAG,
    THOUGHTS,
    Effect,
    Family,
    TurnMarks,
    declared_by_tokens,
)

_LONGEST_HEADER = 120


class ReplyFormat:
    """How one model's replies are read. Special tokens become characters that no text holds (lone
    surrogates), so that a mark that is a token and a tag that is spelled are found in the same way, and never
    confused.

    ``special``: text -> id of the vocabulary's special tokens; ``hidden``: those without a text to show.
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
        """Token -> its character, for those that are part of a mark."""
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
        """End of a prompt that leaves a thought open -> the mark that opened it."""
        families = [*declared_by_tokens(special), *declared, *FAMILIES]
        as_tokens = [f for f in families if all(map(_is_symbol, self.spell("".join(f.needed()))))]
        for family in as_tokens:
            self._add(family)
        for family in families:
            if family.spelled and family not in as_tokens:
                self._add(family)
        if turns is not None:
            self._end_at(turns)

    def spell(self, text: str) -> str:
        """A text with the characters of the special tokens in it."""
        within = sorted((t for t in self._special if t in text), key=len, reverse=True)
        if not within:
            return text
        pieces = re.split(f"({'|'.join(map(re.escape, within))})", text)
        return "".join(self._symbol(piece) if n % 2 else piece for n, piece in enumerate(pieces))

    def opened_by(self, prompt: str) -> str:
        """The mark with which the prompt's end opens a thought; empty where it opens none."""
        tail = prompt.rstrip()
        return next((mark for end, mark in self._openings.items() if tail.endswith(end)), "")

    def _add(self, family: Family) -> None:
        marks = {self.spell(text): effect for text, effect in family.marks().items()}
        think, answer = self.spell(family.think), self.spell(family.answer)
        if family in FAMILIES and not _is_symbol(think) and not TAG.fullmatch(think):
            marks.pop(think, None)  # ordinary words, or several marks: these only count at a prompt's end
        self.marks = {**marks, **self.marks}
        if think:
            self.closes.setdefault(think, answer)
            self.labels[think] = family.label
            for end in {family.think, f"{family.think}{family.label}"}:
                self._openings.setdefault(end, think)
        for begin in family.header:
            for word in THOUGHTS:
                self._openings.setdefault(f"{begin}{word}{family.body}".rstrip(), self.spell(family.body))
        if opening := family.whole_opening:
            self._openings.setdefault(opening.rstrip(), self.spell(opening))

    def _end_at(self, turns: TurnMarks) -> None:
        end = self.spell(turns.end)
        self.ends = frozenset(token for token, symbol in self.symbols.items() if symbol in end)
        if not any(map(_is_symbol, end)) and TAG.fullmatch(end.strip()):
            self.stops = (end.strip(),)
        opener = self.spell(turns.next).lstrip()
        if opener and _is_symbol(opener[0]) and not self.ends and not self.stops:
            # Nothing else ends the assistant's turn.
            self.ends = frozenset(token for token, symbol in self.symbols.items() if symbol == opener[0])
        opener = opener.split("\n")[0].rstrip()
        if any(map(_is_symbol, opener)) or TAG.match(opener):
            self.openers = (opener,)
        elif sum(map(str.isalnum, opener)) > 1:
            self.openers = (f"\n{opener}",)  # ordinary words only open a turn at the beginning of a line

    def _symbol(self, text: str) -> str:
        token = self._special[text]
        if token not in self.symbols:
            self.symbols[token] = char = chr(0xD800 + len(self.symbols))
            self.shown[ord(char)] = "" if token in self._hidden else text
        return self.symbols[token]


def _is_symbol(char: str) -> bool:
    return len(char) == 1 and "\ud800" <= char <= "\udfff"


class ReplyText:
    """Tokens in, text out, one token at a time, and whether it belongs to the thinking.

    A character, a mark or a stop string may be spread over tokens, and may end inside one. Text that may
    still become part of one is held back for a later token, so that the text of the tokens outside the
    thinking, joined, is the answer and never shows a part of a mark. Of a token that ends or begins the
    thinking, the first part is returned at once, and the rest with the next token, or by ``finish``.
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
        """What follows belongs to the thinking."""
        self.stopped: Literal["", "stop", "turn"] = ""
        """A stop string, or the beginning of the user's next turn, is complete: the text before it was
        returned, and what follows will not be."""
        self._form = form
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        stops = {*stop, *map(form.spell, stop), *(form.stops if turns else ())}
        self._ends: dict[str, Literal["stop", "turn"]] = {text: "stop" for text in stops if text}
        self._openers = form.openers if turns else ()
        self._ends |= dict.fromkeys(self._openers, "turn")
        self._always = (*filter(_is_symbol, form.marks), *self._ends)
        """The marks that count everywhere."""
        self._plain_answer = not (self._always or form.symbols)
        """Once the answer has begun no mark counts."""
        self._opener = opened_by
        """The mark that began the thought."""
        self._label = form.labels.get(opened_by, "")
        """A word that may be the first of the thought, and is not shown."""
        self._at_start = self.inside
        """Nothing of the thought or the answer that follows a mark has come."""
        self._header: str | None = None
        """The header so far, with its mark; None outside one."""
        self._final = True
        """This part of the answer is the last one."""
        self._held = ""
        self._ready: deque[tuple[str, bool]] = deque()
        self._last_char = {False: "", True: ""}
        """Of the answer and of the thinking."""
        self._answered = False
        """The answer has more than blanks."""
        self._wrapped = False
        """The answer began with a mark around it."""

    def ends_at(self, token: int) -> bool:
        """Whether an end token ends the reply here; one that is also a mark may only end a thought."""
        if self._form.symbols.get(token) not in self._form.marks:
            return True
        return not self.inside and self._header is None and self._final

    def push(self, piece: bytes, token: int = -1) -> tuple[str, bool]:
        """The text that a token adds, and whether it belongs to the thinking. Bytes that are not UTF-8 become
        U+FFFD."""
        symbol = self._form.symbols.get(token)
        return self.push_text(
            self._decoder.decode(piece) if symbol is None else self._decoder.decode(b"", True) + symbol
        )

    def push_text(self, text: str) -> tuple[str, bool]:
        """As ``push``, for whole characters."""
        pending = self.inside or self._wrapped or self._held or self._ready
        if self._plain_answer and self._answered and not pending:
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
        """The text of the answer and of the thinking that was held back until the reply's end."""
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
            marks = self._current_marks(text)
            found = _first_mark(text, marks)
            if found is None:
                keep = 0 if final else self._held_back(text, marks)
                self._add(text[: len(text) - keep])
                self._held = text[len(text) - keep :]
                return
            begin, mark = found
            before, text = text[:begin], text[begin + len(mark) :]
            if mark in self._ends:
                self._add(before)
                self.stopped = self.stopped or self._ends[mark]
            else:
                self._add(before.rstrip("\n") if self._holds_line_ends else before)
                if not self.stopped:
                    self._apply(mark)

    @property
    def _holds_line_ends(self) -> bool:
        """Line ends are held back, since those at the edges of a thought belong to its marks."""
        return self.inside or self._untouched

    @property
    def _untouched(self) -> bool:
        """Nothing of the thought or the answer has come."""
        return not (self._last_char[False] or self._last_char[True])

    def _current_marks(self, text: str) -> Sequence[str]:
        """The marks that count now. A spelled one only counts in its place: a thought begins before the
        answer, and ends with the tag that matches its own."""
        form = self._form
        if self._header is not None:
            return (*self._always, *(mark for mark, effect in form.marks.items() if effect == "body"))
        if self.inside:
            close = form.closes.get(self._opener, "")
            ends = form.marks.get(close) == "answer" and not _is_symbol(close)
            # A model may open the thought again that the prompt opened.
            again = self._at_start and ends and _agree(text.lstrip(), self._opener)
            return (*self._always, *[close] * ends, *[self._opener] * (again and self._opener in form.marks))
        if self._answered and not self._wrapped:
            return self._always
        begin = text.lstrip()
        spelled = [
            mark
            for mark, effect in form.marks.items()
            if not _is_symbol(mark)
            and (
                (effect == "header" and self._untouched and _agree(text, mark))
                or (effect == "drop" and self._wrapped)
                or (effect in ("think", "drop") and not self._answered and _agree(begin, mark))
            )
        ]
        return (*self._always, *spelled)

    def _held_back(self, text: str, marks: Sequence[str]) -> int:
        """How many characters at the end of a text may be part of a mark."""
        if self._label and self._label.startswith(text.lstrip("\n")):
            return len(text)
        keep = max((_overlap(text, mark) for mark in marks), default=0)
        if self._holds_line_ends:
            keep = len(text) - len(text[: len(text) - keep].rstrip("\n"))
        return keep

    def _apply(self, mark: str) -> None:
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
            self.inside, self._opener, self._label = True, mark, self._form.labels.get(mark, "")
        elif effect == "answer":
            self.inside, self._label = False, ""
        self._header = None
        self._at_start = self._at_start or was is not self.inside or effect == "body"

    def _end_header(self, body: str) -> None:
        assert self._header is not None
        begin, header = self._header[0], self._header[1:]
        if any(f"{self._header}{body}".startswith(opener) for opener in self._openers):
            self.stopped = "turn"
            return
        words = header.replace("=", "= ").split()
        recipient = words[words.index("to=") + 1 :][:1] if "to=" in words else []
        thinks = not THOUGHTS.isdisjoint(words) or recipient not in ([], ["user"])
        self.inside = thinks and self._form.marks.get(begin, "header") == "header"
        self._final = not self.inside and ASIDES.isdisjoint(words)
        self._opener = body

    def _add(self, text: str) -> None:
        text = text.translate(self._form.shown)
        if self._header is not None:
            self._header += text
            if any(self._header.startswith(opener) for opener in self._openers):
                self.stopped = "turn"
            if len(self._header) <= _LONGEST_HEADER:
                return
            text, self._header = self._header[1:], None  # no header after all
        if self._at_start:
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
        if self._at_start and self._last_char[self.inside] not in ("", "\n"):
            text = f"\n\n{text}"
        self._at_start = False
        self._ready.append((text, self.inside))
        self._last_char[self.inside] = text[-1]
        self._answered = self._answered or (not self.inside and not text.isspace())


def _first_mark(text: str, marks: Sequence[str]) -> tuple[int, str] | None:
    """Where the mark that completes first begins, of several the longest; None without one."""
    found = [(i + len(mark), i, mark) for mark in marks if (i := text.find(mark)) >= 0]
    return min(found)[1:] if found else None


def _agree(a: str, b: str) -> bool:
    """One of two texts begins with the other."""
    return a.startswith(b) or b.startswith(a)


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` with which ``mark`` begins, except the whole mark."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(mark[:n])), 0)
