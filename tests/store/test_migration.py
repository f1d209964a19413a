"""A database of an earlier version becomes a current one, whole or not at all.

rows_v1.sql and rows_v6.sql hold two conversations as those versions wrote them, steps in packed columns, and
the files beside them what those versions exported of each.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from ds4chat.engine.events import FullRow, Tuning
from ds4chat.store import StoreError, open_store
from ds4chat.store import database as databases
from ds4chat.store.export import chunks
from ds4chat.store.schema import APPLICATION_ID, STEPS, VERSION

HERE = Path(__file__).parent
FIRST = (HERE / "schema_v1.sql").read_text(encoding="utf-8")


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


def test_a_database_of_the_first_version_is_read_and_can_be_searched(old: Path) -> None:
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
        assert isinstance(statement, str)
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


def of_version(version: int, path: Path) -> sqlite3.Connection:
    """A database of an earlier version, with the rows that such a one wrote."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in (statement for step in STEPS[:version] for statement in step):
        assert isinstance(statement, str)
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version}")
    rows = HERE / ("rows_v6.sql" if version == 6 else "rows_v1.sql")
    connection.executescript(rows.read_text(encoding="utf-8"))
    return connection


def exported(version: int, conversation: int, form: str) -> str:
    """What the old version exported."""
    name = "rows_v6" if version == 6 else "rows_v1"
    return (HERE / f"{name}.{conversation}.{form}").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", range(1, 7))
def test_rows_of_earlier_versions_are_exported_as_those_versions_did(tmp_path: Path, version: int) -> None:
    """Tokens with origins and thinking, steps with tunings and times, judged rows, several writes a reply."""
    of_version(version, tmp_path / "c.db").close()
    store = open_store(tmp_path / "c.db")
    for conversation in (1, 2):
        before = json.loads(exported(version, conversation, "json"))
        now = json.loads("".join(chunks(store, conversation, "json")))
        for message in (*before["messages"], *now["messages"]):
            # The engine numbered replies by the session; nobody reads that number.
            for step in message["steps"]:
                del step["reply"]
            if message["id"] == 11:
                # What was being written is settled, its thinking where this version kept it.
                message.pop("detail", None)
                assert message.pop("state") in ("stopped", "crashed")
                if version < 6:
                    message["text"] = message.pop("thinking", "") + message["text"]
        assert now == before
        lines = exported(version, conversation, "jsonl").splitlines()
        assert list(map(json.loads, chunks(store, conversation, "jsonl"))) == list(map(json.loads, lines))
    reply = store.conversations.message(3)
    assert (reply.steps, reply.tokens, reply.judged, reply.accepted) == (6, 12, 9, 6)
    steps = store.steps(3)
    assert [step.tuning for step in steps] == [
        Tuning(depth=3),
        Tuning(depth="auto", margin=0.5, gate=1.5, temp=0.7, seed=42),
        Tuning(depth=3),
        Tuning(depth=3, strict=True, full_logits=True),
        Tuning(depth=0),
        Tuning(depth=3),
    ]
    assert [step.baseline for step in steps] == [version == 6 and step.index == 5 for step in steps]
    assert [token.origin for token in steps[3].tokens] == ["plain", "bonus"]
    assert steps[0].judged[0].full == FullRow(0.1, 0.9, 1.25, ((7, "é", 0.9), (8, "", 0.05)))
    assert store.conversations.message(11).state == "crashed"
    assert [hit.message for hit in store.search("t002")] == [11]
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "batches SET steps = substr(steps, 2)",
        "batches SET strings = '[]'",
        "batches SET strings = 'nonsense'",
        "batches SET judged = x'ff'",
        "batches SET tokens = 7",
        "batches SET full = zeroblob(96)",
        "tunings SET body = 'nonsense'",
        "tunings SET body = x'ff'",
        "messages SET text = x'ff'",
    ],
)
def test_damaged_rows_are_reported_when_read_and_the_others_are_converted(
    tmp_path: Path, damage: str
) -> None:
    connection = of_version(6, tmp_path / "c.db")
    where = "id = 2" if damage.startswith("tunings") else "id = 3" if "text" in damage else "message = 3"
    connection.execute(f"UPDATE {damage} WHERE {where}")
    connection.close()
    store = open_store(tmp_path / "c.db")
    with pytest.raises(StoreError, match="damaged") as error:
        store.steps(3)
    assert error.value.kind == "corrupt"
    assert store.steps(5) == store.steps(10) and len(store.steps(5)) == 1
    store.close()
