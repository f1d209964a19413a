"""A sequential reader of GGUF's primitive values that never trusts a length.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: little-endian, strings are a u64 length and bytes.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, NoReturn

from ds4chat.models.errors import ModelFileError
from ds4chat.text import one_line

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

_WINDOW = 1 << 18
"""Bytes of the file in memory at a time."""


class Scan:
    """Reads values one after the other.

    ``size`` is the file's length in bytes; nothing is read, and no memory taken, beyond what it allows.
    Raises ModelFileError if the file ends early or contradicts itself.
    """

    def __init__(self, file: BinaryIO, size: int, path: object) -> None:
        self._file = file
        self._size = size
        self.path = path
        self._base = 0
        """Offset in the file of the window's first byte."""
        self._window = b""
        self._at = 0
        """Offset in the window of the next byte; may be beyond its end."""

    @property
    def pos(self) -> int:
        """Offset in the file of the next value."""
        return self._base + self._at

    @property
    def left(self) -> int:
        """Bytes between here and the file's end."""
        return self._size - self.pos

    def truncated(self) -> NoReturn:
        """Raise the error for a file that ends inside its header."""
        raise ModelFileError(
            f"{one_line(self.path)} is truncated: it ends inside its header. Download or copy it again."
        )

    def corrupt(self, what: str) -> NoReturn:
        """Raise the error for a header with an impossible value."""
        raise ModelFileError(f"{one_line(self.path)} is corrupt: {what}. Download or copy it again.")

    def read(self, n: int) -> bytes:
        """The next ``n`` bytes."""
        if n > self.left:
            self.truncated()
        if self._at + n > len(self._window):
            self._refill(n)
        start, self._at = self._at, self._at + n
        return self._window[start : self._at]

    def number(self, kind: struct.Struct) -> Any:
        """The next number."""
        return kind.unpack(self.read(kind.size))[0]

    def string(self, limit: int, what: str) -> bytes:
        """The next string's bytes, at most ``limit``."""
        length = self.number(U64)
        if length > limit:
            self.corrupt(f"{what} says it is {length:,} bytes long")
        return self.read(length)

    def skip(self, n: int) -> None:
        """Skip ``n`` bytes."""
        if n > self.left:
            self.truncated()
        self._at += n

    def skip_strings(self, n: int) -> None:
        """Go ``n`` strings on. Each takes the eight bytes of its length at least, so a wild ``n`` fails at
        once."""
        if 8 * n > self.left:
            self.truncated()
        unpack = U64.unpack_from
        window, at, last = self._window, self._at, len(self._window) - 8
        while n:
            if at > last:
                self._at = at
                if self.left < 8:
                    self.truncated()
                self._refill(8)
                window, at, last = self._window, self._at, len(self._window) - 8
            while n and at <= last:
                at += 8 + unpack(window, at)[0]
                n -= 1
        self._at = at
        if self.left < 0:
            self.truncated()

    def _refill(self, n: int) -> None:
        """Move the window so that it starts here and has at least ``n`` bytes."""
        self._base, self._at = self.pos, 0
        wanted = min(max(n, _WINDOW), self._size - self._base)
        self._file.seek(self._base)
        chunks = []
        while wanted > 0:
            chunk = self._file.read(wanted)
            if not chunk:
                self.truncated()  # the file was truncated since its size was read
            chunks.append(chunk)
            wanted -= len(chunk)
        self._window = b"".join(chunks)
