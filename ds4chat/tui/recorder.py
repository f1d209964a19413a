"""The chat's conversations in the store: written while they happen, and read to continue them.

A thread writes, and the chat never waits for it longer than PROMPTLY. A store in trouble never stops the
chat: what could not be written stays in memory and is tried again; the user is told once when that begins and
once when it is over.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import TypeVar

from ds4chat.engine.events import Ended, EngineDied, Load, Loaded, ModelInfo, Notice, Prefill, Revised, Step
from ds4chat.store import Message, ModelIdentity, Store, StoreError
from ds4chat.store.database import PATIENCE_MS
from ds4chat.store.recording import INTERVAL, ReplyRecorder, Request
from ds4chat.store.writer import Ticket, Writer
from ds4chat.text import one_line
from ds4chat.tui.conversation import Conversation, Reply, ReplyState, Turn, UserTurn
from ds4chat.tui.export import export_unsaved

PENDING = "What is not written yet stays in memory, and is written then."
RECOVERED = "Conversations are written to disk again; nothing of this one is missing."
STALLED = (
    "The disk with the conversations does not answer, so the last prompt is not stored yet. It is written as "
    "soon as the disk answers; /export FILE writes a copy elsewhere."
)
SILENT = "The database did not answer in time; another program may hold it."

PROMPTLY = 0.03
"""Seconds that the chat waits for a prompt to be on disk before it draws on and looks again: a disk at rest
takes less, and then the engine is asked at once."""
SILENCE = 10.0
"""Seconds after which a write that neither ends nor fails is reported: longer than the wait for a lock."""
LAST_WAIT = PATIENCE_MS / 1000 + 1.0
"""Seconds that leaving waits for pending writes: as long as one attempt takes."""

T = TypeVar("T")


class Recorder:
    """Stores conversations while they happen. Only ``after_history``, ``versions``, ``switch`` and ``export``
    raise, and wait for the disk longer than PROMPTLY; ``news`` reports a failing store."""

    def __init__(self, store: Store) -> None:
        """Read the data of the last session, which may wait for the disk."""
        self.store = store
        self._news: deque[Notice] = deque([Notice("warning", store.trouble)] if store.trouble else [])
        self.prompts = self._read(store.history.prompts) or []
        """Prompts of earlier sessions, oldest first."""
        self.draft = self._read(store.history.draft) or ""
        """The unsent text of the last session."""
        recent = self._read(store.history.recent_models) or []
        self.recent_models = list(dict.fromkeys(model.path for model in recent))
        """Paths of recently loaded targets, the latest first."""
        self._reply: Reply | None = None
        """The newest reply, the only one that can still grow."""
        self._recorder = store.recorder()
        """Stores the reply: appended to here, and written in the writer's thread."""
        self._opening: Ticket | None = None
        """Its first write."""
        self._opened_at = 0.0
        self._loaded: Loaded | None = None
        self._targets: dict[str, ModelInfo] = {}
        """Loaded models, by the names that replies give."""
        self._reported = ""
        """The trouble that the user was told about, while it lasts."""
        self._lost = ""
        """Why the store could not be closed, as a sentence."""
        self._writer = Writer(self._beat, INTERVAL)

    # -- replies

    def started(self, conversation: Conversation, reply: Reply) -> None:
        """A reply is requested: queue writing it, empty, and the prompt before it, if that is new. The engine
        gets the request only once they are ``kept``."""
        turns = conversation.turns
        at = next(i for i in reversed(range(len(turns))) if turns[i] is reply)
        asked = turns[at - 1] if at else None
        user = asked if isinstance(asked, UserTurn) and asked.key is None else None
        before = (turns[at - 2] if at > 1 else None) if user is not None else asked
        system, loaded = conversation.system, self._loaded
        self._reply, self._recorder = reply, self.store.recorder()
        recorder = self._recorder

        def open_() -> None:
            self._restore_deleted(conversation.key)
            # Earlier turns have numbers by now.
            recorder.open(
                Request(
                    prompt=user.text if user is not None else None,
                    conversation=conversation.key,
                    parent=before.key if before is not None else None,
                    system=system,
                    model=ModelIdentity.of(loaded.target) if loaded else None,
                    support=ModelIdentity.of_support(loaded.drafter) if loaded else None,
                    drafter=loaded.drafter.kind if loaded and loaded.drafter else "",
                    load_plain_ms=reply.stats.plain.load_ms,
                )
            )
            conversation.key, reply.key = recorder.conversation, recorder.message
            if user is not None:
                user.key = recorder.prompt

        self._opening = self._writer.put(lambda: self._unless_gone(open_))
        self._opened_at = monotonic()
        if not self._writer.trouble:
            self._opening.wait(PROMPTLY)

    @property
    def kept(self) -> bool:
        """The newest reply's prompt is on disk, or the user was told why it is not."""
        return self._opening is None or self._opening.over or bool(self._reported)

    def number_on_disk(self, conversation: Conversation) -> int:
        """The number of a conversation in a store on disk; 0 for any other."""
        return (conversation.key or 0) if self.store.path is not None else 0

    def add(self, reply: Reply, event: Step | Prefill | Revised) -> None:
        """Have an event of the reply written, within a second."""
        if self._reply is reply:
            self._recorder.append(event)

    def ended(self, reply: Reply, end: Ended | EngineDied) -> None:
        """The reply is over: queue writing the end, with all earlier events."""
        if self._reply is reply:
            self._recorder.append(end)
            self._put_flush()

    def checked(self, reply: Reply) -> None:
        """Queue writing the time of plain decoding, which a check measured."""

        def write() -> None:
            if reply.key is not None:
                self.store.conversations.checked(reply.key, reply.stats.plain.checked_ms)

        self._writer.put(write)

    def path_changed(self, conversation: Conversation) -> None:
        """End the stored path where the conversation ends now, under its system prompt. Turns removed from it
        stay in the tree."""
        last = conversation.turns[-1] if conversation.turns else None
        system = conversation.system

        def write() -> None:
            leaf = last.key if last is not None else None
            if conversation.key is not None and (last is None or leaf is not None):
                self.store.conversations.continue_from(conversation.key, leaf, system)

        self._writer.put(write)

    # -- small things for the next session

    def prompted(self, text: str) -> None:
        """Store a prompt that was sent, for the history of prompts."""
        self._writer.put(lambda: self.store.history.add_prompt(text))

    def keep_draft(self, text: str) -> None:
        """Store the unsent text; empty: none."""
        self._writer.put(lambda: self.store.history.keep_draft(text))

    def loaded(self, command: Load, loaded: Loaded) -> None:
        """Models were loaded: remember the pair, and store it with the replies that follow."""
        self._loaded = loaded
        name = loaded.target.name
        if command.server is not None:
            self._targets[name] = loaded.target
            return
        self.recent_models = list(dict.fromkeys([command.model, *self.recent_models]))
        self._targets[loaded.target.title] = loaded.target
        self._writer.put(
            lambda: self.store.history.used_model(command.model, command.support, command.lookup, name)
        )

    # -- trouble

    def news(self) -> list[Notice]:
        """Notices about the store since the last call."""
        trouble = self._writer.trouble
        if trouble and not self._writer.broken:
            trouble = f"{trouble} {PENDING}"
        elif not trouble and self._opening is not None and not self._opening.over:
            trouble = STALLED if monotonic() - self._opened_at > SILENCE else ""
        if trouble and not self._reported:
            self._news.append(Notice("warning", trouble))
        elif self._reported and not trouble:
            self._news.append(Notice("info", RECOVERED))
        self._reported = trouble
        # The writer's thread may add more in the meantime.
        return [self._news.popleft() for _ in range(len(self._news))]

    def settle(self, seconds: float) -> bool:
        """Wait until everything so far is written, for these seconds at most; whether it is. Any thread may
        call this."""
        return self._put_flush().wait(seconds)

    def close(self) -> str:
        """Write what is left and close the store, within LAST_WAIT; a sentence if something of it is lost,
        else empty. Any thread may call it, and again."""
        if self._writer.close(self._close_store, LAST_WAIT):
            return self._lost
        return f"The end of this chat could not be stored. {self._writer.trouble or SILENT}"

    def _close_store(self) -> None:
        self._flush(self._recorder)
        try:
            self.store.close()
        except sqlite3.Error as error:
            self._lost = f"The database of conversations could not be closed: {error}."

    # -- reading

    def after_history(
        self, current: Conversation, chosen: int | None, number: Callable[[], int]
    ) -> Conversation | None:
        """What the chat shows once the history is closed: the chosen one; ``current`` again, if another path
        of it is shown now; an empty one, if it was deleted; None: no change. ``number`` gives the next
        reply's number. Raises StoreError."""
        if chosen is not None and chosen != current.key:
            return read_conversation(self.store, chosen, number)
        if current.key is None:
            return None
        if self.store.conversations.get(current.key).deleted_ms is not None:
            return Conversation(system=current.system)
        path = self.store.conversations.path(current.key)
        shown = [message.id for message in path if message.role != "system"]
        keys = [turn.key for turn in current.turns]
        # A turn without a number is not stored yet, and would disappear from the screen.
        moved = shown != keys and None not in keys
        return read_conversation(self.store, current.key, number) if moved else None

    def versions(self, conversation: Conversation) -> Mapping[int, tuple[int, ...]]:
        """For each message of the conversation's tree that has siblings, all messages in its place, oldest
        first. Raises StoreError."""
        self.settle(LAST_WAIT)
        return {} if conversation.key is None else self.store.conversations.versions(conversation.key)

    def switch(self, conversation: Conversation, message: int, number: Callable[[], int]) -> Conversation:
        """Show the path through this message from now on: the stored conversation on it. ``number`` gives the
        next reply's number. Raises StoreError."""
        self.settle(LAST_WAIT)
        assert conversation.key is not None
        self.store.conversations.show_branch(message)
        known = {turn.key: turn for turn in conversation.turns if turn.key is not None}
        found = read_conversation(self.store, conversation.key, number, known)
        found.dropped = conversation.dropped
        return found

    def export(self, conversation: Conversation, path: Path) -> None:
        """Write the conversation to a new file, in the form of its ending, with all its branches if it is
        stored. Raises StoreError, which says why the file cannot be written."""
        written = self.settle(LAST_WAIT) and all(turn.key is not None for turn in conversation.turns)
        if written and conversation.key is not None:
            from ds4chat.store.export import export

            export(self.store, conversation.key, path)
        else:
            export_unsaved(conversation, path, self._targets)

    # -- parts

    def _beat(self) -> bool:
        recorder = self._recorder
        self._flush(recorder)
        return recorder.message is not None and not recorder.over

    def _put_flush(self) -> Ticket:
        recorder = self._recorder
        return self._writer.put(lambda: self._flush(recorder))

    def _flush(self, recorder: ReplyRecorder) -> None:
        self._unless_gone(recorder.flush)

    def _unless_gone(self, write: Callable[[], None]) -> None:
        """Write, or say why nothing more of the reply can be. Raises StoreError for what may work later."""
        try:
            write()
        except StoreError as error:
            if error.kind != "gone":
                raise
            self._news.append(
                Notice("warning", f"{error} The reply is not stored; /export writes it to a file.")
            )

    def _restore_deleted(self, key: int | None) -> None:
        """Restore a conversation that is continued after it was deleted, here or in another ds4chat."""
        if key is not None and self.store.conversations.get(key).deleted_ms is not None:
            self.store.conversations.restore(key)

    def _read(self, read: Callable[[], T]) -> T | None:
        """What ``read`` gives; None if it cannot, which is reported."""
        try:
            return read()
        except StoreError as error:
            self._news.append(Notice("warning", str(error)))
            return None


