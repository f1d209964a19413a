"""A reply kept while it is written: the prompt before the engine is asked, the reply at least every second.

The states of a recorder:

    start -> writing: what came is written when INTERVAL has passed
    writing -> ended: the last event is written at once
    a write that fails (full disk, locked database) is tried again with the next one; nothing is dropped
    meanwhile, and ``trouble`` says so

All of it happens in the caller's thread and may wait for the disk: who must not wait has a Writer
(ds4chat.store.writer) do it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ds4chat.engine.events import Ended, EngineDied, Prefill, Revised, Step, Tuning
from ds4chat.store.conversations import Conversations, model_id, settle_text
from ds4chat.store.database import Database
from ds4chat.store.entities import ModelIdentity, State
from ds4chat.store.errors import StoreError
from ds4chat.store.owner import this_process
from ds4chat.store.packing import pack
from ds4chat.text import encodable

INTERVAL = 0.7
"""Seconds between two writes of a running reply: with the time of a write, less than one."""

HEARTBEAT = 60.0
"""Seconds after which a reply is touched although nothing came, so that it does not look abandoned."""

_STATES: dict[str, State] = {"cancelled": "stopped", "error": "failed"}


@dataclass(frozen=True, slots=True)
class Request:
    """What a reply is an answer to."""

    prompt: str | None
    """The user's new message; None: the reply answers ``parent``, as when it is asked for again."""
    conversation: int | None = None
    """None: that of the parent, or a new one."""
    parent: int | ReplyRecorder | None = None
    """The message that the prompt follows (without a prompt: that is answered). A recorder stands for its
    reply, and may still be waiting for its own first write."""
    system: str | None = None
    """The system prompt that it is asked under; empty: none; None: that of the path so far. Where the path
    has another one, a system message says so from here on."""
    model: ModelIdentity | None = None
    support: ModelIdentity | None = None
    drafter: str = ""
    load_plain_ms: float = 0.0
    check_plain_ms: float = 0.0


