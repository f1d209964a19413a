"""A reply is kept while it comes, and comes back exactly as the engine gave it."""

from __future__ import annotations

import dataclasses
import os
import random
import sqlite3
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kits.stored_replies import ended, keep, step, text
from kits.work import calls, database_steps

from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.engine.events import DrafterInfo, EngineDied, ModelInfo, Prefill, Token, Tuning
from ds4chat.store import ModelIdentity, Store, StoreError, open_store
from ds4chat.store import steps as stored_steps
from ds4chat.store.owner import STALE_MS
from ds4chat.store.recording import HEARTBEAT, Request

DIED = EngineDied(0, None, "SIGKILL", "The engine was killed. Reload the model.", ())


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_prompt_is_in_the_file_before_the_first_token(tmp_path: Path) -> None:
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


def test_events_are_written_by_a_flush_and_not_before() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    recorder.append(step(0))
    assert store.conversations.message(recorder.message).text == "" and not recorder.saved
    keep(recorder, step(1))
    shown = store.conversations.message(recorder.message)
    assert (shown.text, shown.state, shown.tokens) == (text([step(0), step(1)]), "streaming", 6)
    assert store.steps(recorder.message) == [step(0), step(1)]
    assert recorder.saved and not recorder.over
    keep(recorder, ended())
    assert recorder.saved and recorder.over


def test_a_silent_reply_is_touched_so_that_it_does_not_look_abandoned() -> None:
    clock = Clock()
    store = Store.in_memory(clock)
    recorder = store.recorder(clock=clock)
    recorder.open(Request("x"))

    def touched() -> int:
        recorder.flush()
        return store.conversations.message(recorder.message).updated_ms

    clock.now = HEARTBEAT - 0.1
    assert touched() == 0
    clock.now = HEARTBEAT
    assert touched() == clock.now * 1000 < STALE_MS


def test_events_of_another_thread_are_written_once_and_in_order() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    steps = [step(index) for index in range(2_000)]
    filled = threading.Event()

    def fill() -> None:
        for one in steps:
            recorder.append(one)
        filled.set()

    thread = threading.Thread(target=fill)
    thread.start()
    while not filled.is_set():
        recorder.flush()
    thread.join()
    keep(recorder, ended())
    assert store.steps(recorder.message) == steps


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
        recorder.append(one)
        if batches > 1 and one.index % 2:
            recorder.flush()
    keep(recorder, ended(tail="\ufffd"))
    store.close()

    store = open_store(tmp_path / "c.db")
    assert store.steps(recorder.message) == steps
    assert [one.reply for one in store.steps(recorder.message, reply=9)] == [9] * 5
    tokens = [token for one in steps for token in one.tokens]
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
    keep(recorder, step(0), ended(reason, detail="Why."))
    message = store.conversations.message(recorder.message)
    assert (message.state, message.finish_reason, message.detail) == (state, reason, "Why.")
    assert message.text == text([step(0)])
    assert recorder.saved


def test_a_reply_whose_engine_died_keeps_its_text() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    keep(recorder, Prefill(0, done=5, total=9, reused=2, ms=3.5), step(0), DIED)
    message = store.conversations.message(recorder.message)
    assert (message.state, message.text, message.detail) == ("crashed", text([step(0)]), DIED.message)
    assert (message.prompt_tokens, message.reused_tokens, message.ended()) == (9, 2, None)
    assert store.steps(recorder.message) == [step(0)]


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
    keep(first, ended())
    second = store.record(Request("two", system="S", parent=first.message))
    keep(second, ended())
    edited = store.record(Request("uno", system="S", conversation=first.conversation))
    keep(edited, ended())
    roles = [(m.role, m.text) for m in store.conversations.path(first.conversation, second.message)]
    assert roles == [("system", "S"), ("user", "one"), ("assistant", ""), ("user", "two"), ("assistant", "")]
    assert store.conversations.versions(first.conversation)[first.prompt] == (first.prompt, edited.prompt)


