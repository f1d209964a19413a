"""The recorder over a real store: what is on disk when, what comes back, and that trouble never raises."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from chat_kit import PIECES, ReplayEngine, ended, steps_of
from tui_history.stored import TEXT

from ds4chat.engine.events import Cancel, EngineDied, Generate, Load, Message, Prefill, Tuning
from ds4chat.store import Store, open_store
from ds4chat.tui.controller import Chat
from ds4chat.tui.conversation import Reply, UserTurn
from ds4chat.tui.recorder import RECOVERED, StoreRecorder


class Probe(ReplayEngine):
    """Looks into the database file whenever a reply is asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(answer=False)
        self._path = path
        self.on_disk: list[list[tuple[str, str, str]]] = []

    def send(self, command: object) -> None:
        """Note what another process would see at this moment."""
        if isinstance(command, Generate):
            with sqlite3.connect(self._path) as connection:
                rows = connection.execute("SELECT role, text, state FROM messages ORDER BY id")
                self.on_disk.append(rows.fetchall())
        super().send(command)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = open_store(path)
    yield store
    store.close()


def chat_on(store: Store, path: Path, *, system: str = "") -> Chat:
    chat = Chat(Probe(path), StoreRecorder(store), Tuning(depth=2), system=system)
    chat.load(Load("/models/tiny.gguf", "/models/eagle3.gguf"))
    chat.frame()
    return chat


def answer(chat: Chat) -> Reply:
    """Let the engine answer the running reply with the sentence."""
    reply = chat.reply
    assert reply is not None
    engine = chat.engine
    assert isinstance(engine, Probe)
    engine.push(Prefill(reply.number, 40, 40, 0, 80.0), *steps_of(reply.number, PIECES), ended(reply.number))
    chat.frame()
    return reply


def test_the_prompt_is_on_disk_before_the_engine_is_asked(store: Store, path: Path) -> None:
    chat = chat_on(store, path, system="Be brief.")
    chat.submit("How?")
    engine = chat.engine
    assert isinstance(engine, Probe)
    assert engine.on_disk == [
        [("system", "Be brief.", "complete"), ("user", "How?", "complete"), ("assistant", "", "streaming")]
    ]


def test_a_reply_comes_back_with_tokens_origins_steps_and_model(store: Store, path: Path) -> None:
    chat = chat_on(store, path, system="Be brief.")
    chat.submit("How?")
    reply = answer(chat)
    assert chat.conversation.key is not None
    recorder = StoreRecorder(store)
    back = recorder.opened(chat.conversation.key, count(70).__next__)
    assert (back.system, back.title) == ("Be brief.", "How?")
    user, again = back.turns
    assert isinstance(user, UserTurn)
    assert isinstance(again, Reply)
    assert user.text == "How?"
    assert (again.text, again.state, again.model, again.number) == (TEXT, "complete", "Tiny Chat", 70)
    assert again.tokens == reply.tokens
    assert [step.judged for step in again.steps] == [step.judged for step in reply.steps]
    assert {step.reply for step in again.steps} == {70}
    assert again.stats.as_json() == reply.stats.as_json()
    stored = store.conversations.message(again.key or 0)
    assert stored.model is not None
    assert stored.model.path == "/models/tiny.gguf"
    assert stored.support is not None
    assert stored.support.path == "/models/eagle3.gguf"


