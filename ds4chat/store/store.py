"""The store: one object for everything that ds4chat keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ds4chat.engine.events import Step
from ds4chat.store import database as databases
from ds4chat.store.conversations import Conversations, settle_text
from ds4chat.store.database import Database
from ds4chat.store.errors import StoreError
from ds4chat.store.history import History
from ds4chat.store.owner import lives
from ds4chat.store.recording import ReplyRecorder, Request
from ds4chat.store.rows import update
from ds4chat.store.search import Hit, search
from ds4chat.store.steps import read_steps

if TYPE_CHECKING:
    from ds4chat.analysis.rows import JudgedRows

FILE_NAME = "conversations.db"
KEEP_DELETED_MS = 30 * 24 * 3600 * 1000
"""How long deleted conversations can be restored."""

ABANDONED = "ds4chat ended while this reply was written."


class Store:
    """Conversations, their records, and history. Any thread may use it; every method may raise StoreError.

    One thread's transaction keeps the others waiting: work that takes long, such as an import beside a
    running chat, opens a store of its own on the same file.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.conversations = Conversations(database)
        self.history = History(database)
        self.trouble = ""
        """A sentence on why this store is in memory although a file was wanted; empty if it is not."""

    @classmethod
    def in_memory(cls, wall: Callable[[], float] = time.time) -> Store:
        """A store that is lost when it is closed."""
        return cls(databases.in_memory(wall))

    @property
    def path(self) -> Path | None:
        """The file; None in memory."""
        return self.database.path

    def steps(self, message: int, reply: int = 0) -> list[Step]:
        """A reply's steps as the engine gave them, but numbered ``reply``."""
        with self.database.read() as connection:
            return read_steps(connection, message, reply)

    def judged_rows(self, conversation: int) -> JudgedRows:
        """The judged drafts and steps of every reply of a conversation, all branches; a reply's number is its
        message's."""
        # Imported here, because only this needs numpy.
        from ds4chat.analysis.rows import rows_from_steps

        with self.database.read() as connection:
            replies = connection.execute(
                "SELECT id FROM messages WHERE conversation = ? AND steps > 0 ORDER BY id", (conversation,)
            ).fetchall()
            steps = [step for (message,) in replies for step in read_steps(connection, message, message)]
        return rows_from_steps(steps)

    def search(self, query: str, *, model: str = "", limit: int = 200) -> list[Hit]:
        """Titles and messages with every word and "quoted phrase" of the query, best match first."""
        return search(self.database, query, model=model, limit=limit)

    def recorder(self, *, clock: Callable[[], float] = time.monotonic) -> ReplyRecorder:
        """What records one reply, to be opened with its request. Raises nothing."""
        return ReplyRecorder(self.database, clock=clock)

    def record(self, request: Request) -> ReplyRecorder:
        """The recorder of a reply, which is stored, still empty, with its prompt."""
        recorder = self.recorder()
        recorder.open(request)
        return recorder

    def recover(self) -> list[int]:
        """Mark the replies that a dead process was writing as crashed, with their text so far; returns them.
        Those of a running process are left alone."""
        now = self.database.now_ms()
        found: list[int] = []
        with self.database.write() as connection:
            rows = connection.execute("SELECT id, owner, updated_ms FROM messages WHERE state = 'streaming'")
            for message, owner, updated_ms in rows.fetchall():
                if lives(owner, updated_ms, now):
                    continue
                settle_text(connection, message)
                update(connection, "messages", message, state="crashed", owner=None, detail=ABANDONED)
                found.append(message)
        return found

    def close(self) -> None:
        """Close the database."""
        self.database.close()


def open_store(path: Path, *, read_only: bool = False, wall: Callable[[], float] = time.time) -> Store:
    """The store in the file ``path``, created if it is new. Replies that a dead process left behind are
    settled, and conversations deleted long ago are removed.

    ``read_only`` changes nothing, for a file in a folder that cannot be written. Raises StoreError.
    """
    store = Store(databases.connect(path, read_only=read_only, wall=wall))
    if read_only:
        return store
    try:
        store.recover()
        store.conversations.purge(store.database.now_ms() - KEEP_DELETED_MS)
    except StoreError as error:
        if error.kind not in ("locked", "full"):
            store.close()
            raise
        # This can wait for the next start; the store itself is usable.
    return store


def open_or_in_memory(path: Path) -> Store:
    """The store in the file ``path``; where that cannot be used, one in memory whose ``trouble`` says why."""
    try:
        return open_store(path)
    except StoreError as error:
        store = Store.in_memory()
        store.trouble = (
            f"{error} Until then conversations are kept in memory only, and are lost when ds4chat ends."
        )
        return store