def test_nothing_is_lost_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    recorder = store.record(Request("x"))
    blocker = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    recorder.append(step(0))
    with pytest.raises(StoreError, match="locked by another program"):
        recorder.flush()
    recorder.append(step(1))
    blocker.execute("ROLLBACK")
    recorder.flush()
    keep(recorder, ended())
    assert store.steps(recorder.message) == [step(0), step(1)]
    blocker.close()
    store.close()


def test_a_prompt_that_could_not_be_written_is_written_later_with_all_that_followed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    with store.database.write() as connection:
        connection.execute("PRAGMA query_only = ON")
    recorder = store.recorder()
    with pytest.raises(StoreError):
        recorder.open(Request("one"))
    keep(recorder, step(0), ended())
    assert (recorder.message, recorder.saved, recorder.over) == (None, False, False)
    with store.database.read() as connection:
        connection.execute("PRAGMA query_only = OFF")
    recorder.open(Request("one"))
    recorder.flush()
    assert recorder.saved and recorder.over
    assert [m.text for m in store.conversations.path(recorder.conversation)] == ["one", text([step(0)])]
    store.close()


@contextmanager
def no_room(store: Store) -> Iterator[None]:
    """SQLite finds the disk full in the middle of a transaction, as soon as it needs another page."""
    with store.database.write() as connection:
        connection.execute("CREATE TABLE filler (x)")
        while connection.execute("PRAGMA freelist_count").fetchone()[0]:
            connection.execute("INSERT INTO filler VALUES (zeroblob(4000))")
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
    # The reply is touched before its steps find no room.
    chance = random.Random(1)
    steps = [dataclasses.replace(step(index), drafter=chance.randbytes(60).hex()) for index in range(300)]
    recorder.append(*steps)
    with no_room(store), pytest.raises(StoreError, match="disk is full"):
        recorder.flush()
    assert (store.conversations.message(recorder.message).steps, recorder.saved) == (0, False)
    keep(recorder, ended())
    assert store.steps(recorder.message) == steps


def test_an_opening_that_fails_at_its_last_write_is_repeated_whole() -> None:
    store = Store.in_memory()
    recorder = store.recorder()
    # The reply is there already when the model's name finds no room.
    request = Request("x", model=ModelIdentity("/m/" + "x" * 4000, "n" * 4000, "a" * 4000))
    with no_room(store), pytest.raises(StoreError, match="disk is full"):
        recorder.open(request)
    assert (recorder.conversation, recorder.prompt, recorder.message) == (None, None, None)
    recorder.open(request)
    keep(recorder, step(0), ended())
    assert [m.text for m in store.conversations.path(recorder.conversation)] == ["x", text([step(0)])]
    assert len(store.conversations.listed()) == 1


def test_a_reply_whose_conversation_is_purged_meanwhile_says_so_and_stops() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    with store.database.write() as connection:
        connection.execute("DELETE FROM conversations")
    recorder.append(step(0))
    with pytest.raises(StoreError, match="deleted"):
        recorder.flush()
    assert recorder.over
    recorder.flush()


def test_purge_leaves_a_conversation_that_is_being_written() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    store.conversations.delete(recorder.conversation)
    assert store.conversations.purge(store.database.now_ms() + 1000) == 0
    keep(recorder, ended())
    assert store.conversations.purge(store.database.now_ms() + 1000) == 1


