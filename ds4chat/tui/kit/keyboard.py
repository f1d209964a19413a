"""Parsing of terminal input, with fixes for what Textual's parser gets wrong for typed and pasted text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message

META_ENTER = ("\x1b\r", "\x1b\n")
"""Alt+Enter of terminals that send Alt as an escape character before the key."""
_PARTIAL = len(BRACKETED_PASTE_START) - 1
"""Most characters of an incomplete mark of a paste's beginning or end."""


def is_text(character: str) -> bool:
    """The character can be part of a text: everything but control characters and lone surrogates.

    Unlike ``str.isprintable`` this includes joiners, which Persian and emoji need, blanks other than the
    space, and characters that are newer than Python's tables.
    """
    code = ord(character)
    return code >= 0x20 and not 0x7F <= code < 0xA0 and not 0xD800 <= code < 0xE000


class Key(events.Key):
    """A key that is printable if it writes text. ``on_key`` handles it like its base."""

    @property
    def is_printable(self) -> bool:
        return self.character is not None and len(self.character) == 1 and is_text(self.character)

    def copy(self) -> Key:
        return Key(self.key, self.character)


class InputParser(XTermParser):
    """Textual's parser with three differences: a paste keeps its text whole and in order, whatever is in it;
    Alt+Enter is recognised in both forms; and every character that writes text is printable."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._tail = ""
        """The end of the input so far, which may be the beginning of a paste's mark."""
        self._pasted: list[str] | None = None
        """The parts of the current paste, without ``_tail``; None outside of a paste."""

    def feed(self, data: str) -> Iterable[Message]:
        """The events of some input. Textual calls this with an empty string at the end of the input."""
        if not data:
            yield from super().feed(data)
        while data:
            if self._pasted is None:
                tail, self._tail = self._tail, ""
                keys, mark, _ = (tail + data).partition(BRACKETED_PASTE_START)
                came = len(keys) + len(mark) - len(tail)
                if mark:
                    self._pasted = []
                else:
                    self._tail = keys[-_PARTIAL:]
                keys, data = data[:came], data[came:]
                yield from super().feed(keys)
            else:
                # Textual's parser treats an escape character in a paste as the beginning of a key.
                text, mark, data = (self._tail + data).partition(BRACKETED_PASTE_END)
                if not mark:
                    text, self._tail = text[:-_PARTIAL], text[-_PARTIAL:]
                    self._pasted.append(text)
                    continue
                pasted = "".join((*self._pasted, text)).replace("\x00", "")
                self._tail, self._pasted = "", None
                yield events.Paste(pasted)
                yield from (e for e in super().feed(mark) if not isinstance(e, events.Paste))

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        if sequence in META_ENTER:
            yield Key("alt+enter", None)
            return
        for event in super()._sequence_to_key_events(sequence, alt):
            yield Key(event.key, event.character)


def use_own_parser() -> None:
    """Make Textual's drivers use InputParser; on Windows, where they read the system's events instead,
    nothing changes."""
    try:
        from textual.drivers import linux_driver
    except ImportError:  # not on this platform
        return
    drivers: Any = linux_driver
    drivers.XTermParser = InputParser
