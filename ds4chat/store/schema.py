"""The database's schema: one step per version, applied once and never changed afterwards.

``PRAGMA user_version`` is the number of steps applied. To change the schema, append a step.

A reply's steps are stored encoded (steps.py says how), one row for each write (about one a second), because a
long conversation has hundreds of thousands of them and they are always read together. What queries ask for is
in ordinary columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from ds4chat.store.migrations import steps_from_columns

APPLICATION_ID = 0x64733463
"""Marks the file as ours ("ds4c"), so that no other program's database is ever migrated."""

CONVERSATIONS = (
    """CREATE TABLE models (
        id INTEGER PRIMARY KEY,
        path TEXT NOT NULL,
        name TEXT NOT NULL,
        architecture TEXT NOT NULL,
        quantisation TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        UNIQUE (path, name, architecture, quantisation, size_bytes, mtime_ns)
    )""",
    # AUTOINCREMENT: the number of a deleted conversation or message is never given to another.
    """CREATE TABLE conversations (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        title TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        pinned INTEGER NOT NULL DEFAULT 0,
        deleted_ms INTEGER,
        active_leaf INTEGER REFERENCES messages (id) ON DELETE SET NULL,
        forked_from INTEGER REFERENCES messages (id) ON DELETE SET NULL
    )""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        -- Deferred, not cascading: a cascade along a path would be as deep as the path is long.
        parent INTEGER REFERENCES messages (id) DEFERRABLE INITIALLY DEFERRED,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        state TEXT NOT NULL CHECK (state IN ('complete', 'streaming', 'stopped', 'failed', 'crashed')),
        text TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        owner TEXT,
        model INTEGER REFERENCES models (id),
        support INTEGER REFERENCES models (id),
        drafter TEXT NOT NULL DEFAULT '',
        finish_reason TEXT,
        detail TEXT NOT NULL DEFAULT '',
        tail TEXT NOT NULL DEFAULT '',
        tokens INTEGER NOT NULL DEFAULT 0,
        steps INTEGER NOT NULL DEFAULT 0,
        drafted INTEGER NOT NULL DEFAULT 0,
        judged INTEGER NOT NULL DEFAULT 0,
        accepted INTEGER NOT NULL DEFAULT 0,
        prompt_tokens INTEGER NOT NULL DEFAULT 0,
        reused_tokens INTEGER NOT NULL DEFAULT 0,
        prefill_ms REAL NOT NULL DEFAULT 0,
        decode_ms REAL NOT NULL DEFAULT 0,
        first_token_ms REAL NOT NULL DEFAULT 0,
        context_used INTEGER NOT NULL DEFAULT 0,
        seed INTEGER NOT NULL DEFAULT 0
    )""",
    "CREATE INDEX messages_of_conversation ON messages (conversation)",
    "CREATE INDEX messages_of_parent ON messages (parent)",
    "CREATE INDEX messages_of_model ON messages (model)",
    "CREATE INDEX messages_streaming ON messages (id) WHERE state = 'streaming'",
    "CREATE INDEX conversations_leaf ON conversations (active_leaf)",
    "CREATE INDEX conversations_fork ON conversations (forked_from)",
    # The text of a running reply, piece by piece; it moves into messages.text when the reply ends, so that a
    # long text is neither rewritten nor indexed every second.
    """CREATE TABLE pieces (
        message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (message, number)
    )""",
    "CREATE TABLE tunings (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE)",
    """CREATE TABLE batches (
        id INTEGER PRIMARY KEY,
        message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        tokens BLOB NOT NULL,
        steps BLOB NOT NULL,
        judged BLOB NOT NULL,
        full BLOB NOT NULL,
        strings TEXT NOT NULL,
        UNIQUE (message, number)
    )""",
)

SEARCH = (
    """CREATE VIRTUAL TABLE search USING fts5 (
        text, content = 'messages', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
    )""",
    """CREATE TRIGGER search_insert AFTER INSERT ON messages BEGIN
        INSERT INTO search (rowid, text) VALUES (new.id, new.text);
    END""",
    """CREATE TRIGGER search_delete AFTER DELETE ON messages BEGIN
        INSERT INTO search (search, rowid, text) VALUES ('delete', old.id, old.text);
    END""",
    """CREATE TRIGGER search_update AFTER UPDATE OF text ON messages BEGIN
        INSERT INTO search (search, rowid, text) VALUES ('delete', old.id, old.text);
        INSERT INTO search (rowid, text) VALUES (new.id, new.text);
    END""",
    "INSERT INTO search (search) VALUES ('rebuild')",
)

