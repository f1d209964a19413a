"""The recorder over a real store: what is on disk when, what comes back, and that trouble never raises."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kits.chat import PIECES, ReplayEngine, ended, steps_of
from kits.faults import PATIENCE, frames_until, until
from kits.stored import TEXT

from ds4chat.engine.events import Cancel, EngineDied, Generate, Load, Message, Prefill, Replayed, Tuning
from ds4chat.settings.schema import Settings
from ds4chat.store import Store, open_store
from ds4chat.store.export import export
from ds4chat.store.importing import import_file
from ds4chat.store.recording import INTERVAL
from ds4chat.tui.controller import Chat
from ds4chat.tui.conversation import Reply, UserTurn
from ds4chat.tui.explorer.source import conversation_source, stored_source
from ds4chat.tui.history.rows import branches
from ds4chat.tui.recorder import PENDING, RECOVERED, STALLED, Recorder, read_conversation


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
    chat = Chat(Probe(path), Recorder(store), Tuning(depth=2), lambda: Settings(system_prompt=system))
    chat.load(Load("/models/tiny.gguf", "/models/eagle3.gguf"))
    chat.frame()
    return chat


def probe(chat: Chat) -> Probe:
    """Its engine."""
    assert isinstance(chat.engine, Probe)
    return chat.engine


def settle(chat: Chat) -> None:
    """Wait until everything is written."""
    assert chat.recorder.settle(PATIENCE)


def next_notices(chat: Chat) -> list[str]:
    """Those of the next frame that has some. The end of a trouble may come after that of the last write."""
    said: list[str] = []

    def look() -> object:
        said.extend(notice.message for notice in chat.frame().notices)
        return said

    until(look, "a notice")
    return said


def wait_for_locks(store: Store) -> None:
    """Have a write under another program's lock wait for it, longer than a test takes on a busy machine."""
    with store.database.read() as connection:
        connection.execute("PRAGMA busy_timeout = 120000")


def asked(chat: Chat) -> Reply:
    """The running reply, once the engine was asked for it."""
    reply = chat.reply
    assert reply is not None
    frames_until(chat, lambda: chat.state != "saving", "the engine to be asked")
    return reply


def answer(chat: Chat) -> Reply:
    """Let the engine answer the running reply with the sentence."""
    reply = asked(chat)
    engine = probe(chat)
    engine.push(Prefill(reply.number, 40, 40, 0, 80.0), *steps_of(reply.number, PIECES), ended(reply.number))
    chat.frame()
    settle(chat)
    return reply


def test_the_prompt_is_on_disk_before_the_engine_is_asked(store: Store, path: Path) -> None:
    chat = chat_on(store, path, system="Be brief.")
    chat.submit("How?")
    asked(chat)
    engine = probe(chat)
    assert engine.on_disk == [
        [("system", "Be brief.", "complete"), ("user", "How?", "complete"), ("assistant", "", "streaming")]
    ]


def test_a_reply_comes_back_with_tokens_origins_steps_and_model(store: Store, path: Path) -> None:
    chat = chat_on(store, path, system="Be brief.")
    chat.submit("How?")
    reply = answer(chat)
    assert chat.conversation.key is not None
    recorder = Recorder(store)
    back = read_conversation(recorder.store, chat.conversation.key, count(70).__next__)
    assert (back.system, back.title) == ("Be brief.", "How?")
    user, again = back.turns
    assert isinstance(user, UserTurn)
    assert isinstance(again, Reply)
    assert user.text == "How?"
    assert (again.text, again.state, again.model, again.number) == (TEXT, "complete", "Tiny Chat", 70)
    assert again.tokens == reply.tokens
    assert [step.judged for step in again.steps] == [step.judged for step in reply.steps]
    assert {step.reply for step in again.steps} == {70}
    assert again.stats.document() == reply.stats.document()
    stored = store.conversations.message(again.key or 0)
    assert stored.model is not None
    assert stored.model.path == "/models/tiny.gguf"
    assert stored.support is not None
    assert stored.support.path == "/models/eagle3.gguf"


