"""Export and import: what goes out comes back the same, and what comes in is checked whole."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.stored_replies import ended, keep, step, text

from ds4chat.analysis.export import COLUMNS, records
from ds4chat.engine.events import Tuning
from ds4chat.store import ModelIdentity, Store, StoreError
from ds4chat.store import document as documents
from ds4chat.store.export import chunks, export
from ds4chat.store.importing import import_file, import_json
from ds4chat.store.recording import Request
from ds4chat.text import one_line

MODEL = ModelIdentity("/m/tiny.gguf", "Tiny", "qwen3", "Q4_0", 4, 5)
SUPPORT = ModelIdentity("/m/nextn.gguf", "nextn")


def filled(store: Store) -> int:
    """A conversation with branches, two kinds of end, and two tunings."""
    first = store.record(
        Request("Count!", system="Be brief.", model=MODEL, support=SUPPORT, drafter="nextn-support"),
    )
    keep(first, step(0, thinking=True))
    keep(
        first,
        step(1, tuning=Tuning(depth="auto", margin=0.5)),
        ended("length", tail="…", detail="The limit was reached."),
    )
    second = store.record(Request('more "quotes" \x1b[31m\u202e\0', parent=first.message, model=MODEL))
    keep(second, step(0), ended("cancelled"))
    again = store.record(Request(None, parent=second.prompt))
    keep(again, ended())
    assert first.conversation is not None and second.message is not None
    store.conversations.show_branch(second.message)
    store.conversations.pin(first.conversation)
    store.conversations.rename(first.conversation, 'A "title": #1')
    return first.conversation


@pytest.fixture
def store() -> Store:
    return Store.in_memory(lambda: 1_700_000_000.5)


def exported(store: Store, conversation: int, form: Any = "json") -> str:
    return "".join(chunks(store, conversation, form))


def without_numbers(store: Store, conversation: int) -> list[Any]:
    """Everything that is known of a conversation, numbers of messages as places in the list."""
    messages = store.conversations.messages(conversation)
    place = {message.id: index for index, message in enumerate(messages)}
    facts = store.conversations.get(conversation)
    return [
        dataclasses.replace(facts, id=0, active_leaf=place.get(facts.active_leaf or 0)),
        *(
            (
                dataclasses.replace(m, id=0, conversation=0, parent=place.get(m.parent or 0)),
                store.steps(m.id),
            )
            for m in messages
        ),
    ]


def test_an_import_is_equal_to_what_was_exported(store: Store) -> None:
    conversation = filled(store)
    document = exported(store, conversation)
    other = Store.in_memory()
    imported = import_json(other, document.encode())
    assert without_numbers(other, imported) == without_numbers(store, conversation)
    assert [hit.conversation for hit in other.search("t001")] == [imported]
    # And it is exported as the same document, but for the numbers.
    again = Store.in_memory()
    import_json(again, document.encode())
    assert exported(again, 1) == exported(other, imported)


def test_an_import_is_a_new_conversation(store: Store) -> None:
    conversation = filled(store)
    before = without_numbers(store, conversation)
    imported = import_json(store, exported(store, conversation).encode())
    assert imported != conversation
    assert without_numbers(store, conversation) == before == without_numbers(store, imported)


def test_a_reply_of_thousands_of_steps_comes_back(store: Store) -> None:
    recorder = store.record(Request("x"))
    steps = [dataclasses.replace(step(index % 1000), index=index) for index in range(2500)]
    keep(recorder, *steps, ended())
    imported = import_json(store, exported(store, recorder.conversation).encode())
    leaf = store.conversations.get(imported).active_leaf
    assert leaf is not None and store.steps(leaf) == steps


def test_the_json_has_no_character_that_controls_a_terminal(store: Store) -> None:
    document = exported(store, filled(store))
    assert all(char.isprintable() or char == "\n" for char in document)
    assert json.loads(document)["messages"][3]["text"] == 'more "quotes" \x1b[31m\u202e\0'


def test_a_running_reply_is_exported_as_far_as_it_is(store: Store) -> None:
    recorder = store.record(Request("x"))
    keep(recorder, step(0))
    imported = import_json(store, exported(store, recorder.conversation).encode())
    reply = store.conversations.path(imported)[-1]
    assert (reply.state, reply.text) == ("stopped", text([step(0)]))


def test_markdown_has_front_matter_and_the_path_shown(store: Store) -> None:
    lines = exported(store, filled(store), "md").split("\n")
    assert lines[:11] == [
        "---",
        'title: "A \\"title\\": #1"',
        "conversation: 1",
        'created: "2023-11-14T22:13:20Z"',
        'updated: "2023-11-14T22:13:20Z"',
        'models: ["Tiny"]',
        "messages: 5",
        "tokens: 9",
        "drafts_judged: 9",
        "drafts_accepted: 6",
        "---",
    ]
    headings = [line for line in lines if line.startswith("## ")]
    # The second step of the first reply was judged with a margin.
    assert headings == [
        "## System",
        "## User",
        "## Assistant (Tiny), approximate",
        "## User",
        "## Assistant (Tiny)",
    ]
    body = "\n".join(lines)
    assert "<details><summary>Thinking</summary>\n\nt000" in body
    assert "\nt001 🙂é\n\t~…\n" in body
    assert "*(stopped)*" in body


def test_judged_drafts_are_one_object_per_line(store: Store) -> None:
    conversation = filled(store)
    lines = [json.loads(line) for line in exported(store, conversation, "jsonl").splitlines()]
    assert len(lines) == 9
    first, third = lines[0], lines[2]
    assert (first["step"], first["position"], first["token"], first["by"]) == (0, 1, 0, "match")
    assert (first["p_target"], first["draft_gap"], first["total_ms"]) == (0.9, 1.5, 3.875)
    assert (lines[1]["draft_gap"], lines[1]["entropy"]) == (None, None)
    assert (third["accepted"], third["target_text"], third["ratio"]) == (False, "é", 0.25)
    assert [line["margin"] for line in lines] == [1.0] * 3 + [0.5] * 3 + [1.0] * 3
    assert len({line["message"] for line in lines}) == 2


def test_both_exports_of_judged_drafts_have_the_same_fields(store: Store) -> None:
    conversation = filled(store)
    stored = [json.loads(line) for line in exported(store, conversation, "jsonl").splitlines()]
    explored = list(records(store.judged_rows(conversation)))
    assert explored and all(tuple(line) == COLUMNS for line in explored)
    for line in stored:
        assert line.pop("conversation") == conversation
        line["reply"] = line.pop("message")
    assert stored == explored


# ---------------------------------------------------------------------------------------- files


def test_an_exported_file_is_private_and_replaces_another_only_on_request(
    store: Store, tmp_path: Path
) -> None:
    conversation = filled(store)
    path = tmp_path / "talk.json"
    export(store, conversation, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text(encoding="utf-8") == exported(store, conversation)
    path.write_text("mine")
    with pytest.raises(StoreError, match="exists already"):
        export(store, conversation, path)
    assert path.read_text() == "mine"
    export(store, conversation, path, overwrite=True)
    assert json.loads(path.read_text())["title"] == 'A "title": #1'
    assert os.listdir(tmp_path) == ["talk.json"]


def test_the_umask_may_take_away_more(store: Store, tmp_path: Path) -> None:
    old = os.umask(0o277)
    try:
        export(store, filled(store), tmp_path / "talk.md")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "talk.md").stat().st_mode) == 0o400


def test_a_link_is_not_followed_to_a_file_that_is_not_there(store: Store, tmp_path: Path) -> None:
    (tmp_path / "talk.md").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="exists already"):
        export(store, filled(store), tmp_path / "talk.md")
    export(store, 1, tmp_path / "talk.md", overwrite=True)
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "talk.md").is_symlink()


@pytest.mark.parametrize(
    ("name", "match"),
    [("talk", "chooses the form"), ("", "chooses the form|is a folder"), ("no/talk.md", "no such file")],
)
def test_a_place_that_cannot_be_written_is_a_sentence(
    store: Store, tmp_path: Path, name: str, match: str
) -> None:
    conversation = filled(store)
    with pytest.raises(StoreError, match=match):
        export(store, conversation, tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(store: Store, tmp_path: Path) -> None:
    conversation = filled(store)
    path = tmp_path / "talk.json"
    path.write_text("mine")
    with store.database.write() as connection:
        connection.execute("UPDATE steps SET body = x'00' WHERE id = (SELECT max(id) FROM steps)")
    with pytest.raises(StoreError, match="damaged"):
        export(store, conversation, path, overwrite=True)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["talk.json"]


# ---------------------------------------------------------------------------------------- hostile JSON


def good() -> dict[str, Any]:
    made = Store.in_memory(lambda: 1_700_000_000.5)
    return json.loads(exported(made, filled(made)))


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = good()
    change(document)
    return json.dumps(document).encode()


def first_reply(document: dict[str, Any]) -> dict[str, Any]:
    return document["messages"][2]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d.update(format="other"), "not a conversation that ds4chat exported"),
        (lambda d: d.pop("format"), "not a conversation that ds4chat exported"),
        (lambda d: d.update(version=3), "newer version"),
        (lambda d: d.update(version=-1), "version"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d.pop("title"), "title"),
        (lambda d: d.update(title="x" * 5000), "title"),
        (lambda d: d.update(created_ms=-1), "created_ms"),
        (lambda d: d.update(created_ms=10**16), "created_ms"),
        (lambda d: d.update(active=999), "active message 999"),
        (lambda d: d["messages"].append(dict(d["messages"][0])), "two messages have the number"),
        (lambda d: d["messages"].reverse(), "comes before its parent"),
        (lambda d: d["messages"][0].update(parent=1), "comes before its parent"),
        (lambda d: d["messages"][0].update(role="tool"), "role"),
        (lambda d: d["messages"][0].update(state="streaming"), "state"),
        (lambda d: d["messages"][0].update(id=-1), "id"),
        (lambda d: d["messages"][0].update(id=2**70), "id"),
        (lambda d: d["messages"][0].update(text=7), "text"),
        (lambda d: first_reply(d).update(model=5), "names model 5"),
        (lambda d: first_reply(d).update(seed=2**64), "seed"),
        (lambda d: first_reply(d).update(text="other"), "do not make up its text"),
        (lambda d: first_reply(d).update(role="user"), "has steps but is not a reply"),
        (lambda d: first_reply(d).update(steps={}), "array"),
        (lambda d: first_reply(d)["steps"][0].update(outcome="great"), "great"),
        (lambda d: first_reply(d)["steps"][0].update(index=2**32), "<= 4294967295.*index"),
        (lambda d: first_reply(d)["steps"][1].update(index=0), "step 0 of message .* comes after step 0"),
        (lambda d: first_reply(d)["steps"][0].update(drafted=-1), ">= 0.*drafted"),
        (lambda d: first_reply(d)["steps"][0]["tuning"].update(seed=2**63), "<= 9223372036854775807.*seed"),
        (lambda d: first_reply(d)["steps"][0]["tuning"].update(depth=17), "<= 16.*tuning.depth"),
        (lambda d: first_reply(d)["steps"][0]["tokens"][0].update(id=2**31), "<= 2147483647.*id"),
        (lambda d: first_reply(d)["steps"][0]["tokens"][0].update(origin="magic"), "magic"),
        (lambda d: first_reply(d)["steps"][0]["judged"][0].update(position=-1), ">= 1.*position"),
        (lambda d: first_reply(d)["steps"][0]["judged"][0].update(ratio="1"), "ratio"),
        (
            lambda d: first_reply(d)["steps"][0]["judged"][0]["full"].update(top=[[1, "x", 0.5]] * 6),
            "length <= 5.*top",
        ),
    ],
)
def test_an_invalid_document_is_refused_with_a_sentence(
    store: Store, change: Callable[[dict[str, Any]], object], match: str
) -> None:
    with pytest.raises(StoreError, match=match) as error:
        import_json(store, changed(change), name="f.json")
    assert str(error.value).startswith("f.json ") and str(error.value).endswith(".")
    assert store.conversations.listed() == []
    with store.database.read() as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"format": "ds4chat-conversation", "version": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format":' * 50_000,
        b'{"format": "ds4chat-conversation", "version": 1, "title": "\xed\xa0\x80"}',
        b'{"format": "ds4chat-conversation", "version": 1e400}',
        b'{"format": "ds4chat-conversation", "version": NaN}',
        b"\x1b]0;title\x07",
    ],
)
def test_data_that_is_not_a_document_is_refused_with_a_sentence(store: Store, data: bytes) -> None:
    with pytest.raises(StoreError) as error:
        import_json(store, data, name="f.json")
    assert str(error.value).isprintable() and str(error.value).endswith(".")


def test_too_large_a_file_is_refused_before_it_is_read(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(documents.MOST_BYTES + 1)
    with pytest.raises(StoreError, match="larger than 256 MiB"):
        import_file(store, path)


def test_a_file_that_is_not_regular_is_refused_without_waiting(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(StoreError):
            import_file(store, path)
    with pytest.raises(StoreError, match="no such file"):
        import_file(store, tmp_path / "missing\x1b[2J.json")
    with pytest.raises(StoreError, match="no file can have this name"):
        import_file(store, Path("a\0b"))


def test_paths_in_a_document_are_only_text(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "made by import"

    def change(document: dict[str, Any]) -> None:
        document["title"] = f"../../{target}"
        for model in document["models"]:
            model["path"] = str(target)

    imported = import_json(store, changed(change))
    assert not target.exists()
    assert {m.path for m in store.conversations.models()} == {str(target)}
    assert store.conversations.get(imported).title == f"../../{target}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
DOCUMENT = json.dumps(good())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a document every value is."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


PLACES = places(json.loads(DOCUMENT))


def try_import(data: bytes) -> None:
    """Either it is imported and can be read whole, or it is a printable sentence and nothing was kept."""
    fresh = Store.in_memory()
    try:
        imported = import_json(fresh, data, name="f.json")
    except StoreError as error:
        assert one_line(error) == str(error) and str(error).endswith(".")
        assert fresh.conversations.listed() == []
    else:
        without_numbers(fresh, imported)
        for form in ("json", "md", "jsonl"):
            exported(fresh, imported, form)
    finally:
        fresh.close()


@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3))
def test_any_value_anywhere_is_imported_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    document = json.loads(DOCUMENT)
    for path, value in changes:
        inner = document
        try:
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took that place away
    try_import(json.dumps(document).encode())


@given(st.data())
def test_any_bytes_anywhere_are_imported_or_refused(data: st.DataObject) -> None:
    document = bytearray(DOCUMENT.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(document) - 1))
        document[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    try_import(bytes(document))
