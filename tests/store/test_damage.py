"""A database that is damaged, or that somebody else wrote into: a sentence, whatever is asked of it.

What is damaged is not written to, and what is readable is read.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kits.stored_replies import ended, keep, step

from ds4chat.commands.main import main
from ds4chat.store import FILE_NAME, ModelIdentity, Store, StoreError, open_or_in_memory, open_store
from ds4chat.store.entities import LATEST_MS
from ds4chat.store.export import chunks
from ds4chat.store.importing import import_json
from ds4chat.store.recording import Request
from ds4chat.tui.history.rows import when

TABLES = {
    "models": ("path", "name", "size_bytes"),
    "conversations": ("title", "created_ms", "updated_ms", "pinned", "deleted_ms", "active_leaf"),
    "messages": (
        *("parent", "role", "state", "text", "created_ms", "updated_ms", "owner", "model", "drafter"),
        *("finish_reason", "detail", "tail", "tokens", "judged", "prefill_ms", "context_used", "seed"),
        "thinking",
    ),
    "steps": ("message", "body"),
    "prompts": ("text",),
    "kept": ("value",),
    "recent_models": ("path", "support", "lookup", "used_ms"),
}
VALUES = ("x", b"\xff\xfe", b"", -1, 2**63 - 1, -(2**63), 1.5, "9" * 50)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with something in every table."""
    path = tmp_path_factory.mktemp("whole") / FILE_NAME
    store = open_store(path)
    for number in range(6):
        recorder = store.record(
            Request(f"prompt {number} " + "lorem ipsum " * 50, model=ModelIdentity("/m/a.gguf", "Alpha"))
        )
        for index in range(10):
            recorder.append(step(index))
        recorder.flush()
        if number:
            keep(recorder, ended())
    store.history.add_prompt("once")
    store.history.keep_draft("half a")
    store.history.used_model("/m/a.gguf")
    store.close()
    return path.read_bytes()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))
    return tmp_path


def everything(store: Store) -> Iterator[Callable[[], object]]:
    """All that is read of a store, one thing after the other."""
    conversations = store.conversations
    yield store.history.prompts
    yield store.history.draft
    yield store.history.recent_models
    yield conversations.listed
    yield conversations.models
    yield lambda: conversations.listed(model="alp")
    yield lambda: store.search("prompt")
    yield lambda: store.search('"+"')
    for number in (1, 3):
        yield lambda number=number: conversations.path(number)
        yield lambda number=number: conversations.tree(number)
        yield lambda number=number: conversations.messages(number)
        yield lambda number=number: store.steps(2 * number)
        yield lambda number=number: store.judged_rows(number)
        for form in ("md", "json", "jsonl"):
            yield lambda number=number, form=form: list(chunks(store, number, form))
    yield lambda: conversations.rename(1, "another")
    yield lambda: conversations.fork(2)
    yield lambda: conversations.show_branch(3)
    yield lambda: conversations.under_system(1, 2, "be brief")


def sentences(path: Path) -> list[str]:
    """What a damaged database says to all that is asked of it. Anything but a StoreError is raised."""
    said = []
    try:
        store = open_store(path)
    except StoreError as error:
        return [str(error)]
    for ask in everything(store):
        try:
            ask()
        except StoreError as error:
            said.append(str(error))
    with suppress(sqlite3.Error):
        store.close()
    assert all(sentence.endswith(".") for sentence in said)
    return said


