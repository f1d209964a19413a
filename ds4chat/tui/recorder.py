"""The chat's conversations in the store: written as they happen, read back to go on with.

A thread writes, and the chat never waits for it longer than PROMPTLY. A store in trouble never stops the
chat: what could not be written stays in memory and is tried again; the user is told once when that begins and
once when it is over.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from time import monotonic
from types import MappingProxyType
from typing import TypeVar

from ds4chat.engine.events import Ended, EngineDied, Load, Loaded, ModelInfo, Notice, Prefill, Step
from ds4chat.store import Message, ModelIdentity, Store, StoreError
from ds4chat.store.database import PATIENCE_MS
from ds4chat.store.recording import INTERVAL, ReplyRecorder, Request
from ds4chat.store.writer import Ticket, Writer
from ds4chat.text import one_line
from ds4chat.tui.conversation import Conversation, Reply, ReplyState, Turn, UserTurn

RECOVERED = "Conversations are written to disk again; nothing of this one is missing."
STALLED = (
    "The disk with the conversations does not answer, so the last prompt is not kept yet. It is written as "
    "soon as the disk answers; /export FILE writes a copy elsewhere."
)
SILENT = "The database did not answer in time; another program may hold it."

PROMPTLY = 0.03
"""Seconds that the chat waits for a prompt to be on disk before it draws on and looks again: a disk at rest
takes less, and then the engine is asked at once."""
SILENCE = 10.0
"""Seconds after which a write that neither ends nor fails is said: longer than the patience with a lock."""
LAST_WAIT = PATIENCE_MS / 1000 + 1.0
"""Seconds that the way out waits for what is left: as long as one attempt takes."""

T = TypeVar("T")


class _Exchange:
    """A reply that is being written, and the prompt before it if that is new. But for ``take``, everything
    here happens in the writer's thread."""

    def __init__(self, store: Store, conversation: Conversation, reply: Reply, loaded: Loaded | None) -> None:
        turns = conversation.turns
        at = next(i for i in reversed(range(len(turns))) if turns[i] is reply)
        asked = turns[at - 1] if at else None
        self.reply = reply
        self.over = False
        """Its end is written, or nothing more of it can be."""
        self.complaint = ""
        """Why nothing more of it can be written, as a sentence, until that is said."""
        self._store = store
        self._conversation = conversation
        self._system = conversation.system
        self._loaded = loaded
        self._user = asked if isinstance(asked, UserTurn) and asked.key is None else None
        self._before: Turn | None = asked
        if self._user is not None:
            self._before = turns[at - 2] if at > 1 else None
        self._came: deque[Step | Prefill | Ended | EngineDied] = deque()
        self._recorder: ReplyRecorder | None = None

    def take(self, *events: Step | Prefill | Ended | EngineDied) -> None:
        """Keep what came, to be written soon. Any thread may call it."""
        self._came.extend(events)

    def open(self) -> None:
        """Write the prompt and an empty reply. Raises StoreError."""
        with self._explained():
            if self._recorder is None:
                self._list_again()
                self._recorder = self._store.record(self._request())
            else:
                self._recorder.flush(durable=True)
            self._number(self._recorder)

    def grow(self) -> None:
        """Write what came meanwhile, if it is time, and an end at once. Raises StoreError."""
        recorder = self._recorder
        if recorder is None or self.over:
            return
        with self._explained():
            recorder.take(*[self._came.popleft() for _ in range(len(self._came))])
            self._number(recorder)
            self.over = recorder.finished

    def flush(self) -> None:
        """Write everything that came. Raises StoreError."""
        self.grow()
        if self._recorder is not None and not self.over:
            with self._explained():
                self._recorder.flush(durable=True)
                self._number(self._recorder)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            if error.kind == "gone":
                self.over = True
                self.complaint = f"{error} The reply is not kept; /export writes it to a file."
            raise

    def _number(self, recorder: ReplyRecorder) -> None:
        """Give the turns the numbers that the store gave them. Raises what keeps them from being written."""
        if recorder.error is not None:
            raise recorder.error
        self._conversation.key = recorder.conversation
        self.reply.key = recorder.message
        if self._user is not None:
            self._user.key = recorder.prompt

    def _request(self) -> Request:
        loaded, user = self._loaded, self._user
        return Request(
            prompt=user.text if user is not None else None,
            conversation=self._conversation.key,
            parent=self._before.key if self._before is not None else None,
            system=self._system,
            model=ModelIdentity.of(loaded.target) if loaded else None,
            support=ModelIdentity.of_support(loaded.drafter) if loaded else None,
            drafter=loaded.drafter.kind if loaded and loaded.drafter else "",
            load_plain_ms=self.reply.stats.plain.load_ms,
        )

    def _list_again(self) -> None:
        """A conversation that is gone on with, here or in another ds4chat, is not deleted any more."""
        key = self._conversation.key
        if key is not None and self._store.conversations.get(key).deleted_ms is not None:
            self._store.conversations.restore(key)


