"""Text of a model or a file made harmless for a terminal, and for JSON that is shown in one."""

from __future__ import annotations

import re

# Controls, line and paragraph separators, what turns the direction of writing, what draws nothing, and code
# points that are no characters. Newline and tab stay.
_SPECIAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"


def harmless(text: str) -> str:
    """``text`` with everything that could steer a terminal, turn the writing or hide shown as an escape."""
    return _SPECIAL.sub(_escaped, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """As harmless, with line ends and tabs as blanks."""
    return re.sub(r"[\n\t]", " ", harmless(text))


def json_harmless(document: str) -> str:
    """The same JSON with those characters as ``\\u`` escapes. They can stand only inside strings."""
    return _SPECIAL.sub(lambda match: _utf16(match.group()), document)


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    before = match.string[match.start() - 1 : match.start()]
    if char in _JOINERS and before > "\u02ff":
        # Parts of an emoji, and letters of scripts that join.
        return char
    return char.encode("unicode_escape").decode("ascii")


def _utf16(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