def test_a_conversation_goes_on_after_a_restart_with_another_model(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    answer(chat)
    key = chat.conversation.key
    assert key is not None
    later = chat_on(store, path)
    recorder = later.recorder
    assert isinstance(recorder, StoreRecorder)
    assert later.resume(recorder.opened(key, later.next_number))
    later.submit("Two")
    engine = later.engine
    assert isinstance(engine, Probe)
    asked = engine.generates[-1]
    assert asked.messages == (Message("user", "One"), Message("assistant", TEXT), Message("user", "Two"))
    answer(later)
    assert [(m.role, m.text) for m in store.conversations.path(key)] == [
        ("user", "One"),
        ("assistant", TEXT),
        ("user", "Two"),
        ("assistant", TEXT),
    ]


def test_retry_undo_and_edit_make_branches_and_lose_nothing(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    first = answer(chat)
    chat.retry()
    second = answer(chat)
    assert first.key != second.key
    assert store.conversations.siblings(first.key or 0) == [first.key, second.key]
    assert chat.undo() == "One"
    key = chat.conversation.key
    assert key is not None
    assert store.conversations.path(key) == []
    chat.submit("One, please")
    answer(chat)
    assert [m.text for m in store.conversations.path(key)] == ["One, please", TEXT]
    assert [node.role for node in store.conversations.tree(key)] == [
        "user",
        "assistant",
        "assistant",
        "user",
        "assistant",
    ]
    assert len(store.conversations.listed()) == 1


def test_a_new_conversation_begins_a_new_one_in_the_store(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    for prompt in ("One", "Two"):
        chat.submit(prompt)
        answer(chat)
        assert chat.new()
    assert sorted(c.title for c in store.conversations.listed()) == ["One", "Two"]


def test_a_crashed_reply_keeps_its_text_and_says_why(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    engine = chat.engine
    assert isinstance(engine, Probe)
    engine.push(
        *steps_of(1, PIECES),
        EngineDied(1, None, "SIGSEGV", "The engine stopped: it was ended by SIGSEGV.", ()),
    )
    chat.frame()
    assert chat.conversation.key is not None
    _, reply = StoreRecorder(store).opened(chat.conversation.key, count(1).__next__).turns
    assert isinstance(reply, Reply)
    assert (reply.state, reply.text) == ("crashed", TEXT)
    assert reply.trouble == "The engine stopped: it was ended by SIGSEGV."


def test_closing_in_the_middle_keeps_the_reply_as_stopped(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    engine = chat.engine
    assert isinstance(engine, Probe)
    engine.push(*steps_of(1, PIECES[:4]))
    chat.abandon()
    assert chat.recorder.close() == ""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT state, text FROM messages WHERE role = 'assistant'").fetchall()
    assert rows == [("stopped", "".join(text for text, _ in PIECES[:4]))]
    assert not any(isinstance(command, Cancel) for command in engine.sent)


def test_a_locked_database_is_said_once_and_everything_is_there_when_it_is_free(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("database", "recording"):
        monkeypatch.setattr(f"ds4chat.store.{name}.PATIENCE_MS", 20)
    chat = chat_on(store, path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    chat.submit("One")
    assert chat.reply is not None
    said = [notice.message for notice in chat.frame().notices]
    answer(chat)
    assert chat.conversation.key is None
    chat.submit("Two")
    said += [notice.message for notice in chat.frame().notices]
    answer(chat)
    assert len(said) == 1
    assert "locked by another program" in said[0]
    blocker.execute("ROLLBACK")
    chat.submit("Three")
    said = [notice.message for notice in chat.frame().notices]
    answer(chat)
    said += [notice.message for notice in chat.frame().notices]
    assert said == [RECOVERED]
    assert chat.conversation.key is not None
    assert [m.text for m in store.conversations.path(chat.conversation.key)] == [
        "One",
        TEXT,
        "Two",
        TEXT,
        "Three",
        TEXT,
    ]


def test_history_draft_and_models_come_back(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    answer(chat)
    chat.recorder.keep_draft("half a thou")
    again = StoreRecorder(store)
    assert again.prompts() == ["One"]
    assert again.draft() == "half a thou"
    assert again.recent_models() == ["/models/tiny.gguf"]


def test_going_on_with_a_deleted_conversation_brings_it_back(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    answer(chat)
    key = chat.conversation.key
    assert key is not None
    store.conversations.delete(key)
    chat.submit("Two")
    answer(chat)
    assert [c.id for c in store.conversations.listed()] == [key]
