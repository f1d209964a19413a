"""Storing a reply while it runs: the prompt before the engine gets it, the reply at least every second.

Any thread can append events without waiting. Writing may wait for the disk, and is done by one thread at a
time: in a chat by that of a Writer (ds4chat.store.writer). A write that fails (full disk, locked database)
changes nothing, and the next one repeats it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ds4chat.engine.events import Ended, EngineDied, Prefill, Revised, Step
from ds4chat.store.conversations import Conversations, model_id, settle_text
from ds4chat.store.database import Database
from ds4chat.store.entities import END_FIELDS, ModelIdentity, State
from ds4chat.store.errors import StoreError
from ds4chat.store.owner import this_process
from ds4chat.store.rows import update
from ds4chat.store.steps import forget_steps, insert_steps

INTERVAL = 0.7
"""Seconds between two writes of a running reply by a Writer: with the time of a write, less than one."""

HEARTBEAT = 60.0
"""Seconds until a reply is touched even without events, so that it does not look abandoned."""

_STATES: dict[str, State] = {"cancelled": "stopped", "error": "failed"}


@dataclass(frozen=True, slots=True)
class Request:
    """What a reply answers."""

    prompt: str | None
    """The user's new message; None: the reply answers ``parent``, as in a retry."""
    conversation: int | None = None
    """None: the parent's, or a new one."""
    parent: int | None = None
    """The message that the prompt follows, or without a prompt the one to answer."""
    system: str | None = None
    """The system prompt in force; empty: none; None: the path's. If the path has another one, a system
    message changes it from here on."""
    model: ModelIdentity | None = None
    support: ModelIdentity | None = None
    drafter: str = ""
    load_plain_ms: float = 0.0
    check_plain_ms: float = 0.0


Recorded = Step | Prefill | Revised | Ended | EngineDied


class ReplyRecorder:
    """Records one reply."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.conversation: int | None = None
        """The conversation's number; like the next two, None until ``open`` wrote it."""
        self.prompt: int | None = None
        """The user's message; also None without one."""
        self.message: int | None = None
        """The reply."""
        self.over = False
        """The reply's end is written, or nothing more can be written."""
        self._database = database
        self._conversations = Conversations(database)
        self._clock = clock
        self._events: list[Recorded] = []
        """Events not yet written."""
        self._written = clock()

    def append(self, *events: Recorded) -> None:
        """Queue events for the next ``flush``. Any thread may call this."""
        self._events.extend(events)

    @property
    def saved(self) -> bool:
        """All events so far are in the database."""
        return self.message is not None and not self._events

    def open(self, request: Request) -> None:
        """Write the prompt and an empty reply, on disk when this returns. Raises StoreError, and then nothing
        is written."""
        with self._transaction(durable=True) as connection:
            conversation, prompt, message = self._insert(connection, request)
        self.conversation, self.prompt, self.message = conversation, prompt, message

    def flush(self) -> None:
        """Write the events since the last call; without any, touch the reply after HEARTBEAT. An end is on
        disk when this returns. Raises StoreError, and then all events are kept for the next call."""
        # Each is atomic: other threads append at the same time.
        events = self._events[:]
        if self.message is None or self.over:
            return
        if not events and self._clock() - self._written < HEARTBEAT:
            return
        end = next((event for event in events if isinstance(event, (Ended, EngineDied))), None)
        with self._transaction(durable=end is not None) as connection:
            self._write(connection, self.message, events, end)
        del self._events[: len(events)]
        self.over = end is not None

    # -- one write

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        try:
            with self._database.write(durable=durable) as connection:
                yield connection
        except StoreError as error:
            self.over = error.kind == "gone"
            raise
        self._written = self._clock()

    def _insert(self, connection: sqlite3.Connection, request: Request) -> tuple[int, int | None, int]:
        """Write the conversation if it is new, the prompt, and the empty reply."""
        made, parent, conversation, prompt = self._conversations, request.parent, request.conversation, None
        if conversation is None:
            conversation = made.create() if parent is None else made.message(parent).conversation
        if request.system is not None:
            parent = made.under_system(conversation, parent, request.system)
        if request.prompt is not None:
            prompt = parent = made.add(conversation, parent, "user", request.prompt)
        message = made.add(conversation, parent, "assistant", "")
        update(
            connection,
            "messages",
            message,
            state="streaming",
            owner=this_process(),
            model=model_id(connection, request.model),
            support=model_id(connection, request.support),
            drafter=request.drafter,
            load_plain_ms=request.load_plain_ms,
            check_plain_ms=request.check_plain_ms,
        )
        return conversation, prompt, message

    def _write(
        self,
        connection: sqlite3.Connection,
        message: int,
        events: Sequence[Recorded],
        end: Ended | EngineDied | None,
    ) -> None:
        now = self._database.now_ms()
        if not update(connection, "messages", message, updated_ms=now):
            raise StoreError("This conversation was deleted while the reply was written.", "gone")
        steps: list[Step] = []
        for event in events:
            if isinstance(event, Step):
                steps.append(event)
            elif isinstance(event, Revised):
                forget_steps(connection, message)
                steps = list(event.steps)
        insert_steps(connection, message, steps)
        for event in events:
            if isinstance(event, Prefill):
                connection.execute(
                    "UPDATE messages SET prompt_tokens = ?, reused_tokens = ?, prefill_ms = ?, "
                    "context_used = max(context_used, ?) WHERE id = ?",
                    (event.total, event.reused, event.ms, event.done, message),
                )
        if end is not None:
            _finish(connection, message, end)
            update(connection, "conversations", self.conversation, updated_ms=now)


def _finish(connection: sqlite3.Connection, message: int, end: Ended | EngineDied) -> None:
    if isinstance(end, EngineDied):
        settle_text(connection, message)
        update(connection, "messages", message, state="crashed", owner=None, detail=end.message)
        return
    settle_text(connection, message, end.tail, end.thinking_tail)
    if end.counters is not None:
        connection.execute(
            "UPDATE messages SET drafted = max(drafted, ?), accepted = max(accepted, ?) WHERE id = ?",
            (end.counters.drafted, end.counters.accepted, message),
        )
    update(
        connection,
        "messages",
        message,
        state=_STATES.get(end.finish_reason, "complete"),
        owner=None,
        finish_reason=end.finish_reason,
        **{name: getattr(end, name) for name in END_FIELDS},
    )
