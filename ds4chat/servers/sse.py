"""Server-sent events, and JSON lines, from bytes that are cut anywhere. Pure.

The rules are those of the WHATWG's page on server-sent events, for the one field that matters here: a line
ends in LF, CRLF or CR and nothing else (not in U+2028 or U+0085), the ``data:`` lines of one event are
joined, a blank line ends the event, a line that begins with a colon is a comment, and other fields are
ignored, as is a byte order mark at the beginning. A line of another form is kept: it is Ollama's JSON, one
object a line, or the body of an error that a server sent without framing.
"""

from __future__ import annotations

import codecs
import re

MOST_EVENT_BYTES = 16 << 20
"""The longest event that is read."""

_FIELD = re.compile(rb"[A-Za-z][\w-]*(:|$)")


class TooLongError(ValueError):
    """An event has no end within MOST_EVENT_BYTES."""


class EventStream:
    """Bytes in, the payloads of events out."""

    def __init__(self) -> None:
        self._rest = b""
        """The line that has no end yet."""
        self._first = True
        """No line is complete yet."""
        self._after_cr = False
        """The last byte was a CR: an LF that follows belongs to it."""
        self._data: list[bytes] = []
        self._other: list[bytes] = []
        """Lines that are not server-sent events."""
        self._size = 0
        self.comments = 0
        """Comment lines so far, which servers send as signs of life."""

    def feed(self, part: bytes) -> list[bytes]:
        """The payloads that these bytes complete. Raises TooLongError."""
        if self._after_cr and part:
            self._after_cr = False
            part = part.removeprefix(b"\n")
        if part.endswith(b"\r"):
            self._after_cr = True
        if b"\r" in part:
            part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + part).split(b"\n")
        found: list[bytes] = []
        for line in lines:
            self._line(line, found)
        if len(self._rest) + self._size > MOST_EVENT_BYTES:
            raise TooLongError("an event is too long")
        return found

    def finish(self) -> list[bytes]:
        """The payloads that the end of the stream completes: a last event without its blank line, or a body
        that is no stream at all."""
        found: list[bytes] = []
        if self._rest:
            self._line(self._rest, found)
            self._rest = b""
        self._line(b"", found)
        if self._other:
            found.append(b"\n".join(self._other))
            self._other.clear()
        return found

    def _line(self, line: bytes, found: list[bytes]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
                self._data.clear()
                self._size = 0
            return
        if line.startswith(b":"):
            self.comments += 1
            return
        name, colon, value = line.partition(b":")
        if name == b"data" and colon:
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
        elif _FIELD.match(line):
            return
        elif line.startswith(b"{") and line.rstrip().endswith(b"}") and not self._other:
            found.append(line)
        else:
            self._other.append(line)
            self._size += len(line)
