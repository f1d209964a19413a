"""Conversations and their messages, as a tree, one path of which is shown.

Every message has a parent. Answering a prompt again or editing it creates a sibling; the conversation's
``active_leaf`` says which path is shown, and the others are kept.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from ds4chat.store.database import Database
from ds4chat.store.entities import (
    LONGEST_WORD,
    Conversation,
    Message,
    ModelIdentity,
    Node,
    Role,
    State,
    time_of_day,
    title_of,
)
from ds4chat.store.errors import StoreError, no_conversation
from ds4chat.store.rows import insert, typed, update
from ds4chat.store.steps import read_texts
from ds4chat.text import encodable

PREVIEW_LENGTH = 200


class Conversations:
    """All operations on conversations and messages. Every method may raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- reading

    def listed(self, *, model: str = "", limit: int = -1) -> list[Conversation]:
        """Pinned conversations first, then the newest, without deleted ones; ``model`` keeps those in which a
        model answered whose name or path contains it."""
        where, values = "c.deleted_ms IS NULL", []
        if model:
            where, values = f"{where} AND {ANSWERED_BY}", [containing(model)] * 2
        with self._database.read() as connection:
            rows = connection.execute(
                f"{_LIST} WHERE {where} ORDER BY c.pinned DESC, c.updated_ms DESC, c.id DESC LIMIT ?",
                (*values, limit),
            ).fetchall()
            return self._conversations(connection, rows)

    def latest(self) -> int | None:
        """The most recently written conversation that is not deleted; None without one."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT id FROM conversations WHERE deleted_ms IS NULL "
                "ORDER BY updated_ms DESC, id DESC LIMIT 1"
            ).fetchone()
            return int(row[0]) if row else None

    def get(self, conversation: int) -> Conversation:
        """One conversation, deleted or not."""
        with self._database.read() as connection:
            rows = connection.execute(f"{_LIST} WHERE c.id = ?", (conversation,)).fetchall()
            if not rows:
                raise no_conversation(conversation)
            return self._conversations(connection, rows)[0]

    def message(self, message: int) -> Message:
        """One message."""
        with self._database.read() as connection:
            found = self._messages(connection, "WHERE m.id = ?", (message,))
            if not found:
                raise _no_message(message)
            return found[0]

    def path(self, conversation: int, leaf: int | None = None) -> list[Message]:
        """The messages from the first one to ``leaf`` (without one: to the active leaf), in order."""
        with self._database.read() as connection:
            if leaf is None:
                _, leaf = self._row(connection, conversation)
            return self._messages(
                connection,
                """JOIN (
                    WITH RECURSIVE up (id, parent, height) AS (
                        SELECT id, parent, 0 FROM messages WHERE id = ? AND conversation = ?
                        UNION ALL
                        SELECT m.id, m.parent, up.height + 1 FROM up JOIN messages m
                        ON m.id = up.parent AND m.id < up.id
                    ) SELECT id AS up_id, height FROM up
                ) ON up_id = m.id ORDER BY height DESC""",
                (leaf, conversation),
            )

    def messages(self, conversation: int) -> list[Message]:
        """Every message of every branch, parents before children."""
        with self._database.read() as connection:
            return self._messages(connection, "WHERE m.conversation = ? ORDER BY m.id", (conversation,))

    def tree(self, conversation: int) -> list[Node]:
        """Every message's place in the tree, parents before children."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT id, parent, role, state, created_ms, substr(text, 1, ?) FROM messages "
                "WHERE conversation = ? ORDER BY id",
                (PREVIEW_LENGTH, conversation),
            ).fetchall()
            return [Node(*row) for row in typed(rows, list[tuple[int, int | None, Role, State, int, str]])]

    def versions(self, conversation: int) -> dict[int, tuple[int, ...]]:
        """For each message that has siblings, all messages in its place, oldest first. Its place is below the
        nearest prompt or reply: a system message in between is not a turn."""
        above: dict[int | None, int | None] = {None: None}
        places: dict[int | None, list[int]] = {}
        for node in self.tree(conversation):
            parent = above.get(node.parent)
            above[node.id] = parent if node.role == "system" else node.id
            if node.role != "system":
                places.setdefault(parent, []).append(node.id)
        return {id_: tuple(found) for found in places.values() if len(found) > 1 for id_ in found}

    def models(self) -> list[ModelIdentity]:
        """The models that answered, most recently used first."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT {_columns('o')} FROM models o JOIN messages m ON m.model = o.id "
                "GROUP BY o.id ORDER BY max(m.id) DESC"
            )
            return [_identity(row) for row in rows]

    # -- writing

    def create(self, title: str = "") -> int:
        """A new, empty conversation."""
        now = self._database.now_ms()
        with self._database.write() as connection:
            return insert(connection, "conversations", title=title, created_ms=now, updated_ms=now)

    def add(self, conversation: int, parent: int | None, role: Role, text: str) -> int:
        """Add a message under ``parent`` and make it the active leaf. A conversation without a title gets one
        from its first prompt."""
        now = self._database.now_ms()
        with self._database.write() as connection:
            title, _ = self._row(connection, conversation)
            if parent is not None and self._message_row(connection, parent)[0] != conversation:
                raise StoreError(f"Message {parent} is not in conversation {conversation}.", "gone")
            message = insert(
                connection,
                "messages",
                conversation=conversation,
                parent=parent,
                role=role,
                state="complete",
                text=text,
                created_ms=now,
                updated_ms=now,
            )
            if not title and role == "user":
                title = title_of(encodable(text))
            update(
                connection, "conversations", conversation, title=title, updated_ms=now, active_leaf=message
            )
            return message

    def set_leaf(self, conversation: int, leaf: int | None) -> None:
        """End the path shown at ``leaf`` (None: before the first message), so that what comes next is a new
        branch under it."""
        with self._database.write() as connection:
            if leaf is not None:
                self._message_row(connection, leaf)
            update(connection, "conversations", conversation, active_leaf=leaf)

    def under_system(self, conversation: int, parent: int | None, system: str) -> int | None:
        """The message to continue from, so that what follows ``parent`` is under that system prompt:
        ``parent`` itself if that is in force there, else a system message below it, created if necessary."""
        text = encodable(system) if system.strip() else ""
        with self._database.write() as connection:
            if self._system_at(connection, parent) == text:
                return parent
            found = connection.execute(
                "SELECT id FROM messages WHERE conversation = ? AND parent IS ? AND role = 'system' "
                "AND text = ?",
                (conversation, parent, text),
            ).fetchone()
            return int(found[0]) if found else self.add(conversation, parent, "system", text)

    def continue_from(self, conversation: int, leaf: int | None, system: str) -> None:
        """End the path shown at ``leaf`` (None: before the first message); what comes next is asked under
        that system prompt."""
        with self._database.write():
            self.set_leaf(conversation, self.under_system(conversation, leaf, system))

    def checked(self, message: int, plain_ms: float) -> None:
        """Store the time that a check's plain decoding of the whole reply took."""
        with self._database.write() as connection:
            update(connection, "messages", message, check_plain_ms=plain_ms)

    def show_branch(self, message: int) -> int:
        """Show the branch that ``message`` is on, down to its newest leaf. Returns that leaf."""
        with self._database.write() as connection:
            conversation, *_ = self._message_row(connection, message)
            # A message is younger than its parent, so the youngest of a subtree is a leaf.
            leaf = connection.execute(
                """WITH RECURSIVE down (id) AS (
                    VALUES (?) UNION ALL
                    SELECT m.id FROM down JOIN messages m ON m.parent = down.id AND m.id > down.id
                ) SELECT max(id) FROM down""",
                (message,),
            ).fetchone()[0]
            self.set_leaf(conversation, leaf)
            return int(leaf)

    def fork(self, message: int) -> int:
        """A new conversation with a copy of everything from the first message to ``message``, tokens and
        confidence rows included. Returns it."""
        with self._database.write() as connection:
            source, *_ = self._message_row(connection, message)
            title, _ = self._row(connection, source)
            conversation = self.create(f"{title} (fork)")
            parent: int | None = None
            for original in self.path(source, message):
                parent = self._copy(connection, original, conversation, parent)
            update(connection, "conversations", conversation, active_leaf=parent, forked_from=message)
            return conversation

    def rename(self, conversation: int, title: str) -> None:
        """Rename a conversation."""
        self._change(conversation, title=" ".join(title.split())[:LONGEST_WORD])

    def pin(self, conversation: int, pinned: bool = True) -> None:
        """Pin a conversation to the top of the list, or unpin it."""
        self._change(conversation, pinned=pinned)

    def delete(self, conversation: int) -> None:
        """Hide a conversation from the list; ``restore`` brings it back."""
        self._change(conversation, deleted_ms=self._database.now_ms())

    def restore(self, conversation: int) -> None:
        """Undo ``delete``."""
        self._change(conversation, deleted_ms=None)

    def purge(self, before_ms: int) -> int:
        """Erase conversations that were deleted before that time and are not being written; returns how many.
        Their prompts are removed from the prompt history too, and the search index is rewritten without
        them."""
        with self._database.write() as connection:
            rows = connection.execute(
                "SELECT id FROM conversations WHERE deleted_ms < ? AND id NOT IN "
                "(SELECT conversation FROM messages WHERE state = 'streaming')",
                (before_ms,),
            )
            gone = ", ".join(str(int(id_)) for (id_,) in rows)
            if not gone:
                return 0
            asked = "SELECT text FROM messages WHERE role = 'user' AND conversation"
            connection.execute(
                f"DELETE FROM prompts WHERE text IN ({asked} IN ({gone})) "
                f"AND text NOT IN ({asked} NOT IN ({gone}))"
            )
            count = connection.execute(f"DELETE FROM conversations WHERE id IN ({gone})").rowcount
            connection.execute("INSERT INTO search (search) VALUES ('optimize')")
            return count

    # -- parts

    def _change(self, conversation: int, **values: object) -> None:
        with self._database.write() as connection:
            if not update(connection, "conversations", conversation, **values):
                raise no_conversation(conversation)

    def _copy(
        self, connection: sqlite3.Connection, source: Message, conversation: int, parent: int | None
    ) -> int:
        """Copy one message. A reply that is still being written is copied as far as it is, as stopped."""
        made = connection.execute(
            f"INSERT INTO messages (conversation, parent, state, text, thinking, {_COPIED}) SELECT ?, ?, "
            f"CASE state WHEN 'streaming' THEN 'stopped' ELSE state END, ?, ?, {_COPIED} "
            "FROM messages WHERE id = ?",
            (conversation, parent, source.text, source.thinking, source.id),
        )
        connection.execute(
            "INSERT INTO steps (message, body) SELECT ?, body FROM steps WHERE message = ? ORDER BY id",
            (made.lastrowid, source.id),
        )
        return int(made.lastrowid or 0)

    def _row(self, connection: sqlite3.Connection, conversation: int) -> tuple[str, int | None]:
        """A conversation's title and active leaf."""
        row = connection.execute(
            "SELECT title, active_leaf FROM conversations WHERE id = ?", (conversation,)
        ).fetchone()
        if row is None:
            raise no_conversation(conversation)
        return typed(row, tuple[str, int | None])

    def _message_row(self, connection: sqlite3.Connection, message: int) -> tuple[int, int | None, Role]:
        """A message's conversation, parent and role."""
        row = connection.execute(
            "SELECT conversation, parent, role FROM messages WHERE id = ?", (message,)
        ).fetchone()
        if row is None:
            raise _no_message(message)
        return typed(row, tuple[int, int | None, Role])

    def _system_at(self, connection: sqlite3.Connection, message: int | None) -> str:
        """The system prompt in force at a message: the last one on the path to it; empty without one."""
        found = connection.execute(
            """WITH RECURSIVE up (id, parent, role) AS (
                SELECT id, parent, role FROM messages WHERE id = ?
                UNION ALL
                SELECT m.id, m.parent, m.role FROM up JOIN messages m ON m.id = up.parent AND m.id < up.id
            ) SELECT m.text FROM up JOIN messages m ON m.id = up.id WHERE up.role = 'system'
            ORDER BY up.id DESC LIMIT 1""",
            (message,),
        ).fetchone()
        return str(found[0]) if found else ""

    def _conversations(self, connection: sqlite3.Connection, rows: list[Any]) -> list[Conversation]:
        models: dict[int, list[str]] = {}
        marks = ", ".join(str(int(row[0])) for row in rows)
        for found in connection.execute(
            "SELECT m.conversation, o.name, o.path FROM messages m JOIN models o ON o.id = m.model "
            f"WHERE m.conversation IN ({marks}) GROUP BY m.conversation, o.id ORDER BY min(m.id)"
        ):
            conversation, name, path = typed(found, tuple[int, str, str])
            shown = ModelIdentity(path, name).title
            if shown not in models.setdefault(conversation, []):
                models[conversation].append(shown)
        return [
            Conversation(
                id=id_,
                title=title,
                created_ms=time_of_day(made),
                updated_ms=time_of_day(updated),
                pinned=bool(pinned),
                deleted_ms=deleted,
                active_leaf=leaf,
                forked_from=forked,
                messages=messages,
                models=tuple(models.get(id_, ())),
                preview=preview or "",
            )
            for id_, title, made, updated, pinned, deleted, leaf, forked, messages, preview in typed(
                rows,
                list[tuple[int, str, int, int, int, int | None, int | None, int | None, int, str | None]],
            )
        ]

    def _messages(
        self, connection: sqlite3.Connection, clause: str, values: Iterable[object]
    ) -> list[Message]:
        rows = connection.execute(f"{_MESSAGE} {clause}", tuple(values)).fetchall()
        size = len(_IDENTITY)
        messages = typed([dict(zip(_MESSAGE_COLUMNS, row)) for row in rows], list[Message])
        return [
            self._completed(connection, message, row[-2 * size : -size], row[-size:])
            for message, row in zip(messages, rows)
        ]

    def _completed(
        self, connection: sqlite3.Connection, message: Message, model: Sequence[Any], support: Sequence[Any]
    ) -> Message:
        """The message with its models, valid times, and the text so far if it is still being written."""
        text, thinking = message.text, message.thinking
        if message.state == "streaming":
            text, thinking = read_texts(connection, message.id)
        return replace(
            message,
            text=text,
            thinking=thinking,
            created_ms=time_of_day(message.created_ms),
            updated_ms=time_of_day(message.updated_ms),
            model=_identity(model) if model[0] is not None else None,
            support=_identity(support) if support[0] is not None else None,
        )


