"""A reply is kept while it comes, and comes back exactly as the engine gave it."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from kits.stored_replies import ended, step, text
from kits.work import calls, database_steps

from ds4chat.analysis.rows import Rows, rows_from_steps
from ds4chat.engine.events import DrafterInfo, EngineDied, ModelInfo, Prefill, Step, Token, Tuning
from ds4chat.store import ModelIdentity, Store, StoreError, open_store
from ds4chat.store.recording import INTERVAL, Request

DIED = EngineDied(0, None, "SIGKILL", "The engine was killed. Reload the model.", ())


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_prompt_is_in_the_file_before_anything_is_taken(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    recorder = store.record(Request("Is anybody there?", system="Be kind."))
    # Another connection sees it: it does not depend on this process any more.
    other = open_store(tmp_path / "c.db")
    path = other.conversations.path(recorder.conversation)
    assert [(m.role, m.text, m.state) for m in path] == [
        ("system", "Be kind.", "complete"),
        ("user", "Is anybody there?", "complete"),
        ("assistant", "", "streaming"),
    ]
    other.close()
    store.close()


def test_what_came_is_written_when_the_interval_has_passed() -> None:
    store, clock = Store.in_memory(), Clock()
    recorder = store.record(Request("x"), clock=clock)
    recorder.take(step(0))
    assert store.conversations.message(recorder.message).text == ""
    clock.now += INTERVAL
    recorder.take(step(1))
    shown = store.conversations.message(recorder.message)
    assert (shown.text, shown.state, shown.tokens) == (text([step(0), step(1)]), "streaming", 6)
    assert store.records.tokens(recorder.message) == [*step(0).tokens, *step(1).tokens]
    assert INTERVAL < 1


@pytest.mark.parametrize("batches", [1, 3])
def test_steps_come_back_as_the_engine_gave_them(tmp_path: Path, batches: int) -> None:
    steps = [
        step(0, thinking=True),
        step(1),
        dataclasses.replace(step(2), tokens=(), judged=(), drafted=0, outcome="gated", drafter=""),
        step(3, tuning=Tuning(depth="auto", margin=0.5, gate=1.5, temp=0.7, seed=42)),
        dataclasses.replace(
            step(4),
            tokens=(Token(5, "x", "plain"), Token(6, "y", "bonus", True)),
            outcome="fallback",
        ),
    ]
    store = open_store(tmp_path / "c.db")
    recorder = store.record(Request("x"))
    for one in steps:
        recorder.take(one)
        if batches > 1 and one.index % 2:
            recorder.flush()
    recorder.take(ended(tail="\ufffd"))
    store.close()

    store = open_store(tmp_path / "c.db")
    assert store.records.steps(recorder.message) == steps
    assert [one.reply for one in store.records.steps(recorder.message, reply=9)] == [9] * 5
    tokens = store.records.tokens(recorder.message)
    assert tokens == [token for one in steps for token in one.tokens]
    message = store.conversations.message(recorder.message)
    assert message.text == "".join(token.text for token in tokens if not token.thinking) + "\ufffd"
    assert message.thinking == "".join(token.text for token in tokens if token.thinking)
    assert message.ended() == ended(tail="\ufffd")
    store.close()


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("stop", "complete"),
        ("length", "complete"),
        ("context", "complete"),
        ("cancelled", "stopped"),
        ("error", "failed"),
    ],
)
def test_each_end_leaves_its_state(reason: str, state: str) -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    recorder.take(step(0))
    recorder.take(ended(reason, detail="Why."))
    message = store.conversations.message(recorder.message)
    assert (message.state, message.finish_reason, message.detail) == (state, reason, "Why.")
    assert message.text == text([step(0)])
    assert recorder.saved


def test_a_reply_whose_engine_died_keeps_its_text() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    recorder.take(Prefill(0, done=5, total=9, reused=2, ms=3.5))
    recorder.take(step(0))
    recorder.take(DIED)
    message = store.conversations.message(recorder.message)
    assert (message.state, message.text, message.detail) == ("crashed", text([step(0)]), DIED.message)
    assert (message.prompt_tokens, message.reused_tokens, message.ended()) == (9, 2, None)
    assert store.records.steps(recorder.message) == [step(0)]


def test_a_model_is_known_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    os.utime(file, ns=(1, 1_234_567_890_123_456_789))
    info = ModelInfo(str(file), "Tiny", "qwen3", "Q4_0", 1000, 4, 512, 2, 64, 256, True)
    support = ModelIdentity.of_support(DrafterInfo("nextn-support", str(file), 3))
    store = Store.in_memory()
    request = Request("x", model=ModelIdentity.of(info), support=support, drafter="nextn-support")
    recorder = store.record(request)
    message = store.conversations.message(recorder.message)
    assert message.model == ModelIdentity(str(file), "Tiny", "qwen3", "Q4_0", 4, 1_234_567_890_123_456_789)
    assert message.support == ModelIdentity(str(file), "m", size_bytes=4, mtime_ns=1_234_567_890_123_456_789)
    assert message.drafter == "nextn-support"
    assert ModelIdentity.of_support(DrafterInfo("lookup", "", 8)) is None
    # A reply by a file of the same name that was changed since is by another model.
    os.utime(file, ns=(1, 1_234_567_890_123_456_790))
    store.record(Request("y", model=ModelIdentity.of(info)))
    assert len(store.conversations.models()) == 2


def test_replies_follow_each_other_and_share_the_system_message() -> None:
    store = Store.in_memory()
    first = store.record(Request("one", system="S"))
    first.take(ended())
    second = store.record(Request("two", system="S", parent=first))
    second.take(ended())
    edited = store.record(Request("uno", system="S", conversation=first.conversation))
    edited.take(ended())
    roles = [(m.role, m.text) for m in store.conversations.path(first.conversation, second.message)]
    assert roles == [("system", "S"), ("user", "one"), ("assistant", ""), ("user", "two"), ("assistant", "")]
    assert store.conversations.siblings(first.prompt) == [first.prompt, edited.prompt]


def test_nothing_is_lost_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    recorder = store.record(Request("x"))
    blocker = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    recorder.take(step(0))
    assert not recorder.flush()
    assert "locked by another program" in recorder.trouble
    recorder.take(step(1))
    blocker.execute("ROLLBACK")
    assert recorder.flush()
    assert recorder.trouble == ""
    recorder.take(ended())
    assert store.records.steps(recorder.message) == [step(0), step(1)]
    blocker.close()
    store.close()


def test_a_prompt_that_could_not_be_written_is_written_later_with_all_that_followed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    with store.database.write() as connection:
        connection.execute("PRAGMA query_only = ON")
    first = store.record(Request("one"))
    first.take(step(0))
    first.take(ended())
    second = store.record(Request("two", parent=first))
    assert first.trouble and second.trouble
    assert (first.message, second.message, first.saved) == (None, None, False)
    with store.database.read() as connection:
        connection.execute("PRAGMA query_only = OFF")
    second.take(step(0))
    second.take(ended())
    assert first.saved and second.saved
    path = store.conversations.path(second.conversation)
    assert [m.text for m in path] == ["one", text([step(0)]), "two", text([step(0)])]
    store.close()


@contextmanager
def no_room(store: Store) -> Iterator[None]:
    """SQLite finds the disk full in the middle of a transaction, as soon as it needs another page."""
    with store.database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        with store.database.read() as connection:
            connection.execute("PRAGMA max_page_count = 1000000")


def test_a_write_that_fails_in_its_middle_is_repeated_whole() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    # The tuning is new, and is written before the steps, which find no room.
    steps = [step(index, tuning=Tuning(depth=3, margin=0.5)) for index in range(300)]
    for one in steps:
        recorder.take(one)
    with no_room(store):
        assert not recorder.flush()
        assert "disk is full" in recorder.trouble
        with store.database.read() as connection:
            assert connection.execute("SELECT count(*) FROM tunings").fetchone() == (0,)
    # Another reply's tuning gets the number that was taken back.
    other = store.record(Request("y"))
    other.take(step(0))
    other.take(ended())
    recorder.take(ended())
    assert store.records.steps(recorder.message) == steps
    assert store.records.steps(other.message) == [step(0)]


def test_an_opening_that_fails_at_its_last_write_is_repeated_whole() -> None:
    store = Store.in_memory()
    with no_room(store):
        # The reply is there already when the model's name finds no room.
        model = ModelIdentity("/m/" + "x" * 4000, "n" * 4000, "a" * 4000)
        recorder = store.record(Request("x", model=model))
        assert "disk is full" in recorder.trouble
        assert (recorder.conversation, recorder.prompt, recorder.message) == (None, None, None)
    recorder.take(step(0))
    recorder.take(ended())
    assert recorder.saved
    assert [m.text for m in store.conversations.path(recorder.conversation)] == ["x", text([step(0)])]
    assert len(store.conversations.listed()) == 1


def test_a_reply_whose_conversation_is_purged_meanwhile_says_so_and_stops() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    with store.database.write() as connection:
        connection.execute("DELETE FROM conversations")
    recorder.take(step(0))
    assert not recorder.flush()
    assert "deleted" in recorder.trouble


def test_purge_leaves_a_conversation_that_is_being_written() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    store.conversations.delete(recorder.conversation)
    assert store.conversations.purge(store.conversations.now_ms() + 1000) == 0
    recorder.take(ended())
    assert store.conversations.purge(store.conversations.now_ms() + 1000) == 1


def test_many_threads_may_use_one_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    errors: list[BaseException] = []

    def work(name: int) -> None:
        try:
            recorder = store.record(Request(f"prompt {name}"))
            for index in range(20):
                recorder.take(step(index))
                store.search("prompt")
            recorder.take(ended())
            assert store.records.steps(recorder.message) == [step(index) for index in range(20)]
        except BaseException as error:  # noqa: BLE001 - an assertion in a thread has to reach the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.conversations.listed()) == 4
    store.close()


def test_closing_the_store_writes_what_recorders_hold(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    recorder = store.record(Request("x"))
    recorder.take(step(0))
    store.close()
    store = open_store(tmp_path / "c.db")
    assert store.conversations.message(recorder.message).text == text([step(0)])
    store.close()


def test_judged_rows_are_what_the_analyses_read() -> None:
    approximate = Tuning(margin=0.5, gate=0.25)
    steps = [
        step(0),
        dataclasses.replace(step(1), judged=(), drafted=0, outcome="plain"),
        step(2, tuning=approximate),
    ]
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    for one in steps:
        recorder.take(one)
        recorder.flush()
    recorder.take(ended())
    found = store.records.judged_rows(conversation=recorder.conversation)
    rows = Rows(**{field.name: getattr(found, field.name) for field in dataclasses.fields(Rows)})
    expected = rows_from_steps([dataclasses.replace(one, reply=recorder.message) for one in steps])
    for field in dataclasses.fields(Rows):
        got, wanted = getattr(rows, field.name), getattr(expected, field.name)
        if isinstance(wanted, tuple):
            assert got == wanted, field.name
        else:
            np.testing.assert_array_equal(got, wanted, field.name)
    # Steps 0, 1 and 2 emit three tokens each; only 0 and 2 judged.
    assert found.token.tolist() == [0, 1, 2, 6, 7, 8]
    assert found.by == ("match", "match", "", "match", "match", "")
    assert found.entropy.tolist()[0] == 1.25 and np.isnan(found.entropy[1])
    assert found.step_margin.tolist() == [1.0, 1.0, 0.5]


def test_a_row_past_the_last_emitted_token_decides_none() -> None:
    cut = dataclasses.replace(step(0), tokens=step(0).tokens[:1])
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    recorder.take(cut)
    recorder.take(ended("length"))
    assert store.records.judged_rows(message=recorder.message).token.tolist() == [0, -1, -1]


def test_rows_of_several_replies_stand_one_after_the_other() -> None:
    store = Store.in_memory()
    first = store.record(Request("one"))
    first.take(step(0))
    first.take(ended())
    second = store.record(Request("two", parent=first))
    second.take(dataclasses.replace(step(0), drafter="lookup"))
    second.take(ended())
    rows = store.records.judged_rows(conversation=first.conversation)
    assert rows.message.tolist() == [first.message] * 3 + [second.message] * 3
    assert rows.token.tolist() == [0, 1, 2, 0, 1, 2]
    assert rows.step_first.tolist() == [0, 3]
    assert rows.draft_text == ("d1", "d2", "d3") * 2
    none = store.records.judged_rows(message=[])
    assert len(none) == 0 and none.step_ms.shape == (0, 6)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("strings", "nonsense"),
        ("strings", "[]"),
        ("tokens", b"\x01"),
        ("tokens", b""),
        ("steps", b"\xff" * 73),
        ("judged", b"\xff" * 51 * 3),
        ("full", b"\xff" * 400),
    ],
)
def test_damaged_batches_are_a_sentence_and_the_text_stays(column: str, value: bytes | str) -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    recorder.take(step(0))
    recorder.take(ended())
    with store.database.write() as connection:
        connection.execute(f"UPDATE batches SET {column} = ?", (value,))
    for read in (
        lambda: store.records.steps(recorder.message),
        lambda: store.records.tokens(recorder.message),
        lambda: store.records.judged_rows(message=recorder.message),
    ):
        with pytest.raises(StoreError, match="damaged"):
            read()
    assert store.conversations.message(recorder.message).text == text([step(0)])


def test_a_long_reply_opens_in_proportion_to_its_length() -> None:
    """Ten times the tokens take about ten times the work, not a hundred times."""
    store = Store.in_memory()

    def recorded(count: int) -> int:
        recorder = store.record(Request("x"))
        for index in range(count):
            recorder.take(dataclasses.replace(step(index % 1000), index=index))
            if index % 100 == 99:
                recorder.flush()
        recorder.take(ended())
        assert recorder.message is not None
        return recorder.message

    def opened(message: int) -> int:
        tokens = store.records.tokens(message)
        assert "".join(token.text for token in tokens) == store.conversations.message(message).text
        with store.database.read() as connection:
            read = database_steps(connection, lambda: store.records.tokens(message))
        return read + calls(lambda: (store.records.tokens(message), store.conversations.message(message)))

    short, long = recorded(340), recorded(3_400)
    assert opened(long) < 12 * opened(short)
    assert len(store.records.tokens(long)) == 10_200


def test_reading_rows_as_columns_beats_reading_them_as_events() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    for index in range(5_000):
        recorder.take(dataclasses.replace(step(0), index=index))
    recorder.take(ended())

    columns = calls(lambda: store.records.judged_rows(message=recorder.message))
    events = calls(lambda: store.records.steps(recorder.message))
    assert columns < events


def test_a_step_of_a_later_reply_number_is_the_same_step() -> None:
    """The engine numbers replies by the session; the store numbers them for good."""
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    recorder.take(step(0, reply=17))
    recorder.take(ended(reply=17))
    assert store.records.steps(recorder.message, reply=17) == [step(0, reply=17)]
    assert store.conversations.message(recorder.message).ended(17) == ended(reply=17)
    assert isinstance(store.records.steps(recorder.message)[0], Step)
