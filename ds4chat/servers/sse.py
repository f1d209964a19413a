"""Server-sent events, and JSON one a line, out of bytes that are cut anywhere. Pure.

The rules are those of the WHATWG's page on server-sent events, for the one field that matters here: a line
ends in LF, CRLF or CR and nothing else (not in U+2028 or U+0085), ``data:`` lines of one event are joined, a
blank line ends the event, a line that begins with a colon is a comment. A line that is no field of that form
is kept: it is Ollama's JSON, one object a line, or an error's body that a server sent without any framing.
"""

from __future__ import annotations

MOST_EVENT_BYTES = 16 << 20
"""An event longer than this is not what was asked."""

_FIELDS = (b"event", b"id", b"retry")


class TooLongError(ValueError):
    """An event has no end within MOST_EVENT_BYTES."""


class EventStream:
    """Bytes in, the payloads of events out."""

    def __init__(self) -> None:
        self._rest = b""
        """The line that has no end yet."""
        self._after_cr = False
        """The last byte was a CR: an LF that follows belongs to it."""
        self._data: list[bytes] = []
        self._stray: list[bytes] = []
        self._size = 0
        self.comments = 0
        """Comment lines so far: a server sends them as signs of life."""

    def feed(self, part: bytes) -> list[bytes]:
        """The payloads that these bytes complete. Raises TooLongError."""
        if self._after_cr and part:
            self._after_cr = False
            part = part.removeprefix(b"\n")
        if part.endswith(b"\r"):
            self._after_cr = True
        *lines, rest = _lines(part)
        found: list[bytes] = []
        for number, line in enumerate(lines):
            whole = self._rest + line if number == 0 else line
            self._line(whole, found)
        self._rest = rest if lines else self._rest + rest
        if len(self._rest) + self._size > MOST_EVENT_BYTES:
            raise TooLongError("an event is too long")
        return found

    def finish(self) -> list[bytes]:
        """What the end of the stream completes: a last event without its blank line, or a body that is no
        stream at all."""
        found: list[bytes] = []
        if self._rest:
            self._line(self._rest, found)
            self._rest = b""
        self._line(b"", found)
        if self._stray:
            found.append(b"\n".join(self._stray))
            self._stray.clear()
        return found

    def _line(self, line: bytes, found: list[bytes]) -> None:
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
        elif name in _FIELDS:
            return
        elif line.startswith(b"{") and line.rstrip().endswith(b"}") and not self._stray:
            found.append(line)
        else:
            self._stray.append(line)
            self._size += len(line)


def _lines(part: bytes) -> list[bytes]:
    """The lines of ``part``, the last one without its end."""
    if b"\r" in part:
        part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return part.split(b"\n")
