"""A reply's steps in the database: a row for each write, which holds them as compressed MessagePack.

The steps are MessagePack maps, so that a field which Step gains with a default needs no change of what is
stored. What SQL is asked for, such as how many drafts were accepted, is counted in columns of the message.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TypeVar

import msgspec

from ds4chat.engine.events import Step
from ds4chat.engine.wire import MAX_FRAME
from ds4chat.store.errors import StoreError
from ds4chat.store.rows import insert, typed, update
from ds4chat.text import shortened

T = TypeVar("T")

ROW_BYTES = 8 << 20
"""The MessagePack of several steps in one row; more is written as two rows."""

MOST_ROW_BYTES = 2 * MAX_FRAME
MOST_REPLY_BYTES = 1 << 30
"""The MessagePack of one row, and of a whole reply: a damaged or made-up file must not unpack to more."""

_decode = msgspec.msgpack.Decoder(list[Step]).decode


class _TextOfToken(msgspec.Struct):
    text: str
    thinking: bool = False


class _TextOfStep(msgspec.Struct):
    """A Step reduced to its text, which decodes in a sixth of the time."""

    tokens: list[_TextOfToken]


_decode_text = msgspec.msgpack.Decoder(list[_TextOfStep]).decode


def insert_steps(connection: sqlite3.Connection, message: int, steps: Sequence[Step]) -> None:
    """Append steps to a reply, and count them."""
    if not steps:
        return
    for body in packed(steps):
        insert(connection, "steps", message=message, body=body)
    connection.execute(
        "UPDATE messages SET tokens = tokens + ?, steps = steps + ?, drafted = drafted + ?, "
        "judged = judged + ?, accepted = accepted + ?, context_used = ? WHERE id = ?",
        (
            sum(len(step.tokens) for step in steps),
            len(steps),
            sum(step.drafted for step in steps),
            sum(len(step.judged) for step in steps),
            sum(step.accepted for step in steps),
            steps[-1].context_used,
            message,
        ),
    )


def forget_steps(connection: sqlite3.Connection, message: int) -> None:
    """Remove a reply's steps, and reset their counts."""
    connection.execute("DELETE FROM steps WHERE message = ?", (message,))
    update(connection, "messages", message, tokens=0, steps=0, drafted=0, judged=0, accepted=0)


def packed(steps: Sequence[Step]) -> Iterator[bytes]:
    """The bodies of the rows that hold these steps, in order."""
    body = msgspec.msgpack.encode(steps)
    if len(body) > ROW_BYTES and len(steps) > 1:
        half = len(steps) // 2
        yield from packed(steps[:half])
        yield from packed(steps[half:])
    else:
        yield zlib.compress(body)


def read_steps(connection: sqlite3.Connection, message: int, reply: int) -> list[Step]:
    """A reply's steps as the engine gave them, but numbered ``reply``. Raises StoreError."""
    found = list(chain.from_iterable(_rows(connection, message, _decode)))
    for step in found:
        # Frozen for those who share a step; nobody else has these yet, and a copy of each takes long.
        object.__setattr__(step, "reply", reply)
    return found


def read_texts(connection: sqlite3.Connection, message: int) -> tuple[str, str]:
    """The text and the thinking of a reply's steps, as far as they can be read."""
    found: list[_TextOfStep] = []
    with suppress(StoreError):
        for steps in _rows(connection, message, _decode_text):
            found += steps
    return texts_of(found)


def texts_of(steps: Iterable[Step | _TextOfStep]) -> tuple[str, str]:
    """The text and the thinking that steps emitted."""
    sides: tuple[list[str], list[str]] = ([], [])
    for step in steps:
        for token in step.tokens:
            sides[token.thinking].append(token.text)
    return "".join(sides[False]), "".join(sides[True])


def _rows(
    connection: sqlite3.Connection, message: int, decode: Callable[[bytes], list[T]]
) -> Iterator[list[T]]:
    """The steps of each of a reply's rows, in order. Raises StoreError."""
    left = MOST_REPLY_BYTES
    for row in connection.execute("SELECT body FROM steps WHERE message = ? ORDER BY id", (message,)):
        (packed_body,) = typed(row, tuple[bytes])
        unpacker = zlib.decompressobj()
        most = min(left, MOST_ROW_BYTES)
        try:
            body = unpacker.decompress(packed_body, most)
            if not unpacker.eof or unpacker.unused_data:
                raise _damaged("too long" if len(body) == most else "incomplete")
            steps = decode(body)
        except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(error) from error
        left -= len(body)
        yield steps


def _damaged(why: object) -> StoreError:
    return StoreError(
        f"The tokens of a reply are damaged in the database ({shortened(why, 200)}). Its text can still be "
        "read.",
        "corrupt",
    )
