"""The chat's conversations in the store: written as they happen, read back to go on with.

A store in trouble never stops the chat. What could not be written stays in memory and is tried again; the
user is told once when that begins and once when it is over.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeVar

from ds4chat.engine.events import Ended, EngineDied, Load, Loaded, Notice, Prefill, Step
from ds4chat.store import Message, ModelIdentity, Store, StoreError
from ds4chat.store.recording import ReplyRecorder, Request
from ds4chat.tui.conversation import Conversation, Reply, Turn, UserTurn

RECOVERED = "Conversations are written to disk again; nothing of this one is missing."

T = TypeVar("T")


@dataclass(slots=True)
class _Written:
    """A reply that is being written, with what it belongs to."""

    recorder: ReplyRecorder
    conversation: Conversation
    user: UserTurn | None
    """The prompt that is written with the reply; None: it was written before."""
    reply: Reply

    def number(self) -> None:
        """Give the turns the numbers that the store gave them."""
        self.conversation.key = self.recorder.conversation or self.conversation.key
        self.reply.key = self.recorder.message
        if self.user is not None:
            self.user.key = self.recorder.prompt


class StoreRecorder:
    """The Recorder that writes to a store. Nothing raises here but what reads or exports conversations."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._writing: list[_Written] = []
        """Replies of which something is not in the store yet; the running one among them."""
        self._loaded: Loaded | None = None
        self._trouble = ""
        self._told = ""
        self._news: list[Notice] = [Notice("warning", store.trouble)] if store.trouble else []

    # -- replies

    def started(self, conversation: Conversation, reply: Reply) -> None:
        """Write the prompt, if it is new, and an empty reply: on disk when this returns."""
        turns = conversation.turns
        at = next(i for i in reversed(range(len(turns))) if turns[i] is reply)
        asked = turns[at - 1] if at else None
        user = asked if isinstance(asked, UserTurn) and asked.key is None else None
        before = turns[at - 2] if user is not None and at > 1 else asked if user is None else None
        loaded = self._loaded
        recorder = self.store.record(
            Request(
                prompt=user.text if user is not None else None,
                conversation=conversation.key,
                parent=self._parent(before),
                system=conversation.system,
                model=ModelIdentity.of(loaded.target) if loaded else None,
                support=ModelIdentity.of_support(loaded.drafter) if loaded else None,
                drafter=loaded.drafter.kind if loaded and loaded.drafter else "",
            )
        )
        written = _Written(recorder, conversation, user, reply)
        written.number()
        self._writing.append(written)
        if conversation.key is not None:
            self._keep_listed(conversation.key)

    def took(self, reply: Reply, events: Sequence[Step | Prefill]) -> None:
        """Hand over what came; a thread writes it."""
        if written := self._find(reply):
            for event in events:
                written.recorder.take(event)

    def ended(self, reply: Reply, end: Ended | EngineDied) -> None:
        """Write the end: on disk when this returns."""
        if written := self._find(reply):
            written.recorder.take(end)
            self._settle()

    def went_back(self, conversation: Conversation) -> None:
        """Let the path shown end where the conversation now ends."""
        key = conversation.key
        if key is None:
            return
        last = conversation.turns[-1] if conversation.turns else None
        leaf = last.key if last is not None else None
        if last is None or leaf is not None:
            self._try(lambda: self.store.conversations.rewind(key, leaf))

    # -- small things that a next session wants

    def prompts(self) -> list[str]:
        """Prompts of earlier sessions, oldest first."""
        return self._try(self.store.history.prompts) or []

    def prompted(self, text: str) -> None:
        """Remember a prompt."""
        self._try(lambda: self.store.history.add_prompt(text))

    def draft(self) -> str:
        """The unsent text of the last session."""
        return self._try(self.store.history.draft) or ""

    def keep_draft(self, text: str) -> None:
        """Keep the unsent text."""
        self._try(lambda: self.store.history.keep_draft(text))

    def loaded(self, command: Load, loaded: Loaded) -> None:
        """Remember the pair, and stamp it on the replies that follow."""
        self._loaded = loaded
        name = loaded.target.name
        self._try(lambda: self.store.history.used_model(command.model, command.support, command.lookup, name))

    def recent_models(self) -> list[str]:
        """Paths of the targets loaded lately, the latest first."""
        found = self._try(self.store.history.recent_models) or []
        return list(dict.fromkeys(model.path for model in found))

    # -- trouble

    def news(self) -> list[Notice]:
        """What the user is to be told of the store since the last call."""
        self._settle()
        trouble = next((w.recorder.trouble for w in self._writing if w.recorder.trouble), "") or self._trouble
        if trouble and not self._told:
            self._news.append(Notice("warning", trouble))
        elif self._told and not trouble:
            self._news.append(Notice("info", RECOVERED))
        self._told = trouble
        found, self._news = self._news, []
        return found

    def close(self) -> str:
        """Write what is left and close the store; a sentence if something of it is lost, else empty."""
        lost = next((w.recorder for w in self._writing if not w.recorder.close()), None)
        try:
            if lost is None:
                self.store.close()
                return ""
            # Closing the store would have every other reply wait for the same trouble to end.
            self.store.database.close()
        except (StoreError, sqlite3.Error) as error:
            return f"The conversations could not be closed in order: {error}."
        return f"The last replies could not be kept. {lost.trouble}"

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
        found = self.store.conversations.get(current.key)
        if found.deleted_ms is not None:
            return Conversation(system=current.system)
        last = current.turns[-1] if current.turns else None
        # A turn without a number is not in the store yet, and would be lost from the screen.
        moved = found.active_leaf != last.key if last is not None else found.active_leaf is not None
        return self.opened(current.key, number) if moved and (last is None or last.key is not None) else None

    def export(self, conversation: Conversation, path: Path) -> bool:
        """Write the conversation to a new file, in the form of its ending; False where not all of it is in
        the store. Raises StoreError."""
        for written in self._writing:
            written.recorder.flush()
        self._settle()
        turns = conversation.turns
        if conversation.key is None or any(turn.key is None for turn in turns):
            return False
        if any(w.conversation is conversation and not w.recorder.saved for w in self._writing):
            return False
        from ds4chat.store.export import export

        export(self.store, conversation.key, path)
        return True

    # -- parts

    def _parent(self, turn: Turn | None) -> int | ReplyRecorder | None:
        """What the store knows a turn by."""
        if turn is None:
            return None
        if turn.key is None and isinstance(turn, Reply) and (written := self._find(turn)):
            return written.recorder
        return turn.key

    def _find(self, reply: Reply) -> _Written | None:
        return next((w for w in reversed(self._writing) if w.reply is reply), None)

    def _settle(self) -> None:
        for written in self._writing:
            written.number()
        self._writing = [w for w in self._writing if w.reply.running or not w.recorder.saved]

    def _keep_listed(self, key: int) -> None:
        """A conversation that is gone on with, here or in another ds4chat, is not deleted any more."""

        def restore() -> None:
            if self.store.conversations.get(key).deleted_ms is not None:
                self.store.conversations.restore(key)

        self._try(restore)

    def _try(self, do: Callable[[], T]) -> T | None:
        """What ``do`` gives; None where the store is in trouble."""
        try:
            found = do()
        except StoreError as error:
            self._trouble = str(error) if error.kind != "gone" else ""
            return None
        self._trouble = ""
        return found


