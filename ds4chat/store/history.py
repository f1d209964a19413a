"""What survives a restart besides the conversations: prompts, the unsent text, recent models."""

from __future__ import annotations

from dataclasses import dataclass

from ds4chat.store.database import Database
from ds4chat.store.rows import insert, typed
from ds4chat.text import encodable

MOST_PROMPTS = 1000
MOST_MODELS = 20

_DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class RecentModel:
    """A model that was loaded, with its drafter."""

    path: str
    support: str
    """Path of the support GGUF, "embedded", or "" for none."""
    lookup: bool
    name: str


class History:
    """Small things for the next session. Every method may raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def prompts(self) -> list[str]:
        """Prompts sent, of all sessions, oldest first; at most MOST_PROMPTS."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT text FROM prompts ORDER BY id").fetchall()
            return [text for (text,) in typed(rows, list[tuple[str]])]

    def add_prompt(self, text: str) -> None:
        """Remember a prompt, unless it equals the last one."""
        text = encodable(text)
        with self._database.write(durable=False) as connection:
            last = connection.execute("SELECT text FROM prompts ORDER BY id DESC LIMIT 1").fetchone()
            if not text.strip() or (last and last[0] == text):
                return
            insert(connection, "prompts", text=text, created_ms=self._database.now_ms())
            connection.execute(
                "DELETE FROM prompts WHERE id <= (SELECT id FROM prompts ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (MOST_PROMPTS,),
            )

    def draft(self) -> str:
        """The last unsent text; empty without one."""
        with self._database.read() as connection:
            row = connection.execute("SELECT value FROM kept WHERE name = ?", (_DRAFT,)).fetchone()
            return typed(row, tuple[str])[0] if row else ""

    def keep_draft(self, text: str) -> None:
        """Store the unsent text for the next session, replacing the last one."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO kept (name, value) VALUES (?, ?)",
                (_DRAFT, encodable(text)),
            )

    def used_model(self, path: str, support: str = "", lookup: bool = False, name: str = "") -> None:
        """Remember that a model was loaded."""
        with self._database.write(durable=False) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO recent_models (path, support, lookup, name, used_ms) "
                "VALUES (?, ?, ?, ?, ?)",
                (encodable(path), encodable(support), int(lookup), encodable(name), self._database.now_ms()),
            )
            connection.execute(
                "DELETE FROM recent_models WHERE rowid NOT IN "
                "(SELECT rowid FROM recent_models ORDER BY used_ms DESC, rowid DESC LIMIT ?)",
                (MOST_MODELS,),
            )

    def recent_models(self) -> list[RecentModel]:
        """Recently loaded models, the latest first; at most MOST_MODELS."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT path, support, lookup, name FROM recent_models ORDER BY used_ms DESC, rowid DESC"
            ).fetchall()
            return [
                RecentModel(path, support, bool(lookup), name)
                for path, support, lookup, name in typed(rows, list[tuple[str, str, int, str]])
            ]
