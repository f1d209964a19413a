"""Conversations and their messages, as a tree of which one path is shown.

Every message has a parent. Answering a prompt again or editing it creates a sibling; the conversation's
``active_leaf`` says which path is shown, and the others are kept.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ds4chat.store.database import Database
from ds4chat.store.entities import (
    ROLES,
    STATES,
    Conversation,
    Message,
    ModelIdentity,
    Node,
    Role,
    time_of_day,
    title_of,
    typed_row,
)
from ds4chat.store.errors import StoreError, damaged_value, no_conversation
from ds4chat.store.steps import read_texts
from ds4chat.text import encodable

PREVIEW_LENGTH = 200
LONGEST_WORD = 4096
"""Characters of a title or of a model's name or path; names come from files of unknown origin."""


class Conversations:
    """All operations on conversations and messages. Every method may raise StoreError."""

    def __init__(self, database: Database, wall: Callable[[], float] = time.time) -> None:
        self._database = database
        self._wall = wall

    # -- reading

    def listed(
        self, *, model: str = "", deleted: bool = False, limit: int = -1, offset: int = 0
    ) -> list[Conversation]:
        """Pinned conversations first, then the newest; ``model`` keeps those in which a model answered whose
        name or path contains it. With ``deleted``, the deleted ones instead."""
        where = ["(c.deleted_ms IS NOT NULL) = ?"]
        values: list[Any] = [deleted]
        if model:
            where.append(_MODEL_FILTER)
            values += [f"%{escape_like(encodable(model))}%"] * 2
        with self._database.read() as connection:
            rows = connection.execute(
                f"{_LIST} WHERE {' AND '.join(where)} "
                "ORDER BY c.pinned DESC, c.updated_ms DESC, c.id DESC LIMIT ? OFFSET ?",
                (*values, limit, offset),
            ).fetchall()
            return self._conversations(connection, rows)

    def latest(self) -> int | None:
        """The most recently written conversation; None if there is none that is not deleted."""
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
            return self._messages(connection, "WHERE m.id = ?", (message,), want=message)[0]

    def path(self, conversation: int, leaf: int | None = None) -> list[Message]:
        """The messages from the first one to ``leaf`` (without one: to the active leaf), in order."""
        with self._database.read() as connection:
            if leaf is None:
                leaf = self._row(connection, conversation)["active_leaf"]
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
            )
            kinds = (int, int | None, str, str, int, str)
            return [Node(*typed_row(row, kinds)) for row in rows]

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
            return [ModelIdentity(*typed_row(row, (str, str, str, str, int, int))) for row in rows]

    # -- writing

    def create(self, title: str = "") -> int:
        """A new, empty conversation."""
        now = self.now_ms()
        with self._database.write() as connection:
            made = connection.execute(
                "INSERT INTO conversations (title, created_ms, updated_ms) VALUES (?, ?, ?)",
                (encodable(title), now, now),
            )
            return int(made.lastrowid or 0)

    def add(self, conversation: int, parent: int | None, role: Role, text: str) -> int:
        """Add a message under ``parent`` and make it the active leaf. A conversation without a title gets one
        from its first prompt."""
        now = self.now_ms()
        with self._database.write() as connection:
            row = self._row(connection, conversation)
            if parent is not None:
                self._belongs(connection, parent, conversation)
            made = connection.execute(
                "INSERT INTO messages (conversation, parent, role, state, text, created_ms, updated_ms) "
                "VALUES (?, ?, ?, 'complete', ?, ?, ?)",
                (conversation, parent, role, encodable(text), now, now),
            )
            title = row["title"] or (title_of(encodable(text)) if role == "user" else "")
            connection.execute(
                "UPDATE conversations SET title = ?, updated_ms = ?, active_leaf = ? WHERE id = ?",
                (title, now, made.lastrowid, conversation),
            )
            return int(made.lastrowid or 0)

    def edit(self, message: int, text: str) -> int:
        """Add a changed copy of a message as its sibling, on a new branch, and make it the active leaf.
        Returns the copy; the old message keeps its answers."""
        with self._database.write() as connection:
            row = self._message_row(connection, message)
            return self.add(row["conversation"], row["parent"], row["role"], text)

    def set_leaf(self, conversation: int, leaf: int | None) -> None:
        """End the path shown at ``leaf`` (None: before the first message), so that what comes next is a new
        branch under it."""
        with self._database.write() as connection:
            if leaf is not None:
                self._message_row(connection, leaf)
            connection.execute("UPDATE conversations SET active_leaf = ? WHERE id = ?", (leaf, conversation))

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
            connection.execute("UPDATE messages SET check_plain_ms = ? WHERE id = ?", (plain_ms, message))

    def show_branch(self, message: int) -> int:
        """Show the branch that ``message`` is on, down to its newest leaf; returns that leaf."""
        with self._database.write() as connection:
            conversation = self._message_row(connection, message)["conversation"]
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
            row = self._message_row(connection, message)
            source = self._row(connection, row["conversation"])
            ids = [found.id for found in self.path(row["conversation"], message)]
            conversation = self.create(f"{source['title']} (fork)")
            parent: int | None = None
            for number in ids:
                parent = self._copy(connection, number, conversation, parent)
            connection.execute(
                "UPDATE conversations SET active_leaf = ?, forked_from = ? WHERE id = ?",
                (parent, message, conversation),
            )
            return conversation

    def rename(self, conversation: int, title: str) -> None:
        """Rename a conversation."""
        self._change(conversation, "title = ?", encodable(" ".join(title.split()))[:LONGEST_WORD])

    def pin(self, conversation: int, pinned: bool = True) -> None:
        """Pin a conversation to the top of the list, or unpin it."""
        self._change(conversation, "pinned = ?", int(pinned))

    def delete(self, conversation: int) -> None:
        """Hide a conversation from the list; ``restore`` brings it back."""
        self._change(conversation, "deleted_ms = ?", self.now_ms())

    def restore(self, conversation: int) -> None:
        """Undo ``delete``."""
        self._change(conversation, "deleted_ms = ?", None)

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

    def now_ms(self) -> int:
        """The time of day, in milliseconds since 1970."""
        return int(self._wall() * 1000)

    def _change(self, conversation: int, assignment: str, value: object) -> None:
        with self._database.write() as connection:
            self._row(connection, conversation)
            connection.execute(f"UPDATE conversations SET {assignment} WHERE id = ?", (value, conversation))

    def _copy(
        self, connection: sqlite3.Connection, message: int, conversation: int, parent: int | None
    ) -> int:
        """Copy one message. A reply that is still being written is copied as far as it is, as stopped."""
        source = self.message(message)
        made = connection.execute(
            f"INSERT INTO messages (conversation, parent, state, text, thinking, {_COPIED}) SELECT ?, ?, "
            f"CASE state WHEN 'streaming' THEN 'stopped' ELSE state END, ?, ?, {_COPIED} "
            "FROM messages WHERE id = ?",
            (conversation, parent, source.text, source.thinking, message),
        )
        connection.execute(
            "INSERT INTO steps (message, body) SELECT ?, body FROM steps WHERE message = ? ORDER BY id",
            (made.lastrowid, message),
        )
        return int(made.lastrowid or 0)

    def _row(self, connection: sqlite3.Connection, conversation: int) -> dict[str, Any]:
        row = connection.execute(
            "SELECT title, active_leaf FROM conversations WHERE id = ?", (conversation,)
        ).fetchone()
        if row is None:
            raise no_conversation(conversation)
        title, leaf = typed_row(row, (str, int | None))
        return {"title": title, "active_leaf": leaf}

    def _message_row(self, connection: sqlite3.Connection, message: int) -> dict[str, Any]:
        row = connection.execute(
            "SELECT conversation, parent, role FROM messages WHERE id = ?", (message,)
        ).fetchone()
        if row is None:
            raise StoreError(f"There is no message {message}.", "gone")
        conversation, parent, role = typed_row(row, (int, int | None, str))
        return {"conversation": conversation, "parent": parent, "role": role}

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

    def _belongs(self, connection: sqlite3.Connection, message: int, conversation: int) -> None:
        if self._message_row(connection, message)["conversation"] != conversation:
            raise StoreError(f"Message {message} is not in conversation {conversation}.", "gone")

    def _conversations(self, connection: sqlite3.Connection, rows: list[Any]) -> list[Conversation]:
        models: dict[int, list[str]] = {}
        marks = ", ".join(str(int(row[0])) for row in rows)
        for found in connection.execute(
            "SELECT m.conversation, o.name, o.path FROM messages m JOIN models o ON o.id = m.model "
            f"WHERE m.conversation IN ({marks}) GROUP BY m.conversation, o.id ORDER BY min(m.id)"
        ):
            conversation, name, path = typed_row(found, (int, str, str))
            shown = name or Path(path).stem
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
            for id_, title, made, updated, pinned, deleted, leaf, forked, messages, preview in (
                typed_row(row, _LIST_KINDS) for row in rows
            )
        ]

    def _messages(
        self, connection: sqlite3.Connection, clause: str, values: Iterable[object], want: int | None = None
    ) -> list[Message]:
        rows = connection.execute(f"{_MESSAGE} {clause}", tuple(values)).fetchall()
        if want is not None and not rows:
            raise StoreError(f"There is no message {want}.", "gone")
        return [_message(connection, row) for row in rows]


