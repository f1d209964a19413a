"""The conversation's own text inside a rendered prompt, which must never become special tokens.

A template may write tokens such as the one that ends a turn; a text that somebody typed, or read from a
file, must not. So each text is rendered between marks, characters that occur nowhere in the conversation,
which tell the conversation's characters from the template's. Where a special token would be recognised in the
conversation's text, the prompt is cut at the template's special tokens exactly as llama.cpp cuts it, and the
text between them is tokenized as text; else llama.cpp gets the whole prompt.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from ds4chat.engine.llama import SpecialToken

TextRange = tuple[int, int]
"""Begin and end of a part of a text."""

_PRIVATE = range(0xF0000, 0x110000)
"""Code points without a meaning of their own."""
_PRIVATE_USE = re.compile(f"[{chr(_PRIVATE.start)}-{chr(_PRIVATE.stop - 1)}]")
_BLANK = " \t\n\v\f\r"
"""The blanks that tokens swallow in llama.cpp."""


class Vocabulary(Protocol):
    """What tokenizing needs of a model."""

    @property
    def special_tokens(self) -> tuple[SpecialToken, ...]: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


class Finder:
    """Finds names in texts."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(filter(None, names))
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)
        firsts = "".join(re.escape(first) for first in sorted({name[0] for name in self._names}))
        self._first = re.compile(f"[{firsts}]") if firsts else re.compile("(?!)")

    def spans(self, text: str) -> Iterator[TextRange]:
        """Begin and end of each name, the longest that begins there, in order; spans may overlap."""
        for match in self._first.finditer(text):
            at = match.start()
            for length in self._lengths:
                name = text[at : at + length]
                if name in self._names:
                    yield at, at + len(name)
                    break

    def middles(self, text: str) -> list[int]:
        """Where to cut a text so that no name of two characters or more is left whole."""
        return sorted({(start + end + 1) // 2 for start, end in self.spans(text)})


class Marks:
    """Marks around texts, a pair for each, and one more inside each name that ``names`` finds in them, so
    that a template does not recognise it either. Raises ValueError where the texts use every character that a
    mark could be."""

    def __init__(self, texts: Sequence[str], names: Finder) -> None:
        used = {ord(c) for text in texts for c in _PRIVATE_USE.findall(text)}
        need = 2 * len(texts) + 1
        for first in range(_PRIVATE.start, _PRIVATE.stop - need):
            if used.isdisjoint(range(first, first + need)):
                break
        else:
            raise ValueError("every private-use character is taken")
        self._first = first
        self._any = re.compile(f"[{chr(first)}-{chr(first + need - 1)}]")
        self._names = names

    def mark(self, index: int, text: str) -> str:
        """Text number ``index`` with its marks, inside the blanks around it, which templates strip. A blank
        text gets none."""
        core = text.strip()
        if not core:
            return text
        start, end = text.index(core), text.index(core) + len(core)
        cuts = [0, *self._names.middles(core), len(core)]
        core = chr(self._first).join(core[a:b] for a, b in pairwise(cuts))
        return text[:start] + self.start(index) + core + self.end(index) + text[end:]

    def start(self, index: int) -> str:
        """The mark before text number ``index``."""
        return chr(self._first + 1 + 2 * index)

    def end(self, index: int) -> str:
        """The mark behind text number ``index``."""
        return chr(self._first + 2 + 2 * index)

    def remove(self, rendered: str) -> tuple[str, list[TextRange]]:
        """The prompt without marks, and the parts of it that are the texts' own, in order.

        Where a template cut a text and so lost one of its marks, everything up to the next mark counts as the
        text's own.
        """
        parts: list[str] = []
        own: list[TextRange] = []
        length = at = 0
        inside = False
        for match in self._any.finditer(rendered):
            part = rendered[at : match.start()]
            at = match.end()
            kind = ord(match[0]) - self._first
            is_end = kind > 0 and kind % 2 == 0
            if part and (inside or is_end):
                own.append((length, length + len(part)))
            parts.append(part)
            length += len(part)
            inside = not is_end
        parts.append(rendered[at:])
        if inside and parts[-1]:
            own.append((length, length + len(parts[-1])))
        return "".join(parts), own


def names_of(specials: Sequence[SpecialToken]) -> list[str]:
    """The texts of these tokens that must be looked for in a conversation: all but blanks."""
    return [special.text for special in specials if special.control or special.text.strip()]


def forbidden_tokens(
    special_tokens: Sequence[SpecialToken],
    specials: Finder,
    text: str,
    own: Sequence[TextRange],
    structural: Collection[str] = (),
) -> dict[int, str]:
    """Special tokens, with their texts, that would be recognised in the parts ``own`` of a prompt, which are
    in order, and must not be.

    specials: finds the special tokens by names_of(). A user-defined token, which llama.cpp recognises in any
    text, may be recognised in ``own`` too, unless it is ``structural`` or in the rest of the prompt as well.
    """
    written, typed = set(structural), set[str]()
    for start, end in specials.spans(text):
        (typed if _touches(own, start, end) else written).add(text[start:end])
    return {
        special.id: special.text
        for special in special_tokens
        if special.text in typed and (special.control or special.text in written)
    }


def tokenize(model: Vocabulary, text: str, own: Sequence[TextRange], forbidden: dict[int, str]) -> list[int]:
    """Tokens of a prompt with special tokens recognised, except forbidden ones in ``own``."""
    if not forbidden:
        return model.tokenize(text, add_special=False, parse_special=True)
    tokens: list[int] = []
    for start, end, token in partition(text, own, model.special_tokens, forbidden):
        if token is not None:
            tokens.append(token)
        else:
            tokens += _as_text(model, text[start:end], forbidden)
    return tokens


def partition(
    text: str, own: Sequence[TextRange], specials: Sequence[SpecialToken], forbidden: dict[int, str]
) -> list[tuple[int, int, int | None]]:
    """``text`` cut at its special tokens as in llama.cpp: (start, end, token), the token None for text
    between them. A forbidden token is not recognised where it touches ``own``."""
    parts: list[tuple[int, int, int | None]] = [(0, len(text), None)] if text else []
    for special in specials:
        if special.text not in text:
            continue
        cut: list[tuple[int, int, int | None]] = []
        for start, end, token in parts:
            at = start
            while token is None and (at := text.find(special.text, at, end)) >= 0:
                after = at + len(special.text)
                if special.id in forbidden and _touches(own, at, after):
                    at += 1
                    continue
                left = at
                while special.strips_left and left > start and text[left - 1] in _BLANK:
                    left -= 1
                if left > start:
                    cut.append((start, left, None))
                cut.append((at, after, special.id))
                while special.strips_right and after < end and text[after] in _BLANK:
                    after += 1
                start = at = after
            if start < end:
                cut.append((start, end, token))
        parts = cut
    return parts


def _as_text(model: Vocabulary, text: str, forbidden: dict[int, str]) -> list[int]:
    """Tokens of a text, none of them forbidden: where the vocabulary would make one, the text is cut inside
    that token's text."""
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    if forbidden.keys().isdisjoint(tokens):
        return tokens
    names = Finder(name for name in forbidden.values() if len(name) > 1)
    cuts = names.middles(text)
    tokens = []
    # A tokenizer may put a blank before a text, but not after a line break, which is a token of its own.
    line = model.tokenize("\n", add_special=False, parse_special=False)
    for start, end in zip([0, *cuts], [*cuts, len(text)]):
        piece = text[start:end]
        behind = model.tokenize("\n" + piece, add_special=False, parse_special=False) if start else []
        if line and behind[: len(line)] == line:
            tokens += behind[len(line) :]
        else:
            tokens += model.tokenize(piece, add_special=False, parse_special=False)
    return tokens


def _touches(own: Sequence[TextRange], start: int, end: int) -> bool:
    last = bisect_left(own, (end, 0)) - 1  # the last one that begins before ``end``
    return last >= 0 and own[last][1] > start