def read_conversation(store: Store, key: int, number: Callable[[], int]) -> Conversation:
    """The path shown of a stored conversation. Raises StoreError."""
    found = Conversation(title=store.conversations.get(key).title, key=key)
    for message in store.conversations.path(key):
        if message.role == "system":
            found.system = message.text
        elif message.role == "user":
            found.turns.append(UserTurn(message.text, message.id))
        else:
            found.turns.append(_reply(store, message, number()))
    return found


def _reply(store: Store, message: Message, number: int) -> Reply:
    model = message.model
    name = (model.name or PurePath(model.path).stem) if model else ""
    reply = Reply(number, name, key=message.id)
    tail, trouble = message.tail, message.detail
    try:
        for step in store.records.steps(message.id, number):
            reply.take(step)
    except StoreError as error:
        # Its records cannot be read: the text alone is better than nothing.
        reply = Reply(number, name, key=message.id)
        trouble = str(error)
    if not reply.tokens:
        tail = message.text
    end = message.ended(number)
    if end is not None:
        reply.end(end)
    else:
        reply.state = "stopped" if message.state in ("stopped", "complete") else "crashed"
    reply.tail = tail
    reply.trouble = trouble
    if message.state == "streaming":
        reply.trouble = "This reply is still being written by another ds4chat."
    return reply