def test_a_whole_database_yields_no_error(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(whole)
    assert sentences(path) == []


@pytest.mark.parametrize("seed", range(60))
def test_changed_bytes_anywhere_yield_sentences(whole: bytes, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(whole)
    for _ in range(chance.choice((1, 3, 10, 60))):
        # Behind what says that it is a database at all.
        at, size = chance.randrange(100, len(data) - 64), chance.choice((1, 4, 64))
        data[at : at + size] = chance.randbytes(size)
    path = tmp_path / FILE_NAME
    path.write_bytes(data)
    sentences(path)


def test_a_schema_that_is_not_text_is_damage_and_the_chat_starts_in_memory(
    whole: bytes, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite quotes it in its message, which is no UTF-8 then."""
    path = home / FILE_NAME
    data = whole.replace(b"CREATE TABLE models", b"CREATE TABLE \xbe\xff  \xfe ")
    assert data != whole
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged") as error:
        open_store(path)
    assert error.value.kind == "corrupt"
    store = open_or_in_memory(path)
    assert store.path is None and "is damaged" in store.trouble
    store.close()
    assert main(["logs", "list"]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert path.read_bytes() == data


@pytest.mark.parametrize("table", TABLES)
def test_values_of_types_that_were_never_written_yield_sentences(
    whole: bytes, tmp_path: Path, table: str
) -> None:
    path = tmp_path / FILE_NAME
    for place, column in enumerate(TABLES[table]):
        for value in VALUES[place % 2 :: 2]:
            path.write_bytes(whole)
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA ignore_check_constraints = ON")
            try:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid % 2", (value,))
                connection.commit()
            except sqlite3.Error:
                continue  # not even SQLite takes it
            finally:
                connection.close()
            sentences(path)


@pytest.mark.parametrize(
    ("column", "value"), [("updated_ms", "x"), ("created_ms", b"\xff"), ("title", b"\xff\xfe")]
)
def test_damage_is_reported_on_the_command_line_without_a_crash(
    whole: bytes, home: Path, capsys: pytest.CaptureFixture[str], column: str, value: object
) -> None:
    path = home / FILE_NAME
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE conversations SET {column} = ? WHERE id = 3", (value,))
    connection.commit()
    connection.close()
    assert main(["logs", "list"]) == 1
    assert "has a value that ds4chat never wrote" in capsys.readouterr().err
    assert not (home / "crash.log").exists()
    # The others can still be read.
    assert main(["logs", "show", "1"]) == 0
    assert "prompt 0" in capsys.readouterr().out


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_times_beyond_the_calendar_are_clamped(
    whole: bytes, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        path = home / FILE_NAME
        path.write_bytes(whole)
        connection = sqlite3.connect(path)
        for table in ("conversations", "messages"):
            connection.execute(f"UPDATE {table} SET created_ms = ?, updated_ms = ?", (-(2**60), 2**62))
        connection.commit()
        connection.close()
        assert main(["logs", "list"]) == 0
        assert {line.split()[1][:4] for line in capsys.readouterr().out.splitlines()} == {"9999"}
        assert main(["logs", "show", "2"]) == 0
        assert main(["logs", "export", "2", "--format", "md"]) == 0
        assert 'created: "1970-01-01T00:00:00Z"' in capsys.readouterr().out
        store = open_store(path)
        for found in store.conversations.listed():
            assert when(found.updated_ms, 0).startswith("9999-")
        # The same from a file that somebody made: the latest that is taken can be shown, and exported again.
        (document,) = ["".join(chunks(store, 2, "json"))]
        latest = json.loads(document)
        latest["updated_ms"] = LATEST_MS
        made = import_json(store, json.dumps(latest).encode())
        assert when(store.conversations.get(made).updated_ms, 0).startswith("9999-")
        latest["updated_ms"] = LATEST_MS + 1
        with pytest.raises(StoreError, match="updated_ms"):
            import_json(store, json.dumps(latest).encode())
        store.close()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_steps_that_are_not_utf_8_are_reported_as_an_error_of_the_file() -> None:
    store = Store.in_memory()
    conversation = store.conversations.create("t")
    recorder = store.record(Request("x", conversation=conversation))
    keep(recorder, step(0), ended())
    document = "".join(chunks(store, conversation, "json")).encode()
    broken = document.replace(b"nextn-support", b"nextn-\xff\xffpport")
    assert broken != document
    with pytest.raises(StoreError, match=r"^The JSON cannot be imported") as error:
        import_json(store, broken)
    assert error.value.kind == "input"
    assert len(store.conversations.listed()) == 1


def test_a_model_name_that_cannot_be_encoded_finds_nothing(
    whole: bytes, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / FILE_NAME).write_bytes(whole)
    assert main(["logs", "list", "--model", "\udcff"]) == 0
    assert "no stored conversation has an answer" in capsys.readouterr().err
    assert main(["logs", "search", "prompt", "--model", "\udcff"]) == 0
    assert "nothing was found" in capsys.readouterr().err
