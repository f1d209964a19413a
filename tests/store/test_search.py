"""Search finds what a reader would, and never takes the user's text for a query language."""

from __future__ import annotations

from collections.abc import Callable, Sized
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.stored_replies import ended, keep, step
from kits.work import database_steps

from ds4chat.store import ModelIdentity, Store, open_store
from ds4chat.store.recording import Request
from ds4chat.store.search import MOST_TERMS, SNIPPET_LENGTH

TEXTS = {
    "cpp": "In C++ you write x->y; in C you may, too.",
    "cafe": "The Café au lait was “naïve”, said Zoë.",
    "quick": "The quick brown fox jumps over the lazy dog",
    "chinese": "推测解码让模型更快地生成文本",
    "snake": "call mtp_draft_depth(3) or mtpXdraft",
    "percent": "100% of 5_000 \\ done",
    "operators": 'He said "near" AND left NOT long after OR so',
}


@pytest.fixture(scope="module")
def store() -> Store:
    made = Store.in_memory()
    for title, text in TEXTS.items():
        conversation = made.conversations.create(f"title {title}")
        made.conversations.add(conversation, None, "user", text)
    return made


def found(store: Store, query: str) -> set[str]:
    """Titles of the conversations with a message that matches."""
    return {hit.title.removeprefix("title ") for hit in store.search(query) if hit.message is not None}


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("fox", {"quick"}),
        ("FOX quick", {"quick"}),
        ("qui", {"quick"}),
        ("fox absent", set()),
        ('"quick brown"', {"quick"}),
        ('"brown quick"', set()),
        ('"quick bro"', set()),
        ('"quick bro', set()),
        ("cafe naive zoe", {"cafe"}),
        ("CAFÉ", {"cafe"}),
        ("C++", {"cpp"}),
        ("->", {"cpp"}),
        ("x->y", {"cpp"}),
        ("解码", {"chinese"}),
        ("模型 文本", {"chinese"}),
        ("mtp_draft", {"snake"}),
        ("100%", {"percent"}),
        ("5_000", {"percent"}),
        ("\\", {"percent"}),
        ("%", {"percent"}),
        ("AND", {"operators"}),
        ("NOT near", {"operators"}),
        ("NEAR(fox dog)", set()),
        ("text:fox", set()),
        ("fox*", set()),
        ("", set()),
        (' "" ', set()),
        ('"', set()),
    ],
)
def test_what_is_found(store: Store, query: str, titles: set[str]) -> None:
    assert found(store, query) == titles


@given(st.text(max_size=40) | st.text('"*(){}^:+-|~ANDORNOTEaé解 \0\\%_', max_size=40))
def test_no_query_is_an_error_and_every_match_shows(query: str) -> None:
    store = Store.in_memory()
    conversation = store.conversations.create("AND title")
    store.conversations.add(conversation, None, "user", 'a AND ("b" OR é) 解码 ' * 20 + query + " x\0y <b>")
    for hit in store.search(query):
        assert len(hit.snippet) <= SNIPPET_LENGTH + 2
        for begin, end in hit.matches:
            assert 0 <= begin < end <= len(hit.snippet)
        assert list(hit.matches) == sorted(hit.matches)
    store.close()


def test_a_title_is_found_and_marked(store: Store) -> None:
    (hit,) = [hit for hit in store.search("TITLE cpp") if hit.message is None]
    assert (hit.snippet, hit.matches) == ("title cpp", ((0, 5), (6, 9)))


def test_matches_are_where_the_words_are(store: Store) -> None:
    (hit,) = store.search("cafe lait")
    assert [hit.snippet[begin:end] for begin, end in hit.matches] == ["Café", "lait"]
    (hit,) = store.search("解码")
    assert [hit.snippet[begin:end] for begin, end in hit.matches] == ["解码"]