_IDENTITY = ModelIdentity.__struct_fields__
_MESSAGE_COLUMNS = tuple(field.name for field in fields(Message) if field.name not in ("model", "support"))
_OWN = ("id", "conversation", "parent", "text", "thinking", "state")
"""Columns in which a copy of a message differs."""
_COPIED = ", ".join(("model", "support", *(name for name in _MESSAGE_COLUMNS if name not in _OWN)))
_LIST = f"""SELECT c.id, c.title, c.created_ms, c.updated_ms, c.pinned, c.deleted_ms, c.active_leaf,
    c.forked_from,
    (SELECT count(*) FROM messages m WHERE m.conversation = c.id),
    (SELECT substr(m.text, 1, {PREVIEW_LENGTH}) FROM messages m WHERE m.id = c.active_leaf)
    FROM conversations c"""
ANSWERED_BY = """c.id IN (SELECT x.conversation FROM messages x JOIN models o ON o.id = x.model
    WHERE o.name LIKE ? ESCAPE '\\' OR o.path LIKE ? ESCAPE '\\')"""
"""A condition on the conversation c: a model answered in it whose name or path is like the two parameters."""


def _columns(table: str, names: Iterable[str] = _IDENTITY) -> str:
    return ", ".join(f"{table}.{name}" for name in names)