_IDENTITY = ("path", "name", "architecture", "quantisation", "size_bytes", "mtime_ns")
_MESSAGE_FIELDS = (
    *("id", "conversation", "parent", "role", "text", "state", "created_ms", "updated_ms", "drafter"),
    *("finish_reason", "detail", "tail", "tokens", "steps", "drafted", "judged", "accepted"),
    *("prompt_tokens", "reused_tokens", "prefill_ms", "decode_ms", "first_token_ms", "context_used", "seed"),
    *("load_plain_ms", "check_plain_ms", "thinking"),
)
_NO_INTEGERS: dict[str, Any] = {
    **dict.fromkeys(("role", "text", "state", "drafter", "detail", "tail", "thinking"), str),
    **dict.fromkeys(("prefill_ms", "decode_ms", "first_token_ms", "load_plain_ms", "check_plain_ms"), float),
    "parent": int | None,
    "finish_reason": str | None,
}
_IDENTITY_KINDS = (*[str | None] * 4, int | None, int | None)
_MESSAGE_KINDS = (
    *(_NO_INTEGERS.get(name, int) for name in _MESSAGE_FIELDS),
    *_IDENTITY_KINDS,
    *_IDENTITY_KINDS,
)
_LIST_KINDS = (int, str, int, int, int, *[int | None] * 3, int, str | None)
_OWN = ("id", "conversation", "parent", "text", "thinking", "state")
"""Fields in which a copy of a message differs."""
_COPIED = ", ".join(("model", "support", *(name for name in _MESSAGE_FIELDS if name not in _OWN)))
_LIST = f"""SELECT c.id, c.title, c.created_ms, c.updated_ms, c.pinned, c.deleted_ms, c.active_leaf,
    c.forked_from,
    (SELECT count(*) FROM messages m WHERE m.conversation = c.id),
    (SELECT substr(m.text, 1, {PREVIEW_LENGTH}) FROM messages m WHERE m.id = c.active_leaf)
    FROM conversations c"""
