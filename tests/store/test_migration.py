"""A database of the first version becomes a current one, whole or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ds4chat.store import StoreError, open_store
from ds4chat.store import database as databases
from ds4chat.store.schema import STEPS, VERSION

FIRST = (Path(__file__).parent / "schema_v1.sql").read_text(encoding="utf-8")


def shape(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Every object of a schema, its definition without blanks and comments."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {
        (name, "".join("".join(line.partition("--")[0] for line in sql.splitlines(True)).split()))
        for name, sql in found
    }


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "c.db"
    connection = sqlite3.connect(path)
    connection.executescript(FIRST)
    connection.close()
    return path


def test_what_was_in_the_first_version_is_there_and_can_be_searched(old: Path) -> None:
    store = open_store(old)
    assert [(m.role, m.text) for m in store.conversations.path(7)] == [
        ("user", "What was there before?"),
        ("assistant", "A café without search."),
    ]
    facts = store.conversations.get(7)
    assert (facts.title, facts.pinned, facts.models) == ("Old times", True, ("Tiny",))
    assert [hit.message for hit in store.search("cafe")] == [21]
    # The reply that its writer left behind is settled by the same start.
    assert [(m.text, m.state) for m in store.conversations.messages(7)][-1] == ("Half a sentence", "crashed")
    assert [hit.message for hit in store.search("sentence")] == [22]
    store.history.add_prompt("new table")
    assert store.history.prompts() == ["new table"]
    store.close()


def test_a_migrated_database_has_the_shape_of_a_new_one(old: Path, tmp_path: Path) -> None:
    shapes = []
    for path in (old, tmp_path / "new.db"):
        open_store(path).close()
        connection = sqlite3.connect(path)
        shapes.append(shape(connection))
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
    assert shapes[0] == shapes[1]


def test_the_first_step_still_makes_the_first_version() -> None:
    """A step that was published never changes: databases made by it exist."""
    kept, made = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    kept.executescript(FIRST)
    for statement in STEPS[0]:
        made.execute(statement)
    assert shape(kept) == shape(made)


def test_a_step_that_fails_leaves_the_old_version(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "STEPS", (*STEPS, ("CREATE TABLE extra (x)", "CREATE TABLE extra (x)")))
    monkeypatch.setattr(databases, "VERSION", VERSION + 1)
    with pytest.raises(StoreError):
        open_store(old)
    connection = sqlite3.connect(old)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    names = {name for name, _ in shape(connection)}
    assert "search" not in names and "extra" not in names and "messages" in names
    connection.close()


def test_an_old_database_that_cannot_be_written_asks_for_a_folder_that_can(old: Path) -> None:
    with pytest.raises(StoreError, match="older version"):
        open_store(old, read_only=True)