def test_accents_written_as_characters_of_their_own_are_marked_with_their_letters() -> None:
    store = Store.in_memory()
    conversation = store.conversations.create("t")
    store.conversations.add(conversation, None, "user", "un cafe\u0301, s'il vous plai\u0302t; cafeteria")
    (hit,) = store.search("café plait")
    shown = [hit.snippet[begin:end] for begin, end in hit.matches]
    assert shown == ["cafe\u0301", "plai\u0302t", "cafeteria"]
    (hit,) = store.search('"cafe s il"')
    assert [hit.snippet[begin:end] for begin, end in hit.matches] == ["cafe\u0301, s'il"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("run", ["\u0301", " ", "_", "a ", "ab "])
def test_marking_matches_is_fast_for_any_text(run: str) -> None:
    store = Store.in_memory()
    conversation = store.conversations.create("t")
    store.conversations.add(conversation, None, "user", "ab x ab " + "ab" + run * 300_000 + "y")
    assert len(store.search('"ab x"')) == 1


def test_a_match_deep_in_a_long_text_is_in_the_snippet() -> None:
    store = Store.in_memory()
    for size in (1_000, 100_000):
        conversation = store.conversations.create("t")
        store.conversations.add(conversation, None, "user", "wörd\n" * size + "needle " + "tail " * size)
    hits = store.search("needle")
    assert len(hits) == 2
    for hit in hits:
        assert hit.snippet.startswith("…") and hit.snippet.endswith("…")
        assert [hit.snippet[begin:end] for begin, end in hit.matches] == ["needle"]
        assert "\n" not in hit.snippet


def test_text_with_nul_is_kept_and_its_beginning_found() -> None:
    store = Store.in_memory()
    conversation = store.conversations.create("t")
    message = store.conversations.add(conversation, None, "user", "before\0after")
    assert store.conversations.message(message).text == "before\0after"
    assert [hit.message for hit in store.search("before")] == [message]


def test_a_reply_is_found_once_it_ended_and_a_deleted_conversation_is_not() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("question", model=ModelIdentity("/m/a.gguf", "Alpha")))
    keep(recorder, step(7), ended(tail="epilogue"))
    assert [hit.message for hit in store.search("t007 epilogue")] == [recorder.message]
    assert [hit.message for hit in store.search("epilogue", model="alph")] == [recorder.message]
    assert store.search("epilogue", model="beta") == []
    store.conversations.delete(recorder.conversation)
    assert store.search("epilogue") == []
    store.conversations.restore(recorder.conversation)
    assert len(store.search("epilogue")) == 1
    store.conversations.delete(recorder.conversation)
    store.conversations.purge(store.database.now_ms() + 1)
    with store.database.read() as connection:
        assert connection.execute("SELECT count(*) FROM search WHERE search MATCH 'epilogue'").fetchone() == (
            0,
        )
        connection.execute("INSERT INTO search (search) VALUES ('integrity-check')")


def test_a_very_long_query_is_cut_to_its_first_terms(store: Store) -> None:
    assert found(store, "fox " * (MOST_TERMS + 5_000)) == {"quick"}
    assert found(store, "fox " + "x" * 1_000_000) == set()


def test_the_best_match_comes_first() -> None:
    store = Store.in_memory()
    conversation = store.conversations.create("t")
    long = store.conversations.add(conversation, None, "user", "draft " + "other words " * 200)
    short = store.conversations.add(conversation, long, "user", "draft depth draft")
    assert [hit.message for hit in store.search("draft")] == [short, long]
    assert [hit.message for hit in store.search("draft", limit=1)] == [short]


def test_where_too_many_match_the_newest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4chat.store.search.MOST_RANKED", 2)
    store = Store.in_memory()
    conversation = store.conversations.create("t")
    best = store.conversations.add(conversation, None, "user", "draft draft")
    next_best = store.conversations.add(conversation, best, "user", "draft of other words")
    assert [hit.message for hit in store.search("draft")] == [best, next_best]
    newest = store.conversations.add(conversation, next_best, "user", "draft " + "other words " * 200)
    assert [hit.message for hit in store.search("draft")] == [newest, next_best, best]
    assert [hit.message for hit in store.search("draft", limit=1)] == [newest]


def test_a_hit_says_where_in_the_text_its_first_match_is() -> None:
    store = Store.in_memory()
    conversation = store.conversations.create("t")
    text = "é" * 500 + " lines\nbefore the Needle, and one more needle"
    store.conversations.add(conversation, None, "user", text)
    (hit,) = store.search("needle")
    assert text[hit.at :].startswith("Needle, and")
    assert [hit.snippet[a:b] for a, b in hit.matches] == ["Needle", "needle"]


def effort(store: Store, look: Callable[[], Sized]) -> tuple[int, int]:
    """What a look at the database takes, in steps of SQLite, and how much it finds."""
    found: list[int] = []
    with store.database.read() as connection:
        return database_steps(connection, lambda: found.append(len(look()))), found[0]


def test_words_of_every_message_are_found_faster_than_all_of_them_are_ranked(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    with store.database.write():
        conversation = store.conversations.create("t")
        parent = None
        for number in range(4_000):
            parent = store.conversations.add(
                conversation, parent, "user", f"w{number} many other words " * 40
            )

    def ranked() -> list[int]:
        with store.database.read() as connection:
            return connection.execute(
                "SELECT rowid FROM search WHERE search MATCH ? ORDER BY rank LIMIT 5",
                ('"w" * AND "m" * AND "o" * AND "words" *',),
            ).fetchall()

    ours, found = effort(store, lambda: store.search("w m o words", limit=5))
    theirs, same = effort(store, ranked)
    assert (found, same) == (5, 5) and 0 < ours < theirs / 2
    store.close()


def test_the_index_beats_reading_every_message(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c.db")
    with store.database.write():
        conversation = store.conversations.create("t")
        parent = None
        for number in range(3_000):
            words = f"message {number} " + "and many other words " * 40 + ("rare" if number == 1500 else "")
            parent = store.conversations.add(conversation, parent, "user", words)

    def read_all() -> list[str]:
        with store.database.read() as connection:
            rows = connection.execute("SELECT text FROM messages WHERE conversation = ?", (conversation,))
            return [text for (text,) in rows if "rare" in text]

    ours, found = effort(store, lambda: store.search("rare"))
    theirs, same = effort(store, read_all)
    assert (found, same) == (1, 1) and 0 < ours < theirs / 10
    store.close()