_MESSAGE = f"""SELECT {_columns("m", _MESSAGE_COLUMNS)}, {_columns("o")}, {_columns("s")}
    FROM messages m LEFT JOIN models o ON o.id = m.model LEFT JOIN models s ON s.id = m.support"""


def _identity(row: Sequence[Any]) -> ModelIdentity:
    return ModelIdentity(*typed(row, tuple[str, str, str, str, int, int]))


def _no_message(number: int) -> StoreError:
    return StoreError(f"There is no message {number}.", "gone")


def settle_text(
    connection: sqlite3.Connection, message: int, tail: str = "", thinking_tail: str = ""
) -> None:
    """Store the text and thinking of a running reply's steps with its message, where search finds them."""
    text, thinking = read_texts(connection, message)
    update(connection, "messages", message, text=text + tail, thinking=thinking + thinking_tail)


def model_id(connection: sqlite3.Connection, identity: ModelIdentity | None) -> int | None:
    """The number of a model in the database, added if it is new."""
    if identity is None:
        return None
    values = tuple(
        encodable(value)[:LONGEST_WORD] if isinstance(value, str) else value
        for value in (getattr(identity, name) for name in _IDENTITY)
    )
    connection.execute(
        f"INSERT OR IGNORE INTO models ({', '.join(_IDENTITY)}) VALUES (?, ?, ?, ?, ?, ?)", values
    )
    found = connection.execute(
        f"SELECT id FROM models WHERE {' AND '.join(f'{name} = ?' for name in _IDENTITY)}", values
    )
    return int(found.fetchone()[0])


def containing(text: str) -> str:
    """The pattern for LIKE, with the escape character backslash, of everything that contains ``text``."""
    escaped = encodable(text).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