@pytest.mark.parametrize("passes", [0, 2])
@pytest.mark.parametrize("checked", [False, True])
def test_a_stored_reply_has_the_speed_against_plain_decoding_that_it_had_live(
    store: Store, path: Path, passes: int, checked: bool
) -> None:
    """Told by passes, a check, or the load of its own run: in the chat, the explorer and an imported copy."""
    chat = chat_on(store, path)
    chat.submit("How?")
    reply = asked(chat)
    engine = probe(chat)
    steps = steps_of(reply.number, PIECES)
    engine.push(*(replace(step, baseline=at < passes) for at, step in enumerate(steps)), ended(reply.number))
    if checked:
        engine.push(Replayed(reply.number, True, 22, -1, -1, -1, "", "", 0.0, "All are.", 700.0))
    chat.frame()
    settle(chat)
    live = reply.stats.plain
    assert (live.passes, live.checked_ms, live.load_ms) == (passes, 700.0 * checked, 20.0)
    assert live.at_load == (not passes and not checked)
    assert live.speedup
    key = chat.conversation.key
    assert key is not None
    export(store, key, path.with_suffix(".json"))
    for conversation in (key, import_file(store, path.with_suffix(".json"))):
        _, again = read_conversation(store, conversation, count(70).__next__).turns
        assert isinstance(again, Reply)
        assert (again.stats.plain.speedup, again.stats.plain.at_load) == (live.speedup, live.at_load)
        assert stored_source(store, conversation).times.plain.speedup == live.speedup
    assert conversation_source([reply]).times.plain.speedup == live.speedup