def read_conversation(
    store: Store, key: int, number: Callable[[], int], known: Mapping[int, Turn] = MappingProxyType({})
) -> Conversation:
    """The path shown of a stored conversation, its replies with tokens and steps. ``number`` gives the next
    reply's number. ``known``: turns that were read already, by their number in the store. Any thread may call
    this. Raises StoreError."""
    found = Conversation(title=store.conversations.get(key).title, key=key)
    versions = store.conversations.versions(key)
    for message in store.conversations.path(key):
        if message.role == "system":
            # The last one is in force.
            found.system = message.text
            continue
        turn = known.get(message.id)
        if turn is None and message.role == "user":
            turn = UserTurn(message.text, message.id)
        elif turn is None:
            turn = read_reply(store, message, number())
            last = found.turns[-1] if found.turns else None
            turn.before = last if isinstance(last, Reply) and last.can_go_on else None
        turn.versions = versions.get(message.id, ())
        found.turns.append(turn)
    return found


def read_reply(store: Store, message: Message, number: int) -> Reply:
    """A stored reply with its steps and figures, as far as they can be read."""
    model = message.model
    name = one_line(model.title) if model else ""
    reply = Reply(number, name, key=message.id)
    tail, trouble = message.tail, message.detail
    try:
        for step in store.steps(message.id, number):
            reply.add_step(step)
    except StoreError as error:
        # Its records cannot be read: show at least the text.
        reply = Reply(number, name, key=message.id)
        trouble = str(error)
    thinking_tail = message.thinking.removeprefix("".join(t.text for t in reply.tokens if t.thinking))
    reply.stats.plain.load_ms = message.load_plain_ms
    reply.stats.plain.checked_ms = message.check_plain_ms
    if not reply.tokens:
        tail = message.text
    end = message.ended(number)
    if end is not None:
        reply.end(end)
    else:
        states: dict[str, ReplyState] = {"stopped": "stopped", "complete": "complete"}
        reply.state = states.get(message.state, "crashed")
    reply.tail, reply.thinking_tail = tail, thinking_tail
    reply.trouble = trouble
    if message.state == "streaming":
        reply.trouble = "This reply is still being written by another ds4chat."
    return reply