HISTORY = (
    """CREATE TABLE prompts (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        text TEXT NOT NULL,
        created_ms INTEGER NOT NULL
    )""",
    "CREATE TABLE kept (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE recent_models (
        path TEXT NOT NULL,
        support TEXT NOT NULL,
        lookup INTEGER NOT NULL,
        name TEXT NOT NULL,
        used_ms INTEGER NOT NULL,
        PRIMARY KEY (path, support, lookup)
    )""",
)

PREFIXES = (
    # Every word is searched for as a prefix. Without an index of prefixes, the first letters of a search have
    # to merge the lists of every word that begins with them, which are thousands.
    "DROP TABLE search",
    """CREATE VIRTUAL TABLE search USING fts5 (
        text, content = 'messages', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2',
        prefix = '1 2'
    )""",
    "INSERT INTO search (search) VALUES ('rebuild')",
)

THINKING = (
    # Of a reply that was stored before, the text holds the thinking, too, and this is empty.
    "ALTER TABLE messages ADD COLUMN thinking TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE pieces ADD COLUMN thinking TEXT NOT NULL DEFAULT ''",
    "DROP TABLE search",
    """CREATE VIRTUAL TABLE search USING fts5 (
        text, thinking, content = 'messages', content_rowid = 'id',
        tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2'
    )""",
    "DROP TRIGGER search_insert",
    "DROP TRIGGER search_delete",
    "DROP TRIGGER search_update",
    """CREATE TRIGGER search_insert AFTER INSERT ON messages BEGIN
        INSERT INTO search (rowid, text, thinking) VALUES (new.id, new.text, new.thinking);
    END""",
    """CREATE TRIGGER search_delete AFTER DELETE ON messages BEGIN
        INSERT INTO search (search, rowid, text, thinking)
        VALUES ('delete', old.id, old.text, old.thinking);
    END""",
    """CREATE TRIGGER search_update AFTER UPDATE OF text, thinking ON messages BEGIN
        INSERT INTO search (search, rowid, text, thinking)
        VALUES ('delete', old.id, old.text, old.thinking);
        INSERT INTO search (rowid, text, thinking) VALUES (new.id, new.text, new.thinking);
    END""",
    "INSERT INTO search (search) VALUES ('rebuild')",
)

BASELINES = (
    # What plain decoding takes for a reply is worked out from its steps, and from these two.
    "ALTER TABLE messages ADD COLUMN load_plain_ms REAL NOT NULL DEFAULT 0",
    "ALTER TABLE messages ADD COLUMN check_plain_ms REAL NOT NULL DEFAULT 0",
)

_JOINED = """(SELECT coalesce(group_concat({0}, ''), '') FROM
    (SELECT {0} FROM pieces WHERE message = messages.id ORDER BY number))"""
ENCODED_STEPS = (
    # A reply that is being written cannot be continued: its writer only knows the old tables.
    f"UPDATE messages SET text = text || {_JOINED.format('text')}, "
    f"thinking = thinking || {_JOINED.format('thinking')} WHERE id IN (SELECT message FROM pieces)",
    "UPDATE messages SET state = 'crashed', owner = NULL, "
    "detail = 'ds4chat ended while this reply was written.' WHERE state = 'streaming'",
    """CREATE TABLE steps (
        id INTEGER PRIMARY KEY,
        message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        body BLOB NOT NULL
    )""",
    "CREATE INDEX steps_of_message ON steps (message)",
    steps_from_columns,
    "DROP TABLE batches",
    "DROP TABLE tunings",
    "DROP TABLE pieces",
)

Statement = str | Callable[[sqlite3.Connection], None]

STEPS: tuple[tuple[Statement, ...], ...] = (
    CONVERSATIONS,
    SEARCH,
    HISTORY,
    PREFIXES,
    THINKING,
    BASELINES,
    ENCODED_STEPS,
)
"""The statements that lead from version i to version i + 1; a function where SQL is not enough."""

VERSION = len(STEPS)