def test_a_conversation_goes_on_after_a_restart_with_another_model(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    answer(chat)
    key = chat.conversation.key
    assert key is not None
    later = chat_on(store, path)
    recorder = later.recorder
    assert later.resume(read_conversation(recorder.store, key, later.next_number))
    later.submit("Two")
    asked(later)
    engine = probe(later)
    assert engine.generates[-1].messages == (
        Message("user", "One"),
        Message("assistant", TEXT),
        Message("user", "Two"),
    )
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
    assert store.conversations.versions(chat.conversation.key or 0)[first.key or 0] == (first.key, second.key)
    assert chat.undo() == "One"
    settle(chat)
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


def test_a_retry_under_another_system_prompt_stands_beside_the_first_reply(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    first = answer(chat)
    chat.set_system("Be brief.")
    assert chat.retry()
    second = answer(chat)
    assert chat.retry()
    third = answer(chat)
    key = chat.conversation.key
    assert key is not None
    assert [(m.role, m.text) for m in store.conversations.path(key)] == [
        ("user", "One"),
        ("system", "Be brief."),
        ("assistant", TEXT),
    ]
    found = branches(store.conversations.tree(key), store.conversations.get(key).active_leaf)
    assert [(b.node.id, b.forks, b.system, b.shown) for b in found[1:]] == [
        (first.key, True, None, False),
        (second.key, True, "Be brief.", False),
        (third.key, True, "Be brief.", True),
    ]


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
    asked(chat)
    engine = probe(chat)
    engine.push(
        *steps_of(1, PIECES),
        EngineDied(1, None, "SIGSEGV", "The engine stopped: it was ended by SIGSEGV.", ()),
    )
    chat.frame()
    settle(chat)
    assert chat.conversation.key is not None
    _, reply = read_conversation(store, chat.conversation.key, count(1).__next__).turns
    assert isinstance(reply, Reply)
    assert (reply.state, reply.text) == ("crashed", TEXT)
    assert reply.trouble == "The engine stopped: it was ended by SIGSEGV."


def test_closing_in_the_middle_keeps_the_reply_as_stopped(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    asked(chat)
    engine = probe(chat)
    engine.push(*steps_of(1, PIECES[:4]))
    chat.abandon()
    assert chat.recorder.close() == ""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT state, text FROM messages WHERE role = 'assistant'").fetchall()
    assert rows == [("stopped", "".join(text for text, _ in PIECES[:4]))]
    assert not any(isinstance(command, Cancel) for command in engine.sent)


def test_the_way_out_by_force_waits_for_the_frame_that_is_being_drawn(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that take in the same events would each have a part of the reply."""
    chat = chat_on(store, path)
    chat.submit("One")
    asked(chat)
    engine, recorder = probe(chat), chat.recorder
    engine.push(*steps_of(1, PIECES))
    waits: list[bool] = []
    add = recorder.add

    def slow(*added: Any) -> None:
        if not waits:
            forced.start()
            forced.join(0.2)
            waits.append(forced.is_alive())
        add(*added)

    forced = threading.Thread(target=chat.abandon)
    monkeypatch.setattr("ds4chat.tui.controller.LOCK_SECONDS", PATIENCE)
    monkeypatch.setattr(recorder, "add", slow)
    chat.frame()
    forced.join(PATIENCE)
    assert waits == [True]
    assert chat.recorder.close() == ""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT state, text FROM messages WHERE role = 'assistant'").fetchall()
    assert rows == [("stopped", TEXT)]


def test_what_came_is_on_disk_within_a_second_without_a_further_event(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    reply = asked(chat)
    engine = probe(chat)
    engine.push(*steps_of(reply.number, PIECES))
    chat.frame()
    # The engine hangs now, and so does the chat: neither an event nor a frame comes any more.
    until(lambda: store.conversations.message(reply.key or 0).text, "the text on disk")
    assert store.conversations.message(reply.key or 0).text == TEXT
    assert INTERVAL < 1


@pytest.fixture
def locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """Another program's connection that holds the lock from the start; an attempt gives up soon."""
    monkeypatch.setattr("ds4chat.store.database.PATIENCE_MS", 20)
    open_store(path).close()
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN EXCLUSIVE")
    yield blocker
    blocker.close()


def test_a_locked_database_is_said_once_and_everything_is_there_when_it_is_free(
    locked: sqlite3.Connection, store: Store, path: Path
) -> None:
    chat = chat_on(store, path)
    said: list[str] = []

    def look(condition: Callable[[], object], what: str) -> None:
        def looked() -> object:
            said.extend(notice.message for notice in chat.frame().notices)
            return condition()

        until(looked, what)

    def exchange(prompt: str) -> None:
        """As unsaved as it may be, the engine is asked and answers."""
        chat.submit(prompt)
        look(lambda: chat.state == "reading", "the engine to be asked")
        engine, reply = probe(chat), chat.reply
        assert reply is not None
        engine.push(*steps_of(reply.number, PIECES), ended(reply.number))
        look(lambda: chat.reply is None, "the end")

    exchange("One")
    chat.undo()
    exchange("One again")
    exchange("Two")
    chat.set_system("Be brief.")
    assert chat.conversation.key is None
    assert len(said) == 1
    assert "locked by another program" in said[0]
    assert said[0].endswith(PENDING)
    locked.execute("ROLLBACK")
    exchange("Three")
    settle(chat)
    look(lambda: len(said) == 2, "word that it is over")
    assert said[1] == RECOVERED
    assert chat.conversation.key is not None
    shown = [m.text for m in store.conversations.path(chat.conversation.key)]
    assert shown == ["One again", TEXT, "Two", TEXT, "Be brief.", "Three", TEXT]
    assert len(store.conversations.tree(chat.conversation.key)) == len(shown) + 2
    assert Recorder(store).prompts == ["One", "One again", "Two", "Three"]


def test_a_stop_while_the_prompt_is_not_on_disk_asks_the_engine_for_nothing(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    settle(chat)
    wait_for_locks(store)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    chat.submit("One")
    chat.frame()
    assert chat.state == "saving"
    chat.retune(Tuning(depth=5))
    assert chat.stop()
    chat.frame()
    engine, reply = chat.engine, chat.conversation.last_reply
    assert isinstance(engine, Probe)
    assert [type(command) for command in engine.sent] == [Load]
    assert (chat.state, chat.reply) == ("ready", None)
    assert reply is not None
    assert reply.state == "stopped"
    blocker.execute("ROLLBACK")
    settle(chat)
    found = store.conversations.path(chat.conversation.key or 0)
    assert [(m.role, m.state) for m in found] == [("user", "complete"), ("assistant", "stopped")]


def test_a_disk_that_does_not_answer_is_said_and_the_engine_asked_all_the_same(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither writes nor fails. Once it answers, that is said too, and the prompt is there."""
    monkeypatch.setattr("ds4chat.tui.recorder.SILENCE", 0.2)
    chat = chat_on(store, path)
    recorder = chat.recorder
    answers = threading.Event()
    recorder._writer.put(lambda: answers.wait() and None)
    chat.submit("hello")
    assert chat.state == "saving"
    said: list[str] = []

    def asked() -> bool:
        said.extend(notice.message for notice in chat.frame().notices)
        return chat.state == "reading"

    until(asked, "the engine asked")
    assert said == [STALLED]
    answers.set()
    assert recorder.settle(PATIENCE)
    assert next_notices(chat) == [RECOVERED]
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT text FROM messages WHERE role = 'user'").fetchall()
    assert rows == [("hello",)]


def test_closing_under_a_lock_waits_its_time_and_says_that_something_is_lost(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds4chat.tui.recorder.LAST_WAIT", 0.2)
    chat = chat_on(store, path)
    settle(chat)
    wait_for_locks(store)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    chat.submit("One")
    chat.abandon()
    said = chat.recorder.close()
    assert said.startswith("The end of this chat could not be stored.")
    assert "another program" in said
    assert PENDING not in said, "memory ends with the program"
    assert chat.recorder.close() == said
    blocker.close()


def test_a_system_prompt_of_the_middle_comes_back_and_goes_with_its_branch(store: Store, path: Path) -> None:
    chat = chat_on(store, path, system="Be brief.")
    chat.submit("One")
    answer(chat)
    chat.set_system("Be long.")
    settle(chat)
    key = chat.conversation.key
    assert key is not None

    def back() -> str:
        return read_conversation(store, key, count(1).__next__).system

    assert back() == "Be long."
    chat.submit("Two")
    answer(chat)
    path_shown = [(m.role, m.text) for m in store.conversations.path(key)]
    assert path_shown == [
        ("system", "Be brief."),
        ("user", "One"),
        ("assistant", TEXT),
        ("system", "Be long."),
        ("user", "Two"),
        ("assistant", TEXT),
    ]
    # The branch that began before the change keeps its own prompt.
    first = store.conversations.path(key)[2].id
    store.conversations.set_leaf(key, first)
    assert back() == "Be brief."
    chat.set_system("")
    settle(chat)
    assert back() == ""
    chat.set_system("Be long.")
    chat.set_system("Be brief.")
    chat.set_system("Be long.")
    settle(chat)
    assert back() == "Be long."


def test_undo_keeps_the_system_prompt_that_is_on_the_screen(store: Store, path: Path) -> None:
    chat = chat_on(store, path, system="Be brief.")
    chat.submit("One")
    answer(chat)
    chat.set_system("Be long.")
    assert chat.undo() == "One"
    settle(chat)
    key = chat.conversation.key
    assert key is not None
    assert [(m.role, m.text) for m in store.conversations.path(key)] == [("system", "Be long.")]
    recorder = chat.recorder
    # Nothing moved: what is stored is what is shown.
    assert recorder.after_history(chat.conversation, None, chat.next_number) is None


def test_a_system_prompt_goes_through_export_and_import(store: Store, path: Path, tmp_path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    answer(chat)
    chat.set_system("Be long.")
    chat.recorder.export(chat.conversation, tmp_path / "a.json")
    made = import_file(store, tmp_path / "a.json")
    back = read_conversation(store, made, count(1).__next__)
    assert (back.system, [turn.text for turn in back.turns]) == ("Be long.", ["One", TEXT])


def test_what_a_lock_keeps_from_the_disk_can_be_exported_and_imported(
    locked: sqlite3.Connection, store: Store, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds4chat.tui.recorder.LAST_WAIT", 0.2)
    chat = chat_on(store, path, system="Be brief.")
    chat.submit("One")
    reply = asked(chat)
    engine = probe(chat)
    engine.push(*steps_of(reply.number, PIECES), ended(reply.number))
    chat.frame()
    chat.recorder.export(chat.conversation, tmp_path / "a.json")
    other = Store.in_memory()
    made = import_file(other, tmp_path / "a.json")
    found = other.conversations.path(made)
    assert [(m.role, m.text) for m in found] == [
        ("system", "Be brief."),
        ("user", "One"),
        ("assistant", TEXT),
    ]
    assert found[2].model is not None
    assert found[2].model.path == "/models/tiny.gguf"
    assert other.steps(found[2].id, reply.number) == reply.steps


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_engine_is_told_the_number_of_a_conversation_that_is_on_disk(store: Store, on_disk: bool) -> None:
    """The saved state is named by it. Numbers of a store in memory are those of other conversations there."""
    engine = ReplayEngine()
    chat = Chat(engine, Recorder(store if on_disk else Store.in_memory()), Tuning(depth=2))
    chat.load(Load("/models/tiny.gguf"))
    frames_until(chat, lambda: chat.state == "ready", "the model")
    for _ in range(2):
        for prompt in ("One", "Two"):
            chat.submit(prompt)
            frames_until(chat, lambda: chat.state == "ready", "the reply")
        assert chat.conversation.key
        asked = {generate.conversation for generate in engine.generates[-2:]}
        assert asked == {chat.conversation.key if on_disk else 0}
        chat.new()


def test_a_database_that_is_moved_away_is_said_and_nothing_is_lost_once_it_is_back(
    store: Store, path: Path, tmp_path: Path
) -> None:
    """SQLite itself would write on into a file that nobody finds any more."""
    engine = ReplayEngine(answer=False)
    chat = Chat(engine, Recorder(store), Tuning(depth=2))
    chat.load(Load("/models/tiny.gguf"))
    said: list[str] = []

    def exchange(prompt: str) -> None:
        def asked_for() -> bool:
            said.extend(notice.message for notice in chat.frame().notices)
            return chat.state == "reading"

        chat.submit(prompt)
        until(asked_for, "the engine to be asked")
        number = engine.generates[-1].reply
        engine.push(*steps_of(number, PIECES), ended(number))
        chat.frame()

    frames_until(chat, lambda: chat.state == "ready", "the model")
    exchange("One")
    settle(chat)
    away = tmp_path / "away"
    away.mkdir()
    names = [file.name for file in tmp_path.glob("conversations.db*")]
    for name in names:
        (tmp_path / name).rename(away / name)
    path.write_bytes(b"another file")
    exchange("Two")
    (sentence,) = said
    assert "was moved, replaced or deleted while ds4chat used it. Put it back; or" in sentence
    assert path.read_bytes() == b"another file"
    path.unlink()
    exchange("Three")
    for name in names:
        (away / name).rename(tmp_path / name)
    settle(chat)
    assert next_notices(chat) == [RECOVERED]
    shown = [m.text for m in store.conversations.path(chat.conversation.key or 0)]
    assert shown == ["One", TEXT, "Two", TEXT, "Three", TEXT]


def test_a_conversation_that_is_gone_is_said_once_and_the_engine_asked_all_the_same(
    store: Store, path: Path
) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    answer(chat)
    with store.database.write() as connection:
        connection.execute("DELETE FROM conversations")
    chat.submit("Two")
    settle(chat)
    said = [notice.message for _ in range(3) for notice in chat.frame().notices]
    asked(chat)
    assert len(said) == 1
    assert "There is no conversation" in said[0]
    assert "/export" in said[0]
    engine = probe(chat)
    assert len(engine.generates) == 2
    engine.push(*steps_of(2, PIECES), ended(2))
    chat.frame()
    assert chat.reply is None
    # A new conversation is kept again.
    assert chat.new()
    chat.submit("Three")
    answer(chat)
    assert [found.title for found in store.conversations.listed()] == ["Three"]


def test_a_conversation_that_goes_while_its_reply_comes_is_said_once(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    reply = asked(chat)
    engine = probe(chat)
    with store.database.write() as connection:
        connection.execute("DELETE FROM conversations")
    said: list[str] = []

    def look() -> object:
        said.extend(notice.message for notice in chat.frame().notices)
        return said

    engine.push(*steps_of(reply.number, PIECES))
    until(look, "word of it")
    engine.push(ended(reply.number))
    for _ in range(3):
        settle(chat)
        look()
    assert said == [
        "This conversation was deleted while the reply was written. The reply is not stored; /export writes "
        "it to a file."
    ]
    assert chat.reply is None


def test_history_draft_and_models_come_back(store: Store, path: Path) -> None:
    chat = chat_on(store, path)
    chat.submit("One")
    answer(chat)
    chat.recorder.keep_draft("half a thou")
    settle(chat)
    again = Recorder(store)
    assert again.prompts == ["One"]
    assert again.draft == "half a thou"
    assert again.recent_models == ["/models/tiny.gguf"]


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
