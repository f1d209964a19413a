"""What a stored reply did, token by token: to draw it again as it was, and to analyse it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.events import Step, Token, Tuning
from ds4chat.store.conversations import texts_of
from ds4chat.store.database import Database
from ds4chat.store.errors import StoreError
from ds4chat.store.packing import (
    JUDGED,
    REASONS,
    STEP,
    THINKING,
    TOKEN,
    Batch,
    Columns,
    baseline_passes,
    outcome_codes,
    steps_of,
    tokens_of,
    unpack,
)

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """Judged drafts as columns, in the order in which they were judged.

    The first block has one entry a judged draft, the second, whose names begin with ``step_``, one entry a
    step; ``step`` leads from the first to the second.
    """

    step: Ints
    """Index into the ``step_`` columns."""
    position: Ints
    """1 is the step's first draft."""
    draft: Ints
    target: Ints
    accepted: Bools
    ratio: Floats
    gap: Floats
    draft_gap: Floats
    """NaN where the drafter has no logits."""
    draft_prob: Floats
    """NaN where the drafter has no probabilities."""
    draft_text: tuple[str, ...]
    target_text: tuple[str, ...]
    by: tuple[str, ...]
    """Why it was accepted, as in Judged."""
    message: Ints
    """The reply's message."""
    token: Ints
    """Index, in the reply, of the token that the row decided; -1 where it decided none."""
    thinking: Bools
    """That token belongs to the thinking."""
    p_draft: Floats
    """NaN, as the next two, where the whole distribution was not asked for."""
    p_target: Floats
    entropy: Floats

    step_reply: Ints
    """The reply's message."""
    step_index: Ints
    """The step's number within its reply."""
    step_first: Ints
    """Index of the step's first row; step_judged rows follow from there."""
    step_judged: Ints
    step_accepted: Ints
    step_drafted: Ints
    step_emitted: Ints
    step_depth: Ints
    step_outcome: Ints
    """Index into engine.stats.OUTCOMES."""
    step_margin: Floats
    """In force: 1 unless the mode was approximate."""
    step_gate: Floats
    step_ms: Floats
    """(steps, 6): milliseconds, in the order of engine.stats.PHASES."""
    step_baseline: Bools
    """The step is a plain pass that the baseline rests on."""

    def __len__(self) -> int:
        return len(self.step)


class Records:
    """Tokens, steps and judged drafts of stored replies. Every method may raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tokens(self, message: int) -> list[Token]:
        """A reply's tokens with their origins; the texts of those outside the thinking and the message's tail
        joined are its text."""
        with self._database.read() as connection:
            columns, texts = _columns(connection, message), _texts_of(connection, message)
        return tokens_of(columns, *texts)

    def steps(self, message: int, reply: int = 0) -> list[Step]:
        """A reply's steps as the engine gave them, tokens and judged drafts included, numbered ``reply``."""
        with self._database.read() as connection:
            columns, texts = _columns(connection, message), _texts_of(connection, message)
            tunings = _tunings(connection, columns.steps["tuning"])
        return steps_of(columns, *texts, tunings, reply)

    def judged_rows(
        self, *, conversation: int | None = None, message: int | Sequence[int] | None = None
    ) -> JudgedRows:
        """Judged drafts of every reply of a conversation, all branches, or of the messages named."""
        with self._database.read() as connection:
            if message is not None:
                messages = [message] if isinstance(message, int) else list(message)
            else:
                found = connection.execute(
                    "SELECT id FROM messages WHERE conversation = ? AND steps > 0 ORDER BY id",
                    (conversation,),
                )
                messages = [row[0] for row in found]
            replies = [(number, _columns(connection, number)) for number in messages]
            tunings = _tunings(connection, *(columns.steps["tuning"] for _, columns in replies))
        return _judged_rows(replies, tunings)


def _texts_of(connection: sqlite3.Connection, message: int) -> tuple[str, str]:
    if connection.execute("SELECT 1 FROM messages WHERE id = ?", (message,)).fetchone() is None:
        raise StoreError(f"There is no message {message}.", "gone")
    return texts_of(connection, message)


def _columns(connection: sqlite3.Connection, message: int) -> Columns:
    rows = connection.execute(
        "SELECT tokens, steps, judged, full, strings FROM batches WHERE message = ? ORDER BY number",
        (message,),
    )
    return unpack(Batch(*row) for row in rows)


def _tunings(connection: sqlite3.Connection, *columns: NDArray[np.uint32]) -> dict[int, Tuning]:
    numbers = set().union(*(np.unique(column).tolist() for column in columns))
    found: dict[int, Tuning] = {}
    for number in numbers:
        row = connection.execute("SELECT body FROM tunings WHERE id = ?", (number,)).fetchone()
        try:
            # A tuning of a later ds4chat may hold fields that this one does not know.
            found[number] = msgspec.json.decode(row[0], type=Tuning) if row else Tuning()
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"The settings of a reply are damaged in the database ({error}). Its text can still be read.",
                "corrupt",
            ) from error
    return found


