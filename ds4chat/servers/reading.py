"""What an answer says, from its bytes: framing, JSON, and the dialect's reader. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds4chat.servers.dialect import End, Piece, Reader
from ds4chat.servers.http import ServerError, read_json
from ds4chat.servers.sse import EventStream, TooLongError


class Reading:
    """One answer as it arrives. Raises ServerError for what no server of its dialect sends."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._events = EventStream()
        self.done = False
        """The server has said that nothing follows; not all servers then end the connection."""

    @property
    def comments(self) -> int:
        """Comments so far, which servers send as signs of life."""
        return self._events.comments

    def feed(self, part: bytes) -> Iterator[Piece]:
        """What these bytes complete."""
        try:
            payloads = self._events.feed(part)
        except TooLongError:
            raise ServerError(
                "The server sent an event of more than 16 MiB, which is not part of a reply. Check the "
                "address.",
                "strange",
            ) from None
        yield from self._read(payloads)

    def finish(self) -> Iterator[Piece]:
        """What is left when the bytes have ended. What cannot be read is an error only in a reply that has
        not ended."""
        failure, ended = None, False
        try:
            yield from self._read(self._events.finish())
        except ServerError as error:
            failure = error
        for piece in self._reader.finish():
            ended = isinstance(piece, End) and piece.reason is not None
            yield piece
        if failure is not None and not ended:
            raise failure

    def _read(self, payloads: list[bytes]) -> Iterator[Piece]:
        for payload in payloads:
            if payload.strip() == b"[DONE]":
                self.done = True
            elif isinstance(content := _json(payload), dict):
                yield from self._reader.feed(content)


def _json(payload: bytes) -> Any:
    """An event's JSON. Raises ServerError."""
    try:
        return read_json(payload)
    except ValueError:
        raise ServerError(
            "The server sent something in its reply that is not JSON, or the connection was cut within an "
            "event. Look at its log, then retry.",
            "strange",
        ) from None
