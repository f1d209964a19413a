"""Text from a model or a file made harmless for the screen: nothing in it can move the cursor, change the
direction of writing, or hide. Pure.

Every character that is left has the width that rich gives it alone, so widths add up. For that, joiners and
variation selectors, whose width depends on their neighbours, are left out: an emoji family shows as its
members.
"""

from __future__ import annotations

import re

INVISIBLE = "▯"
"""Stands for a character that draws nothing or turns the direction of writing."""

TAB = 4
"""Columns between two tab stops."""

_SPECIAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\uffff\U000e0000-\U000e0fff]"
)
_LINE_ENDS = "\x85\u2028\u2029"
_DROPPED = frozenset("\u200d") | frozenset(map(chr, range(0xFE00, 0xFE10)))
_NON_JOINER = "\u200c"


def safe_text(text: str) -> str:
    """``text`` with every control, escape, bidi and invisible character as a visible symbol.

    Newlines and tabs stay. Control characters become their symbols (``␛``), other invisible characters
    ``▯``; a zero-width non-joiner stays after a letter of a script that uses it.
    """
    if _SPECIAL.search(text) is None:
        return text
    text = text.replace("\r\n", "\n")
    return _SPECIAL.sub(_symbol, text)


def _symbol(match: re.Match[str]) -> str:
    char = match.group()
    code = ord(char)
    if char in _LINE_ENDS:
        return "\n"
    if char in _DROPPED:
        return ""
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if char in "\ufffc\ufffd" or 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    if char == _NON_JOINER:
        before = match.string[match.start() - 1 : match.start()]
        return char if before > "\u05ff" else INVISIBLE
    return INVISIBLE


def expand_tabs(text: str, column: int) -> str:
    """``text`` with each tab as the blanks to its next stop; ``column`` is where in its line it begins."""
    if "\t" not in text:
        return text
    parts: list[str] = []
    for char in text:
        if char == "\t":
            blanks = TAB - column % TAB
            parts.append(" " * blanks)
            column += blanks
        else:
            parts.append(char)
            column = 0 if char == "\n" else column + 1
    return "".join(parts)


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean_input(text: str) -> str:
    """A pasted or read text as it may stand in a prompt: newlines unified, escape sequences and control
    characters left out, everything else kept."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", _ESCAPES.sub("", text))