class StoreRecorder:
    """The Recorder that writes to a store. Nothing raises here but what reads or exports conversations."""

    def __init__(self, store: Store) -> None:
        """Read what a session wants of the last one; that may wait for the disk, what follows does not."""
        self.store = store
        self._news: list[Notice] = [Notice("warning", store.trouble)] if store.trouble else []
        self._prompts = self._read(store.history.prompts) or []
        self._draft = self._read(store.history.draft) or ""
        recent = self._read(store.history.recent_models) or []
        self._models = list(dict.fromkeys(model.path for model in recent))
        self._exchange: _Exchange | None = None
        """The newest one; only it can still grow."""
        self._opening: Ticket | None = None
        """Its first write."""
        self._opened_at = 0.0
        self._loaded: Loaded | None = None
        self._targets: dict[str, ModelInfo] = {}
        """Models that were loaded, by the names that replies give."""
        self._told = ""
        self._lost = ""
        """Why the store could not be closed in order, as a sentence."""
        self._writer = Writer(self._beat, INTERVAL)

    # -- replies

    def started(self, conversation: Conversation, reply: Reply) -> None:
        """Have the prompt, if it is new, and an empty reply written; ``kept`` says when they are."""
        exchange = self._exchange = _Exchange(self.store, conversation, reply, self._loaded)
        self._opening = self._writer.put(exchange.open)
        self._opened_at = monotonic()
        if not self._writer.trouble:
            self._opening.wait(PROMPTLY)

    def kept(self, reply: Reply) -> bool:
        """The reply's prompt is on disk, or the user was told why it is not."""
        return self._opening is None or self._opening.over or bool(self._told)

    def number_on_disk(self, conversation: Conversation) -> int:
        """The number of a conversation that the store has in a file; 0 for any other."""
        return (conversation.key or 0) if self.store.path is not None else 0

    def took(self, reply: Reply, events: Sequence[Step | Prefill]) -> None:
        """Hand over what came; it is written within a second."""
        if self._exchange is not None and self._exchange.reply is reply:
            self._exchange.take(*events)

    def ended(self, reply: Reply, end: Ended | EngineDied) -> None:
        """Have the end written, with all that came before it."""
        if self._exchange is not None and self._exchange.reply is reply:
            self._exchange.take(end)
            self._writer.put(self._exchange.grow)

    def checked(self, reply: Reply) -> None:
        """Have what the check took written beside the reply."""

        def write() -> None:
            if reply.key is not None:
                self.store.conversations.checked(reply.key, reply.stats.plain.checked_ms)

        self._writer.put(write)

    def went_back(self, conversation: Conversation) -> None:
        """Let the path shown end where the conversation now ends, under its system prompt."""
        last = conversation.turns[-1] if conversation.turns else None
        system = conversation.system

        def stand() -> None:
            leaf = last.key if last is not None else None
            if conversation.key is not None and (last is None or leaf is not None):
                self.store.conversations.stand(conversation.key, leaf, system)

        self._writer.put(stand)

    # -- small things that a next session wants

    def prompts(self) -> list[str]:
        """Prompts of earlier sessions, oldest first."""
        return self._prompts

    def prompted(self, text: str) -> None:
        """Remember a prompt."""
        self._writer.put(lambda: self.store.history.add_prompt(text))

    def draft(self) -> str:
        """The unsent text of the last session."""
        return self._draft

    def keep_draft(self, text: str) -> None:
        """Keep the unsent text."""
        self._writer.put(lambda: self.store.history.keep_draft(text))

    def loaded(self, command: Load, loaded: Loaded) -> None:
        """Remember the pair, and stamp it on the replies that follow."""
        self._loaded = loaded
        name = loaded.target.name
        self._models = list(dict.fromkeys([command.model, *self._models]))
        self._targets[loaded.target.title] = loaded.target
        self._writer.put(
            lambda: self.store.history.used_model(command.model, command.support, command.lookup, name)
        )

    def recent_models(self) -> list[str]:
        """Paths of the targets loaded lately, the latest first."""
        return self._models

    # -- trouble

    def news(self) -> list[Notice]:
        """What the user is to be told of the store since the last call."""
        trouble = self._writer.trouble
        if not trouble and self._opening is not None and not self._opening.over:
            trouble = STALLED if monotonic() - self._opened_at > SILENCE else ""
        if trouble and not self._told:
            self._news.append(Notice("warning", trouble))
        elif self._told and not trouble:
            self._news.append(Notice("info", RECOVERED))
        self._told = trouble
        if self._exchange is not None and self._exchange.complaint:
            self._news.append(Notice("warning", self._exchange.complaint))
            self._exchange.complaint = ""
        found, self._news = self._news, []
        return found

    def settle(self, seconds: float) -> bool:
        """Wait until all up to now is written, at most so long; whether it is. Any thread may call it."""
        if self._exchange is not None:
            self._writer.put(self._exchange.flush)
        return self._writer.flush(seconds)

    def close(self) -> str:
        """Write what is left and close the store, within LAST_WAIT; a sentence if something of it is lost,
        else empty. Any thread may call it, and again."""
        if self._writer.close(self._close_store, LAST_WAIT):
            return self._lost
        return f"The last of this chat could not be kept. {self._writer.trouble or SILENT}"

    def _close_store(self) -> None:
        if self._exchange is not None:
            self._exchange.flush()
        try:
            self.store.close()
        except sqlite3.Error as error:
            self._lost = f"The conversations could not be closed in order: {error}."

    # -- reading

    def opened(self, key: int, number: Callable[[], int]) -> Conversation:
        """A stored conversation as the chat holds it, its replies with tokens and steps. ``number`` gives the
        next reply's number. Any thread may call it. Raises StoreError."""
        return read_conversation(self.store, key, number)

    def after_history(
        self, current: Conversation, chosen: int | None, number: Callable[[], int]
    ) -> Conversation | None:
        """What the chat is to show when the history closes: the one chosen; else ``current`` anew, if another
        path of it is shown now, or an empty one, if it was deleted; None: nothing else. As ``opened``."""
        if chosen is not None and chosen != current.key:
            return self.opened(chosen, number)
        if current.key is None:
            return None
        if self.store.conversations.get(current.key).deleted_ms is not None:
            return Conversation(system=current.system)
        path = self.store.conversations.path(current.key)
        shown = [message.id for message in path if message.role != "system"]
        keys = [turn.key for turn in current.turns]
        # A turn without a number is not in the store yet, and would be lost from the screen.
        moved = shown != keys and None not in keys
        return self.opened(current.key, number) if moved else None

    def versions(self, conversation: Conversation) -> Mapping[int, tuple[int, ...]]:
        """Of each message that is not alone in its place of the tree, all that are there, oldest first. It
        may wait. Raises StoreError."""
        self.settle(LAST_WAIT)
        return {} if conversation.key is None else self.store.conversations.versions(conversation.key)

    def switched(
        self, conversation: Conversation, message: int, number: Callable[[], int]
    ) -> Conversation | None:
        """The conversation on the path through this message, which is the one shown from now on; None where
        it is not in the store. It may wait. Raises StoreError."""
        self.settle(LAST_WAIT)
        if conversation.key is None:
            return None
        self.store.conversations.switch(message)
        known = {turn.key: turn for turn in conversation.turns if turn.key is not None}
        found = read_conversation(self.store, conversation.key, number, known)
        found.dropped = conversation.dropped
        return found

    def export(self, conversation: Conversation, path: Path) -> None:
        """Write the conversation to a new file in the form of its ending, with all its branches where it is
        in the store. It may wait: not for the thread of the screen. Raises StoreError."""
        written = self.settle(LAST_WAIT) and all(turn.key is not None for turn in conversation.turns)
        if written and conversation.key is not None:
            from ds4chat.store.export import export

            export(self.store, conversation.key, path)
        else:
            from ds4chat.tui.export import export_unsaved

            export_unsaved(conversation, path, self._targets)

    # -- parts

    def _beat(self) -> bool:
        exchange = self._exchange
        if exchange is None:
            return False
        exchange.grow()
        return not exchange.over

    def _read(self, read: Callable[[], T]) -> T | None:
        """What ``read`` gives; None where it cannot, and the user is told why."""
        try:
            return read()
        except StoreError as error:
            self._news.append(Notice("warning", str(error)))
            return None


def read_conversation(
    store: Store, key: int, number: Callable[[], int], known: Mapping[int, Turn] = MappingProxyType({})
) -> Conversation:
    """The path shown of a stored conversation. ``known``: turns that were read already, by their number in
    the store. Raises StoreError."""
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
            turn = _reply(store, message, number())
            last = found.turns[-1] if found.turns else None
            turn.before = last if isinstance(last, Reply) and last.can_go_on else None
        turn.versions = versions.get(message.id, ())
        found.turns.append(turn)
    return found


def _reply(store: Store, message: Message, number: int) -> Reply:
    model = message.model
    name = one_line(model.name or PurePath(model.path).stem) if model else ""
    reply = Reply(number, name, key=message.id)
    tail, trouble = message.tail, message.detail
    try:
        for step in store.records.steps(message.id, number):
            reply.take(step)
    except StoreError as error:
        # Its records cannot be read: the text alone is better than nothing.
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