class ReplyRecorder:
    """Keeps one reply. Nothing raises; ``trouble`` says what is wrong."""

    def __init__(
        self,
        database: Database,
        request: Request,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Write the prompt and an empty reply, on disk when this returns; a failure is in ``trouble``."""
        self.request = request
        self.conversation: int | None = None
        """The conversation's number; None until it could be written."""
        self.prompt: int | None = None
        """The user's message; None until it could be written, or without one."""
        self.message: int | None = None
        """The reply; None until it could be written."""
        self.error: StoreError | None = None
        """Why the last write failed; None when it did not."""
        self._database = database
        self._conversations = Conversations(database, wall)
        self._clock = clock
        self._steps: list[Step] = []
        self._prefill: Prefill | None = None
        self._end: Ended | EngineDied | None = None
        self._done = False
        self._revised = False
        """What is to be written takes the place of the steps in the database."""
        self._batches = 0
        self._written = self._clock()
        self._tunings: dict[Tuning, int] = {}
        self.flush(durable=True)

    def take(self, *events: Step | Prefill | Revised | Ended | EngineDied) -> None:
        """Keep what the events brought. An end is on disk when this returns; anything else once INTERVAL has
        passed since the last write, and nothing at all, as a sign of life, after HEARTBEAT."""
        for event in events:
            if isinstance(event, Step):
                self._steps.append(event)
            elif isinstance(event, Revised):
                self._steps, self._revised = list(event.steps), True
            elif isinstance(event, Prefill):
                self._prefill = event
            else:
                self._end = event
        waited = self._clock() - self._written
        if self._end is not None:
            self.flush(durable=True)
        elif waited >= (INTERVAL if self._steps or self._prefill or self.error else HEARTBEAT):
            self.flush()

    @property
    def trouble(self) -> str:
        """Why the last write failed, as a sentence; empty when it did not."""
        return str(self.error or "")

    @property
    def finished(self) -> bool:
        """The end is in the database, and all that came before it."""
        return self._done

    @property
    def saved(self) -> bool:
        """Everything taken so far is in the database."""
        return self.message is not None and not self._steps and (self._end is None or self._done)

    def flush(self, *, durable: bool = False) -> bool:
        """Write what is not written yet; whether that worked. What could not be written is kept."""
        parent = self.request.parent
        if isinstance(parent, ReplyRecorder) and parent.message is None:
            parent.flush(durable=durable)
        if self._done:
            return True
        steps, prefill, end = list(self._steps), self._prefill, self._end
        batches, tunings = self._batches, dict(self._tunings)
        opened = (self.conversation, self.prompt, self.message)
        try:
            with self._database.write(durable=durable) as connection:
                if self.message is None:
                    self._open(connection)
                self._write(connection, steps, prefill, end)
        except StoreError as error:
            self.error = error
            self._batches, self._tunings = batches, tunings
            self.conversation, self.prompt, self.message = opened
            self._written = self._clock()
            return False
        self.error = None
        del self._steps[: len(steps)]
        self._prefill = None
        self._revised = False
        self._done = end is not None
        self._written = self._clock()
        return True

    # -- one write

    def _open(self, connection: sqlite3.Connection) -> None:
        """The conversation, where it is new, the prompt, and the reply, still empty."""
        request, made = self.request, self._conversations
        parent, conversation = request.parent, request.conversation
        if isinstance(parent, ReplyRecorder):
            if parent.message is None:
                raise StoreError(parent.trouble or "The message before this one could not be kept.")
            conversation = parent.conversation
            parent = parent.message
        if conversation is None:
            conversation = made.create() if parent is None else made.message(parent).conversation
        if request.system is not None:
            parent = made.under_system(conversation, parent, request.system)
        if request.prompt is not None:
            self.prompt = parent = made.add(conversation, parent, "user", request.prompt)
        self.conversation = conversation
        self.message = made.add(conversation, parent, "assistant", "")
        connection.execute(
            "UPDATE messages SET state = 'streaming', owner = ?, model = ?, support = ?, drafter = ?, "
            "load_plain_ms = ?, check_plain_ms = ? WHERE id = ?",
            (
                this_process(),
                model_id(connection, request.model),
                model_id(connection, request.support),
                encodable(request.drafter),
                request.load_plain_ms,
                request.check_plain_ms,
                self.message,
            ),
        )

    def _write(
        self,
        connection: sqlite3.Connection,
        steps: list[Step],
        prefill: Prefill | None,
        end: Ended | EngineDied | None,
    ) -> None:
        now = self._conversations.now_ms()
        if self._revised:
            forget_steps(connection, self._message)
            self._batches = 0
        if steps:
            insert_steps(connection, self._message, self._batches, steps, self._tunings)
            self._batches += 1
        if prefill is not None:
            connection.execute(
                "UPDATE messages SET prompt_tokens = ?, reused_tokens = ?, prefill_ms = ?, "
                "context_used = max(context_used, ?) WHERE id = ?",
                (prefill.total, prefill.reused, prefill.ms, prefill.done, self._message),
            )
        touched = connection.execute(
            "UPDATE messages SET updated_ms = ? WHERE id = ?", (now, self._message)
        ).rowcount
        if not touched:
            raise StoreError("This conversation was deleted while the reply was written.", "gone")
        if end is not None:
            _finish(connection, self._message, end)
            connection.execute(
                "UPDATE conversations SET updated_ms = ? WHERE id = ?", (now, self.conversation)
            )

    @property
    def _message(self) -> int:
        assert self.message is not None, "the reply is opened before anything of it is written"
        return self.message


def forget_steps(connection: sqlite3.Connection, message: int) -> None:
    """Take a reply's steps and its text out again, and their counts."""
    for name in ("batches", "pieces"):
        connection.execute(f"DELETE FROM {name} WHERE message = ?", (message,))
    connection.execute(
        "UPDATE messages SET tokens = 0, steps = 0, drafted = 0, judged = 0, accepted = 0 WHERE id = ?",
        (message,),
    )


def insert_steps(
    connection: sqlite3.Connection,
    message: int,
    number: int,
    steps: list[Step],
    tunings: dict[Tuning, int],
    *,
    apart: bool = True,
) -> None:
    """Append steps to a reply as its batch ``number``, and count them. ``tunings`` holds the numbers of
    tunings that are known already, and gains those of others. ``apart``: the thinking is kept beside the
    text, not in it."""

    def tuning_id(tuning: Tuning) -> int:
        if tuning not in tunings:
            body = msgspec.json.encode(tuning).decode()
            connection.execute("INSERT OR IGNORE INTO tunings (body) VALUES (?)", (body,))
            (tunings[tuning],) = connection.execute(
                "SELECT id FROM tunings WHERE body = ?", (body,)
            ).fetchone()
        return tunings[tuning]

    batch = pack(steps, tuning_id)
    connection.execute(
        "INSERT INTO batches (message, number, tokens, steps, judged, full, strings) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (message, number, batch.tokens, batch.steps, batch.judged, batch.full, batch.strings),
    )
    sides: tuple[list[str], list[str]] = ([], [])
    for step in steps:
        for token in step.tokens:
            sides[token.thinking and apart].append(token.text)
    text, thinking = (encodable("".join(side)) for side in sides)
    connection.execute(
        "INSERT INTO pieces (message, number, text, thinking) VALUES (?, ?, ?, ?)",
        (message, number, text, thinking),
    )
    connection.execute(
        "UPDATE messages SET tokens = tokens + ?, steps = steps + ?, drafted = drafted + ?, "
        "judged = judged + ?, accepted = accepted + ?, context_used = ? WHERE id = ?",
        (
            sum(len(step.tokens) for step in steps),
            len(steps),
            sum(step.drafted for step in steps),
            sum(len(step.judged) for step in steps),
            sum(row.accepted for step in steps for row in step.judged),
            steps[-1].context_used,
            message,
        ),
    )


def _finish(connection: sqlite3.Connection, message: int, end: Ended | EngineDied) -> None:
    if isinstance(end, EngineDied):
        settle_text(connection, message)
        connection.execute(
            "UPDATE messages SET state = 'crashed', owner = NULL, detail = ? WHERE id = ?",
            (encodable(end.message), message),
        )
        return
    settle_text(connection, message, end.tail, end.thinking_tail)
    if end.counters is not None:
        connection.execute(
            "UPDATE messages SET drafted = max(drafted, ?), accepted = max(accepted, ?) WHERE id = ?",
            (end.counters.drafted, end.counters.accepted, message),
        )
    connection.execute(
        "UPDATE messages SET state = ?, owner = NULL, finish_reason = ?, detail = ?, tail = ?, "
        "prompt_tokens = ?, reused_tokens = ?, prefill_ms = ?, decode_ms = ?, first_token_ms = ?, "
        "context_used = ?, seed = ? WHERE id = ?",
        (
            _STATES.get(end.finish_reason, "complete"),
            end.finish_reason,
            encodable(end.detail),
            encodable(end.tail),
            end.prompt_tokens,
            end.reused_tokens,
            end.prefill_ms,
            end.decode_ms,
            end.first_token_ms,
            end.context_used,
            end.seed,
            message,
        ),
    )