def test_many_threads_may_use_one_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    errors: list[BaseException] = []

    def work(name: int) -> None:
        try:
            recorder = store.record(Request(f"prompt {name}"))
            for index in range(20):
                recorder.append(step(index))
                store.search("prompt")
            keep(recorder, ended())
            assert store.steps(recorder.message) == [step(index) for index in range(20)]
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
        keep(recorder, one)
    keep(recorder, ended())
    found = store.judged_rows(recorder.conversation)
    expected = rows_from_steps([dataclasses.replace(one, reply=recorder.message) for one in steps])
    for field in dataclasses.fields(JudgedRows):
        got, wanted = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(wanted, tuple):
            assert got == wanted, field.name
        else:
            np.testing.assert_array_equal(got, wanted, field.name)
    # Steps 0, 1 and 2 emit three tokens each; only 0 and 2 judged.
    assert found.token.tolist() == [0, 1, 2, 6, 7, 8]
    assert found.by == ("match", "match", "", "match", "match", "")
    assert found.entropy.tolist()[0] == 1.25 and np.isnan(found.entropy[1])
    assert found.step_margin.tolist() == [1.0, 1.0, 0.5]


def test_a_verdict_after_the_last_emitted_token_has_no_token() -> None:
    cut = dataclasses.replace(step(0), tokens=step(0).tokens[:1])
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    keep(recorder, cut, ended("length"))
    assert store.judged_rows(recorder.conversation).token.tolist() == [0, -1, -1]


def test_rows_of_several_replies_stand_one_after_the_other() -> None:
    store = Store.in_memory()
    first = store.record(Request("one"))
    keep(first, step(0), ended())
    second = store.record(Request("two", parent=first.message))
    keep(second, dataclasses.replace(step(0), drafter="lookup"), ended())
    rows = store.judged_rows(first.conversation)
    assert rows.step_reply.tolist() == [first.message, second.message]
    assert rows.token.tolist() == [0, 1, 2, 0, 1, 2]
    assert rows.step_first.tolist() == [0, 3]
    assert rows.draft_text == ("d1", "d2", "d3") * 2
    none = store.judged_rows(store.conversations.create())
    assert len(none) == 0 and none.step_ms.shape == (0, 6)


def packed_in(*values: object) -> bytes:
    return zlib.compress(b"".join(map(msgspec.msgpack.encode, values)))


STEP = msgspec.to_builtins(step(0))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param("text", id="text"),
        pytest.param(b"nonsense", id="not compressed"),
        pytest.param(packed_in([STEP])[:-1], id="cut off"),
        pytest.param(packed_in([STEP]) + b"x", id="longer"),
        pytest.param(zlib.compress(b"\xc1"), id="not MessagePack"),
        pytest.param(zlib.compress(b"\x91" * 100_000), id="deep"),
        pytest.param(packed_in([STEP], [STEP]), id="two values"),
        pytest.param(packed_in(STEP), id="no list"),
        pytest.param(packed_in([{**STEP, "outcome": "won"}]), id="unknown outcome"),
        pytest.param(packed_in([{**STEP, "drafted": -1}]), id="negative count"),
        pytest.param(packed_in([{**STEP, "judged": [{**STEP["judged"][0], "position": 0}]}]), id="position"),
        pytest.param(packed_in([{**STEP, "tokens": [{**STEP["tokens"][0], "id": 2**63}]}]), id="token id"),
        pytest.param(packed_in([{**STEP, "tuning": {"depth": 17}}]), id="depth"),
    ],
)
def test_damaged_steps_are_a_sentence_and_the_text_stays(body: bytes | str) -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    keep(recorder, step(0), ended())
    with store.database.write() as connection:
        connection.execute("UPDATE steps SET body = ?", (body,))
    for read in (
        lambda: store.steps(recorder.message),
        lambda: store.judged_rows(recorder.conversation),
    ):
        with pytest.raises(StoreError, match="damaged") as error:
            read()
        assert error.value.kind == "corrupt" and str(error.value).endswith(".")
    assert store.conversations.message(recorder.message).text == text([step(0)])