_MODEL_FILTER = """c.id IN (SELECT m.conversation FROM messages m JOIN models o ON o.id = m.model
    WHERE o.name LIKE ? ESCAPE '\\' OR o.path LIKE ? ESCAPE '\\')"""


def _columns(table: str, names: Iterable[str] = _IDENTITY) -> str:
    return ", ".join(f"{table}.{name}" for name in names)


_MESSAGE = f"""SELECT {_columns("m", _MESSAGE_FIELDS)}, {_columns("o")}, {_columns("s")}
    FROM messages m LEFT JOIN models o ON o.id = m.model LEFT JOIN models s ON s.id = m.support"""


def _message(connection: sqlite3.Connection, row: Any) -> Message:
    typed_row(row, _MESSAGE_KINDS)
    id_, role, state = row[0], row[3], row[5]
    if role not in ROLES or state not in STATES:
        raise damaged_value()
    size = len(_IDENTITY)
    model, support = row[-2 * size : -size], row[-size:]
    values = dict(zip(_MESSAGE_FIELDS, row))
    if state == "streaming":
        values["text"], values["thinking"] = read_texts(connection, id_)
    values["created_ms"], values["updated_ms"] = map(
        time_of_day, (values["created_ms"], values["updated_ms"])
    )
    values["model"] = ModelIdentity(*model) if model[0] is not None else None
    values["support"] = ModelIdentity(*support) if support[0] is not None else None
    return Message(**values)


def settle_text(
    connection: sqlite3.Connection, message: int, tail: str = "", thinking_tail: str = ""
) -> None:
    """Store the text and thinking of a running reply's steps with its message, where search finds them."""
    text, thinking = read_texts(connection, message)
    connection.execute(
        "UPDATE messages SET text = ?, thinking = ? WHERE id = ?",
        (text + encodable(tail), thinking + encodable(thinking_tail), message),
    )


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


def escape_like(text: str) -> str:
    """``text`` escaped for a literal search by LIKE with the escape character backslash."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
