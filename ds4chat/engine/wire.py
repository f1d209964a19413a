"""Commands and events as frames between the engine process and its client.

A frame is four bytes of big-endian length, then a JSON object ``{"type": <class name>, "body": {...}}``. JSON
through msgspec rather than pickle: a frame is validated field by field, so a broken or hostile peer yields a
ProtocolError and never runs code here.
"""

from __future__ import annotations

from functools import cache
from typing import IO, get_args

import msgspec

from ds4chat.engine.events import Command, Event

MAX_FRAME = 64 << 20
"""Bytes. A longer frame is refused: a length field read from a broken stream must not be trusted."""


class ProtocolError(Exception):
    """A frame is not a message of this protocol; the text says what is wrong with it."""


class _Envelope(msgspec.Struct):
    type: str
    body: msgspec.Raw


_COMMANDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Command)}
_EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_encoder = msgspec.json.Encoder()
_decoder = cache(msgspec.json.Decoder)


def encode(message: Command | Event) -> bytes:
    """The frame of one message, its four length bytes included."""
    body = _encoder.encode(message)
    payload = b'{"type":"%s","body":%s}' % (type(message).__name__.encode(), body)
    return len(payload).to_bytes(4, "big") + payload


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame's payload; None at the end of the stream, in the middle of a frame too. Raises
    ProtocolError for a length that no frame has."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME:
        raise ProtocolError(f"a frame of {length} bytes")
    payload = stream.read(length)
    return payload if len(payload) == length else None


def _decode(payload: bytes, known: dict[str, type]) -> object:
    try:
        envelope = _decoder(_Envelope).decode(payload)
        if envelope.type not in known:
            raise ProtocolError(f"a frame of the unknown type {envelope.type[:40]!r}")
        return _decoder(known[envelope.type]).decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a frame that does not decode: {error}") from None


def decode_event(payload: bytes) -> Event:
    """The event in one frame's payload (without the length bytes). Raises ProtocolError."""
    return _decode(payload, _EVENTS)  # type: ignore[return-value]


def decode_command(payload: bytes) -> Command:
    """The command in one frame's payload (without the length bytes). Raises ProtocolError."""
    return _decode(payload, _COMMANDS)  # type: ignore[return-value]
