"""Readers of data stored by earlier versions, which the schema's steps need besides SQL."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from ds4chat.engine.events import FullRow, Judged, Phases, Step, Token, Tuning
from ds4chat.store.errors import StoreError
from ds4chat.store.rows import typed
from ds4chat.store.steps import packed

_ORIGINS = ("accepted", "corrected", "bonus", "plain")
_OUTCOMES = ("full", "partial", "miss", "gated", "plain", "fallback")
_REASONS = ("", "match", "ratio")
_THINKING = 4
_BASELINE = 64

# Little-endian records without gaps. Texts and drafters are indices into the batch's strings.
_TOKEN = struct.Struct("<iIB")  # id, characters of the message's text, origin + _THINKING
_STEP = struct.Struct("<4IB4I6d")
"""index, tokens, drafted, judged, outcome + _BASELINE, depth, tuning, drafter, context_used, milliseconds"""
_JUDGED = struct.Struct("<IiIiIBB4d")
"""position, draft and its text, target and its text, accepted, reason, ratio, gap, draft_gap, draft_prob"""
_FULL = struct.Struct("<I3dB5i5I5d")
"""index into judged, p_draft, p_target, entropy, how many of the likeliest follow: ids, texts, chances"""

_UNREADABLE = (
    *(StoreError, msgspec.MsgspecError, struct.error),
    *(ValueError, IndexError, TypeError, OverflowError, RecursionError),
)


def steps_from_columns(connection: sqlite3.Connection) -> None:
    """Fill the table ``steps`` from ``batches`` and ``tunings``. A reply whose batches are damaged gets a row
    that raises an error when it is read."""
    tunings: dict[int, Tuning] = {}
    for (message,) in connection.execute("SELECT DISTINCT message FROM batches ORDER BY message").fetchall():
        try:
            bodies = list(packed(_steps_of(connection, message, tunings)))
        except _UNREADABLE:
            bodies = [b""]
        for body in bodies:
            connection.execute("INSERT INTO steps (message, body) VALUES (?, ?)", (message, body))


def _steps_of(connection: sqlite3.Connection, message: int, tunings: dict[int, Tuning]) -> list[Step]:
    (row,) = connection.execute("SELECT text, thinking FROM messages WHERE id = ?", (message,))
    text, thinking = typed(row, tuple[str, str])
    # If a message has no separate thinking, its text is that of all tokens.
    sides, at = (text, thinking), [0, 0]
    found: list[Step] = []
    for batch in connection.execute(
        "SELECT tokens, steps, judged, full, strings FROM batches WHERE message = ? ORDER BY number",
        (message,),
    ):
        *columns, names = typed(batch, tuple[bytes, bytes, bytes, bytes, str])
        strings: list[str] = json.loads(names)
        tokens: list[Token] = []
        for id_, chars, kind in _TOKEN.iter_unpack(columns[0]):
            side = int(bool(kind & _THINKING and thinking))
            begin, at[side] = at[side], at[side] + chars
            origin: Any = _ORIGINS[kind & 3]
            tokens.append(Token(id_, sides[side][begin : at[side]], origin, bool(kind & _THINKING)))
        left, judged = iter(tokens), _judged_of(columns[2], columns[3], strings)
        for index, said, drafted, asked, outcome, depth, tuning, drafter, used, *ms in _STEP.iter_unpack(
            columns[1]
        ):
            if tuning not in tunings:
                tunings[tuning] = _tuning(connection, tuning)
            found.append(
                Step(
                    reply=0,
                    index=index,
                    tokens=tuple(islice(left, said)),
                    drafted=drafted,
                    judged=tuple(islice(judged, asked)),
                    outcome=_OUTCOMES[outcome % _BASELINE],  # type: ignore[arg-type]
                    ms=Phases(*ms),
                    tuning=tunings[tuning],
                    depth=depth,
                    drafter=strings[drafter],
                    context_used=used,
                    baseline=outcome >= _BASELINE,
                )
            )
    return found


def _judged_of(judged: bytes, full: bytes, strings: list[str]) -> Iterator[Judged]:
    whole: dict[int, FullRow] = {}
    for row, p_draft, p_target, entropy, count, *top in _FULL.iter_unpack(full):
        likeliest = islice(zip(top[:5], top[5:10], top[10:]), count)
        whole[row] = FullRow(p_draft, p_target, entropy, tuple((i, strings[t], p) for i, t, p in likeliest))
    for row, fields in enumerate(_JUDGED.iter_unpack(judged)):
        position, draft, d_text, target, t_text, accepted, by, ratio, gap, d_gap, d_prob = fields
        yield Judged(
            position=position,
            draft=draft,
            draft_text=strings[d_text],
            target=target,
            target_text=strings[t_text],
            accepted=bool(accepted),
            by=_REASONS[by],  # type: ignore[arg-type]
            ratio=ratio,
            gap=gap,
            draft_gap=None if math.isnan(d_gap) else d_gap,
            draft_prob=None if math.isnan(d_prob) else d_prob,
            full=whole.get(row),
        )


def _tuning(connection: sqlite3.Connection, number: int) -> Tuning:
    row = connection.execute("SELECT body FROM tunings WHERE id = ?", (number,)).fetchone()
    return msgspec.json.decode(row[0], type=Tuning) if row else Tuning()