def test_an_abandoned_reply_with_a_damaged_row_keeps_the_text_before_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    recorder = store.record(Request("x"))
    for index in range(3):
        keep(recorder, step(index))
    with store.database.write() as connection:
        connection.execute("UPDATE steps SET body = x'00' WHERE id = (SELECT max(id) FROM steps)")
        connection.execute("UPDATE messages SET owner = NULL")
    store.close()
    store = open_store(tmp_path / "c.db")
    message = store.conversations.message(recorder.message)
    assert (message.state, message.text) == ("crashed", text([step(0), step(1)]))
    store.close()


@pytest.mark.parametrize("limit", ["MOST_ROW_BYTES", "MOST_REPLY_BYTES"])
def test_a_row_that_would_unpack_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    keep(recorder, step(0))
    keep(recorder, step(1))
    with store.database.write() as connection:
        rows = connection.execute("SELECT body FROM steps").fetchall()
    sizes = [len(zlib.decompress(body)) for (body,) in rows]
    most = max(sizes) if limit == "MOST_ROW_BYTES" else sum(sizes)
    monkeypatch.setattr(stored_steps, limit, most)
    assert store.steps(recorder.message) == [step(0), step(1)]
    monkeypatch.setattr(stored_steps, limit, most - 1)
    with pytest.raises(StoreError, match=r"damaged in the database \(too long\)"):
        store.steps(recorder.message)


def test_a_zip_bomb_takes_no_more_memory_than_a_row_may() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    keep(recorder, step(0), ended())
    packer = zlib.compressobj()
    bomb = b"".join(packer.compress(bytes(1 << 24)) for _ in range(64)) + packer.flush()
    with store.database.write() as connection:
        connection.execute("UPDATE steps SET body = ?", (bomb,))
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="too long"):
            store.steps(recorder.message)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(bomb) < 2 << 20 and peak < 2.5 * stored_steps.MOST_ROW_BYTES


def test_a_write_of_many_steps_makes_rows_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_steps, "ROW_BYTES", 3_000)
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    steps = [step(index) for index in range(21)]
    keep(recorder, *steps)
    with store.database.read() as connection:
        bodies = connection.execute("SELECT body FROM steps").fetchall()
    assert len(bodies) > 7 and all(len(zlib.decompress(body)) <= 3_000 for (body,) in bodies)
    assert store.steps(recorder.message) == steps


def test_a_step_without_a_field_that_has_a_default_is_read() -> None:
    """So is one that was stored before the field was added."""
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    keep(recorder, step(0), ended())
    old = {name: value for name, value in STEP.items() if name != "baseline"}
    old["tuning"] = {"depth": 3}
    with store.database.write() as connection:
        connection.execute("UPDATE steps SET body = ?", (packed_in([{**old, "later": 1}]),))
    assert store.steps(recorder.message) == [step(0)]


def test_a_long_reply_opens_in_proportion_to_its_length() -> None:
    """Ten times the tokens take about ten times the work, not a hundred times."""
    store = Store.in_memory()

    def recorded(count: int) -> int:
        recorder = store.record(Request("x"))
        for index in range(count):
            recorder.append(dataclasses.replace(step(index % 1000), index=index))
            if index % 100 == 99:
                recorder.flush()
        keep(recorder, ended())
        assert recorder.message is not None
        return recorder.message

    def opened(message: int) -> int:
        assert text(store.steps(message)) == store.conversations.message(message).text
        with store.database.read() as connection:
            read = database_steps(connection, lambda: store.steps(message))
        return read + calls(lambda: (store.steps(message), store.conversations.message(message)))

    short, long = recorded(340), recorded(3_400)
    assert opened(long) < 12 * opened(short)
    assert len(store.steps(long)) == 3_400


def test_a_step_of_a_later_reply_number_is_the_same_step() -> None:
    """The engine numbers replies by the session; the store numbers them for good."""
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    keep(recorder, step(0, reply=17), ended(reply=17))
    assert store.steps(recorder.message, reply=17) == [step(0, reply=17)]
    assert store.conversations.message(recorder.message).ended(17) == ended(reply=17)