def _judged_rows(replies: Sequence[tuple[int, Columns]], tunings: dict[int, Tuning]) -> JudgedRows:
    codes: dict[str, int] = {}
    draft_text: list[Ints] = []
    target_text: list[Ints] = []
    full = {name: np.full(_count(replies), np.nan) for name in ("p_draft", "p_target", "entropy")}
    first_row = 0
    for _, columns in replies:
        own = np.array([codes.setdefault(text, len(codes)) for text in columns.strings], np.int64)
        if len(columns.judged):
            draft_text.append(own[columns.judged["draft_text"]])
            target_text.append(own[columns.judged["target_text"]])
        for name, column in full.items():
            column[columns.full["row"] + first_row] = columns.full[name]
        first_row += len(columns.judged)
    steps = _stack((columns.steps for _, columns in replies), STEP)
    judged = _stack((columns.judged for _, columns in replies), JUDGED)
    counts = steps["judged"].astype(np.int64)
    emitted = steps["tokens"].astype(np.int64)
    first = np.cumsum(counts) - counts
    step = np.repeat(np.arange(len(steps), dtype=np.int64), counts)
    place = np.arange(len(judged), dtype=np.int64) - first[step]
    # Token i of a step was decided by its row i; a reply's tokens are numbered from 0.
    token = np.where(place < emitted[step], _first_tokens(replies)[step] + place, -1)
    kinds = _stack((columns.tokens for _, columns in replies), TOKEN)["kind"]
    # Of all replies, one after the other, where a token of each row's reply begins.
    before = np.cumsum(emitted) - emitted
    thinks = np.zeros(len(judged), np.bool_)
    decided = token >= 0
    thinks[decided] = kinds[(before[step] + place)[decided]] & THINKING != 0
    message = np.repeat(
        np.array([number for number, _ in replies], np.int64), [len(columns.steps) for _, columns in replies]
    )
    strings = np.array(list(codes), object)
    margins = {n: t.margin if t.mode == "approximate" else 1.0 for n, t in tunings.items()}
    return JudgedRows(
        step=step,
        position=judged["position"].astype(np.int64),
        draft=judged["draft"].astype(np.int64),
        target=judged["target"].astype(np.int64),
        accepted=judged["accepted"] != 0,
        ratio=judged["ratio"].astype(np.float64),
        gap=judged["gap"].astype(np.float64),
        draft_gap=judged["draft_gap"].astype(np.float64),
        draft_prob=judged["draft_prob"].astype(np.float64),
        draft_text=_texts(strings, draft_text),
        target_text=_texts(strings, target_text),
        by=tuple(np.array(REASONS, object)[judged["by"]].tolist()),
        message=message[step],
        token=token,
        thinking=thinks,
        **full,
        step_reply=message,
        step_index=steps["index"].astype(np.int64),
        step_first=first,
        step_judged=counts,
        step_accepted=np.bincount(step[judged["accepted"] != 0], minlength=len(steps)).astype(np.int64),
        step_drafted=steps["drafted"].astype(np.int64),
        step_emitted=emitted,
        step_depth=steps["depth"].astype(np.int64),
        step_outcome=outcome_codes(steps).astype(np.int64),
        step_margin=_looked_up(steps["tuning"], margins),
        step_gate=_looked_up(steps["tuning"], {n: t.gate for n, t in tunings.items()}),
        step_ms=steps["ms"].astype(np.float64),
        step_baseline=baseline_passes(steps),
    )


def _count(replies: Iterable[tuple[int, Columns]]) -> int:
    return sum(len(columns.judged) for _, columns in replies)


def _first_tokens(replies: Iterable[tuple[int, Columns]]) -> Ints:
    """For each step, the index of its first token in its reply."""
    parts = [np.zeros(0, np.int64)]
    for _, columns in replies:
        emitted = columns.steps["tokens"].astype(np.int64)
        parts.append(np.cumsum(emitted) - emitted)
    return np.concatenate(parts)


def _stack(parts: Iterable[NDArray[np.void]], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _texts(strings: NDArray[np.object_], codes: list[Ints]) -> tuple[str, ...]:
    return tuple(strings[np.concatenate(codes)].tolist()) if codes else ()


def _looked_up(numbers: NDArray[np.uint32], values: dict[int, float]) -> Floats:
    unique, inverse = np.unique(numbers, return_inverse=True)
    return np.array([values[number] for number in unique.tolist()], np.float64)[inverse]
