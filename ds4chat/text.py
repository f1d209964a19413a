"""What may be printed, and how: text of models, files, paths, servers and other processes, made unable to
drive a terminal.

Two renderings of the same characters. In sentences, names, paths and logs an escape (``\\x1b``) says which
character it was. In the transcript each character keeps its own cell, so it is shown as a symbol (``␛``).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

INVISIBLE = "▯"
"""Shown in the transcript for a character that draws nothing or changes the direction of writing."""

# Controls, line and paragraph separators, what changes the direction of writing, what draws nothing, lone
# surrogates, and code points that are no characters. Newline and tab stay.
_SPECIAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
_NON_JOINER = "\u200c"
_DROPPED = frozenset("\u200d") | frozenset(map(chr, range(0xFE00, 0xFE10)))
_LINE_ENDS = "\x85\u2028\u2029"
_SURROGATES = re.compile("[\ud800-\udfff]")
_ESCAPE_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_TYPED_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


# ------------------------------------------------------------------------------------ sentences


def printable(text: str) -> str:
    """``text`` with everything that could control a terminal, change the direction of writing or be invisible
    as an escape. Line ends and tabs stay, as do joiners inside an emoji or a word of a script that uses
    them."""
    if _SPECIAL.search(text) is None:
        return text
    return _SPECIAL.sub(_escaped, text.replace("\r\n", "\n"))


def one_line(text: object) -> str:
    """``text``, which may be a path, an error or bytes, printable and on one line."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    return printable(str(text)).replace("\n", " ").replace("\t", " ")


def counted(number: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(text: object, limit: int = 60) -> str:
    """``text`` on one line of at most ``limit`` characters: a value quoted in a sentence."""
    if isinstance(text, str):
        text = text[: 2 * (limit + 1)]  # a line end of two characters is one of the line
    line = one_line(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


_INNER_FOLDERS = re.compile(r"(?<![\w:/.])(/?[\w~.][^\s/]*/)(?:[^\s/]+/)+(?=[^\s/])")


def with_short_paths(text: str) -> str:
    """``text`` with each path reduced to its first folder and the file's name, as in ``/home/…/model.gguf``;
    URLs stay."""
    return _INNER_FOLDERS.sub(r"\1…/", text)


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    before = match.string[match.start() - 1 : match.start()]
    if char in _JOINERS and before > "\u02ff":
        return char
    return char.encode("unicode_escape").decode("ascii")


# ------------------------------------------------------------------------------------ transcript


def drawn(text: str) -> str:
    """``text`` with every control, escape, bidi and invisible character as a visible symbol. Line ends and
    tabs stay.

    Each remaining character has the width that rich gives it on its own, so widths add up. To that end,
    joiners and variation selectors, whose width depends on their neighbours, are left out: an emoji family
    shows as its members.
    """
    if _SPECIAL.search(text) is None:
        return text
    return _SPECIAL.sub(_symbol, text.replace("\r\n", "\n"))


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
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    if char == _NON_JOINER:
        before = match.string[match.start() - 1 : match.start()]
        return char if before > "\u05ff" else INVISIBLE
    return INVISIBLE


_MOVING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def unmoving(text: str) -> str:
    """A row's ``text`` without the zero-width characters that move the cursor or change the direction of
    writing, and with U+FFFD for lone surrogates. The same object where there are none."""
    if text.isascii() and text.isprintable():
        return text
    if _MOVING.search(text) is None and _SURROGATES.search(text) is None:
        return text
    return encodable(_MOVING.sub("", text))


# ------------------------------------------------------------------------------------ other ends


def without_controls(text: str) -> str:
    """A pasted or read text, cleaned for a prompt: newlines unified, escape sequences and control characters
    removed, everything else kept."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _TYPED_CONTROLS.sub("", _ESCAPE_SEQUENCES.sub("", text))


def encodable(text: str) -> str:
    """``text`` with U+FFFD for lone surrogates, which UTF-8 cannot encode; the length stays."""
    return _SURROGATES.sub("\ufffd", text)


def json_text(value: object, *, ascii_only: bool = False, indent: int | None = None) -> str:
    """``value`` as JSON with special characters as ``\\u`` escapes: printable, and equal when parsed."""
    return json_printable(json.dumps(value, ensure_ascii=ascii_only, indent=indent))


def json_printable(document: str) -> str:
    """The same JSON with special characters as ``\\u`` escapes. They occur only inside strings."""
    return _SPECIAL.sub(lambda match: json.dumps(match.group()).strip('"'), document)


# ------------------------------------------------------------------------------------ streams


class PrintableStream:
    """A text stream that makes all text printable; everything else is passed through to the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream
        self._last = ""

    def write(self, text: str) -> int:
        """Write ``text`` made printable, joined to the character that was written before it."""
        # A joiner is judged by the character before it, which may be part of the previous write.
        shown = printable(self._last + text)[len(self._last) :]
        self._last = shown[-1:] if shown and _SPECIAL.search(shown[-1]) is None else ""
        self.unguarded.write(shown)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of ``lines``."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def unguarded(stream: TextIO) -> TextIO:
    """The stream behind a PrintableStream: for ds4chat's own control sequences, and for the model's bytes
    when they go into a pipe."""
    return cast(TextIO, getattr(stream, "unguarded", stream))


ERASE_LINE = "\r\x1b[K"


def redraw_line(stream: TextIO, text: str = "") -> None:
    """Replace the terminal's current line with ``text``."""
    unguarded(stream).write(ERASE_LINE)
    stream.write(text)
    stream.flush()


@contextmanager
def printable_streams() -> Iterator[None]:
    """Make everything written to sys.stdout and sys.stderr printable: sentences, tracebacks of uncaught
    exceptions, and what libraries print."""
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, PrintableStream(unguarded(sys.stdout)))
    sys.stderr = cast(TextIO, PrintableStream(unguarded(sys.stderr)))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


_NO_ESCAPES = ("dumb", "unknown")
"""Values of TERM for a terminal without cursor movement."""


def supports_escapes(stream: TextIO) -> bool:
    """The stream is a terminal with cursor movement and text styles."""
    try:
        return stream.isatty() and os.environ.get("TERM", "").lower() not in _NO_ESCAPES
    except (AttributeError, ValueError):  # not a stream, or closed
        return False
