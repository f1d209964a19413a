"""Commands and events as frames between the engine process and its client.

A frame is four bytes of big-endian length, then a JSON object ``{"type": <class name>, "body": {...}}``. JSON
through msgspec rather than pickle: a frame is validated field by field, so a broken or hostile peer yields a
ProtocolError and never runs code here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from io import BufferedIOBase
from typing import get_args

import msgspec

from ds4chat.engine.events import Command, Event

MAX_FRAME = 64 << 20
"""Bytes. A longer frame is refused: a length field read from a broken stream must not be trusted."""
LENGTH_BYTES = 4
READ_BYTES = 1 << 14
"""Most bytes that one read takes from a pipe."""


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
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def read_frames(stream: BufferedIOBase, gather_s: float = 0.0) -> Iterator[bytes]:
    """The payloads of the frames in a pipe, until its end, in the middle of a frame too. After each read that
    emptied the pipe, frames gather there for ``gather_s`` seconds before the next one. Raises ProtocolError
    for a length that no frame has."""
    received = bytearray()
    while data := stream.read1(READ_BYTES):
        received += data
        while len(received) >= LENGTH_BYTES:
            length = int.from_bytes(received[:LENGTH_BYTES], "big")
            if length > MAX_FRAME:
                raise ProtocolError(f"a frame of {length} bytes")
            end = LENGTH_BYTES + length
            if len(received) < end:
                break
            yield bytes(received[LENGTH_BYTES:end])
            del received[:end]
        if gather_s and len(data) < READ_BYTES:
            time.sleep(gather_s)


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
