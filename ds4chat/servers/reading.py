"""From the bytes of an answer to what it says: framing, JSON, and the dialect's reader. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ds4chat.servers.dialect import Piece, Reader
from ds4chat.servers.http import ServerError
from ds4chat.servers.sse import EventStream, TooLongError

_decode = msgspec.json.Decoder().decode
DONE = b"[DONE]"


class Reading:
    """One answer on its way. Raises ServerError for what no server of its dialect sends."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._events = EventStream()

    @property
    def comments(self) -> int:
        """Signs of life that said nothing else."""
        return self._events.comments

    def feed(self, part: bytes) -> Iterator[Piece]:
        """What these bytes complete."""
        try:
            payloads = self._events.feed(part)
        except TooLongError:
            raise ServerError(
                "The server sent an event of more than 16 MiB, which is no part of a reply. Look whether the "
                "address is right.",
                "strange",
            ) from None
        yield from self._read(payloads)

    def finish(self) -> Iterator[Piece]:
        """What is left when the bytes have ended."""
        yield from self._read(self._events.finish())
        yield from self.reader.finish()

    def _read(self, payloads: list[bytes]) -> Iterator[Piece]:
        for payload in payloads:
            if payload != DONE and isinstance(said := _decoded(payload), dict):
                yield from self.reader.feed(said)


def _decoded(payload: bytes) -> Any:
    """An event's JSON. Raises ServerError."""
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return _decode(payload.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        if payload.strip() == DONE:
            return None
        raise ServerError(
            "The server sent something in its reply that is not JSON, or the connection was cut inside an "
            "event. Look at its log, then retry.",
            "strange",
        ) from None
