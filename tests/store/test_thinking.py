"""Thinking in the store: beside the text, searched, exported and imported; in the text of old replies."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
from kits.stored_replies import ended, keep, step

import ds4chat.tui.panels  # noqa: F401  first: the charts and the panels import each other
from ds4chat.engine.events import Message, Step, Token
from ds4chat.store import Store, open_store
from ds4chat.store.export import chunks
from ds4chat.store.importing import import_json
from ds4chat.store.recording import Request
from ds4chat.store.steps import insert_steps
from ds4chat.tui.conversation import Reply
from ds4chat.tui.recorder import read_conversation

NEW = (("", True), ("ponder ", True), ("the café", True), ("", True), ("It is", False), (" five", False))
OLD = (("<think>", True), ("ponder ", True), ("the café", True), ("</think>", True), ("It is five", False))


def steps_of(tokens: tuple[tuple[str, bool], ...]) -> list[Step]:
    """One step a token."""
    return [
        dataclasses.replace(step(n), tokens=(Token(n, text, "plain", thinking),), judged=step(n).judged[:1])
        for n, (text, thinking) in enumerate(tokens)
    ]


@pytest.fixture
def store() -> Store:
    return Store.in_memory(lambda: 1_700_000_000.5)


def kept(store: Store, tail: str = "", thinking_tail: str = "") -> tuple[int, int]:
    """A reply as it is kept now: its conversation and message."""
    recorder = store.record(Request("What is it?"))
    keep(recorder, *steps_of(NEW), dataclasses.replace(ended(tail=tail), thinking_tail=thinking_tail))
    assert recorder.conversation is not None and recorder.message is not None
    return recorder.conversation, recorder.message


def kept_before(store: Store) -> tuple[int, int]:
    """A reply as earlier versions kept it, its thinking and tags within its text."""
    recorder = store.record(Request("What is it?"))
    assert recorder.conversation is not None and recorder.message is not None
    with store.database.write() as connection:
        insert_steps(connection, recorder.message, steps_of(OLD))
        connection.execute(
            "UPDATE messages SET text = ?, state = 'complete', finish_reason = 'stop', owner = NULL "
            "WHERE id = ?",
            ("".join(text for text, _ in OLD), recorder.message),
        )
    return recorder.conversation, recorder.message


def opened(store: Store, conversation: int) -> Reply:
    """The reply as the chat gets it back."""
    reply = read_conversation(store, conversation, itertools.count(1).__next__).last_reply
    assert reply is not None
    return reply


def test_thinking_is_stored_separately_from_the_text(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    conversation, number = kept(store, tail="!", thinking_tail="?")
    store.close()
    store = open_store(tmp_path / "c.db")
    message = store.conversations.message(number)
    assert (message.text, message.thinking, message.tail) == ("It is five!", "ponder the café?", "!")
    assert store.steps(number) == steps_of(NEW)
    assert store.conversations.get(conversation).preview == "It is five!"
    reply = opened(store, conversation)
    assert (reply.answer, reply.thinking, reply.thinking_tail) == ("It is five!", "ponder the café?", "?")
    fork = store.conversations.path(store.conversations.fork(number))[-1]
    assert (fork.text, fork.thinking) == (message.text, message.thinking)
    assert store.steps(fork.id) == steps_of(NEW)
    store.close()


def test_a_running_reply_shows_both_as_far_as_they_are(store: Store) -> None:
    recorder = store.record(Request("What is it?"))
    for one in steps_of(NEW)[:2]:
        recorder.append(one)
    recorder.flush()
    assert recorder.conversation is not None and recorder.message is not None
    message = store.conversations.message(recorder.message)
    assert (message.text, message.thinking, message.state) == ("", "ponder ", "streaming")
    exported = json.loads("".join(chunks(store, recorder.conversation, "json")))
    assert (exported["messages"][1]["text"], exported["messages"][1]["thinking"]) == ("", "ponder ")


def test_the_next_prompt_carries_the_thinking_beside_the_answer(store: Store) -> None:
    conversation, _ = kept(store)
    found = read_conversation(store, conversation, itertools.count(1).__next__)
    assert found.messages()[-1] == Message("assistant", "It is five", "ponder the café")


def test_a_reply_by_an_earlier_version_is_read_unchanged(store: Store) -> None:
    conversation, number = kept_before(store)
    message = store.conversations.message(number)
    whole = "<think>ponder the café</think>It is five"
    assert (message.text, message.thinking) == (whole, "")
    assert store.steps(number) == steps_of(OLD)
    reply = opened(store, conversation)
    assert (reply.answer, reply.text) == ("It is five", whole)
    markdown = "".join(chunks(store, conversation, "md"))
    assert "Thinking</summary>\n\n<think>ponder the café</think>\n\n</details>\n\nIt is five\n" in markdown
    imported = import_json(store, "".join(chunks(store, conversation, "json")).encode())
    copy = store.conversations.path(imported)[-1]
    assert (copy.text, copy.thinking) == (whole, "")
    assert store.steps(copy.id) == steps_of(OLD)


@pytest.mark.parametrize("tails", [("", ""), ("!", "?")])
def test_an_import_has_the_thinking_that_was_exported(store: Store, tails: tuple[str, str]) -> None:
    conversation, number = kept(store, *tails)
    document = "".join(chunks(store, conversation, "json"))
    imported = import_json(Store.in_memory(), document.encode())
    other = Store.in_memory()
    imported = import_json(other, document.encode())
    copy = other.conversations.path(imported)[-1]
    before = store.conversations.message(number)
    assert (copy.text, copy.thinking, copy.tail) == (before.text, before.thinking, before.tail)
    assert other.steps(copy.id) == store.steps(number)
    assert "".join(chunks(other, imported, "json")) == document


def test_a_document_of_the_first_version_is_imported(store: Store) -> None:
    conversation, _ = kept_before(store)
    document = json.loads("".join(chunks(store, conversation, "json")))
    document["version"] = 1
    assert all("thinking" not in message for message in document["messages"])
    imported = import_json(store, json.dumps(document).encode())
    assert opened(store, imported).answer == "It is five"


def test_exports_to_read_and_to_analyse_tell_them_apart(store: Store) -> None:
    conversation, _ = kept(store)
    markdown = "".join(chunks(store, conversation, "md"))
    assert "Thinking</summary>\n\nponder the café\n\n</details>\n\nIt is five\n" in markdown
    lines = [json.loads(line) for line in chunks(store, conversation, "jsonl")]
    assert [(line["token"], line["thinking"]) for line in lines] == [(n, n < 4) for n in range(6)]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("query", "token"), [("ponder", 1), ("cafe", 2), ('"the cafe"', 2), ("five", None), ('"It is"', 4)]
)
def test_search_finds_both_and_leads_to_the_token(
    store: Store, before: bool, query: str, token: int | None
) -> None:
    conversation, number = kept_before(store) if before else kept(store)
    (hit,) = store.search(query)
    assert hit.message == number
    assert all(hit.snippet[a:b] for a, b in hit.matches) and hit.matches
    expected = token if token is not None else (4 if before else 5)
    assert opened(store, conversation).token_at(hit.at) == expected
