"""Conversations as trees: branches, forks, the list, and what is kept beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.stored_replies import ended, keep, step

from ds4chat.store import ModelIdentity, Store, StoreError, open_store
from ds4chat.store.entities import TITLE_LENGTH
from ds4chat.store.history import MOST_MODELS, MOST_PROMPTS
from ds4chat.store.recording import Request


@pytest.fixture
def store() -> Iterator[Store]:
    """A store whose clock goes on by a second at each look."""
    seconds = itertools.count(1_700_000_000)
    made = Store.in_memory(lambda: float(next(seconds)))
    yield made
    made.close()


def exchange(store: Store, prompt: str, answer: str = "yes", conversation: int | None = None) -> list[int]:
    """A prompt and its answer at the end of the path; their numbers after the conversation's."""
    made = store.conversations
    number = made.create() if conversation is None else conversation
    user = made.add(number, made.get(number).active_leaf, "user", prompt)
    return [number, user, made.add(number, user, "assistant", answer)]


def edited(store: Store, message: int, text: str) -> int:
    """A changed copy of a message as its sibling; its number."""
    found = store.conversations.message(message)
    return store.conversations.add(found.conversation, found.parent, found.role, text)


def texts(store: Store, conversation: int) -> list[str]:
    return [message.text for message in store.conversations.path(conversation)]


def test_the_path_leads_from_the_first_message_to_the_active_leaf(store: Store) -> None:
    conversation, *_ = exchange(store, "one", "1")
    exchange(store, "two", "2", conversation)
    assert texts(store, conversation) == ["one", "1", "two", "2"]
    roles = [message.role for message in store.conversations.path(conversation)]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_an_edit_is_a_branch_beside_the_old_message(store: Store) -> None:
    conversation, *_ = exchange(store, "one", "1")
    _, second, answer = exchange(store, "two", "2", conversation)
    copy = edited(store, second, "zwei")
    assert texts(store, conversation) == ["one", "1", "zwei"]
    assert store.conversations.versions(conversation) == dict.fromkeys((second, copy), (second, copy))
    # Back on the old branch, its answer is shown again.
    assert store.conversations.show_branch(second) == answer
    assert texts(store, conversation) == ["one", "1", "two", "2"]


def test_the_first_message_can_be_edited_too(store: Store) -> None:
    conversation, first, _ = exchange(store, "one")
    other = edited(store, first, "uno")
    assert texts(store, conversation) == ["uno"]
    assert store.conversations.versions(conversation)[first] == (first, other)


def test_a_reply_asked_for_again_is_a_sibling(store: Store) -> None:
    conversation, prompt, answer = exchange(store, "one", "1")
    again = store.record(Request(None, parent=prompt))
    keep(again, step(0), ended())
    assert again.conversation == conversation
    assert store.conversations.versions(conversation)[answer] == (answer, again.message)
    assert [m.id for m in store.conversations.path(conversation)] == [prompt, again.message]


def test_rewind_takes_messages_off_the_path_and_keeps_them(store: Store) -> None:
    conversation, _, answer = exchange(store, "one", "1")
    exchange(store, "two", "2", conversation)
    store.conversations.set_leaf(conversation, answer)
    assert texts(store, conversation) == ["one", "1"]
    store.conversations.set_leaf(conversation, None)
    assert texts(store, conversation) == []
    assert len(store.conversations.messages(conversation)) == 4


def test_the_tree_names_every_message_and_its_parent(store: Store) -> None:
    conversation, first, answer = exchange(store, "one", "1")
    copy = edited(store, first, "uno")
    tree = store.conversations.tree(conversation)
    assert [(n.id, n.parent, n.preview) for n in tree] == [
        (first, None, "one"),
        (answer, first, "1"),
        (copy, None, "uno"),
    ]


def test_a_fork_is_a_conversation_of_its_own_with_tokens_and_rows(store: Store) -> None:
    recorder = store.record(Request("count", system="be brief"))
    steps = [step(0, thinking=True), step(1)]
    keep(recorder, *steps, ended("length", tail="..."))
    assert recorder.conversation is not None and recorder.message is not None
    exchange(store, "more", "later", recorder.conversation)

    fork = store.conversations.fork(recorder.message)
    path = store.conversations.path(fork)
    original = store.conversations.path(recorder.conversation, recorder.message)
    assert [m.text for m in path] == [m.text for m in original]
    assert [(m.finish_reason, m.tokens, m.accepted) for m in path][-1] == ("length", 6, 4)
    assert store.steps(path[-1].id) == steps
    assert store.conversations.get(fork).forked_from == recorder.message

    # The two have nothing in common any more.
    store.conversations.delete(recorder.conversation)
    assert store.conversations.purge(store.database.now_ms() + 1) == 1
    assert store.steps(path[-1].id) == steps
    assert store.conversations.get(fork).forked_from is None


def test_a_reply_that_still_runs_is_forked_as_far_as_it_is(store: Store) -> None:
    recorder = store.record(Request("count"))
    keep(recorder, step(0))
    assert recorder.message is not None
    copy = store.conversations.path(store.conversations.fork(recorder.message))[-1]
    assert (copy.state, copy.text) == ("stopped", "t000 🙂é\n\t~")


def test_the_list_has_pinned_ones_first_then_the_newest(store: Store) -> None:
    a, b, c = (exchange(store, name)[0] for name in "abc")
    store.conversations.pin(a)
    exchange(store, "again", conversation=b)
    assert [found.id for found in store.conversations.listed()] == [a, b, c]
    store.conversations.pin(a, False)
    assert [found.id for found in store.conversations.listed(limit=2)] == [b, c]


def test_a_title_is_the_first_prompt_until_it_is_renamed(store: Store) -> None:
    conversation, *_ = exchange(store, "  Why\nis the sky   blue? ")
    exchange(store, "And at night?", conversation=conversation)
    assert store.conversations.get(conversation).title == "Why is the sky blue?"
    store.conversations.rename(conversation, "Sky\x00\nfacts")
    assert store.conversations.get(conversation).title == "Sky\x00 facts"
    long = exchange(store, "x" * 500)[0]
    assert store.conversations.get(long).title == "x" * (TITLE_LENGTH - 1) + "…"


def test_delete_is_undone_by_restore_and_final_only_after_a_purge(store: Store) -> None:
    conversation, *_ = exchange(store, "one")
    before = store.database.now_ms()
    store.conversations.delete(conversation)
    assert store.conversations.listed() == []
    assert store.conversations.get(conversation).deleted_ms is not None
    store.conversations.restore(conversation)
    assert texts(store, conversation) == ["one", "yes"]

    store.conversations.delete(conversation)
    assert store.conversations.purge(before) == 0
    assert store.conversations.purge(store.database.now_ms()) == 1
    with pytest.raises(StoreError, match="There is no conversation"):
        store.conversations.get(conversation)


def test_nothing_of_what_was_purged_can_be_read_in_the_files(tmp_path: Path) -> None:
    """Neither in the index of words nor in the history of prompts; what was asked elsewhere too stays."""
    path = tmp_path / "c.db"
    store = open_store(path)
    kept, gone = store.conversations.create("kept"), store.conversations.create("zygomorphic")
    for conversation, text in ((kept, "common"), (gone, "common"), (gone, "xylophone"), (gone, "vuvuzela")):
        store.conversations.add(conversation, None, "user", text)
        store.history.add_prompt(text)
    store.history.add_prompt("unsent")
    store.conversations.delete(gone)
    assert store.conversations.purge(store.database.now_ms() + 1) == 1
    assert store.history.prompts() == ["common", "unsent"]
    assert [hit.conversation for hit in store.search("common")] == [kept]
    store.close()
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"common" in content
    assert [word for word in (b"zygomorphic", b"ylophone", b"uvuzela") if word in content] == []


def test_a_path_longer_than_sqlites_recursion_is_read_and_purged(store: Store) -> None:
    conversation = store.conversations.create()
    parent = None
    with store.database.write():
        for number in range(3000):
            parent = store.conversations.add(conversation, parent, "user", str(number))
    assert texts(store, conversation) == [str(number) for number in range(3000)]
    store.conversations.delete(conversation)
    assert store.conversations.purge(store.database.now_ms()) == 1
    with store.database.read() as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone()[0] == 0
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_damaged_path_with_a_cycle_ends(store: Store) -> None:
    conversation, first, answer = exchange(store, "one", "1")
    with store.database.write() as connection:
        connection.execute("UPDATE messages SET parent = ? WHERE id = ?", (answer, first))
    assert [m.id for m in store.conversations.path(conversation)] == [first, answer]
    assert store.conversations.show_branch(first) == answer


def test_the_list_is_filtered_by_the_models_that_answered(store: Store) -> None:
    names = ("Qwen3_8B", "Qwen348B")
    made = []
    for name in names:
        recorder = store.record(Request("hi", model=ModelIdentity(f"/m/{name}.gguf", name)))
        keep(recorder, ended())
        made.append(recorder.conversation)
    # An underscore is a character like any other, not a placeholder.
    assert [found.id for found in store.conversations.listed(model="n3_8")] == [made[0]]
    assert [found.models for found in store.conversations.listed(model="qwen")] == [(n,) for n in names[::-1]]
    assert store.conversations.listed(model="%") == []
    assert [model.name for model in store.conversations.models()] == list(names[::-1])


@pytest.mark.parametrize(
    "act",
    [
        lambda made: made.get(9),
        lambda made: made.path(9),
        lambda made: made.rename(9, "x"),
        lambda made: made.delete(9),
        lambda made: made.add(9, None, "user", "x"),
        lambda made: made.message(9),
        lambda made: made.fork(9),
        lambda made: made.show_branch(9),
    ],
)
def test_a_missing_conversation_or_message_is_reported(store: Store, act) -> None:
    with pytest.raises(StoreError, match=r"There is no (conversation|message) 9") as error:
        act(store.conversations)
    assert error.value.kind == "gone"


def test_a_message_cannot_have_a_parent_in_another_conversation(store: Store) -> None:
    _, stranger, _ = exchange(store, "one")
    other = store.conversations.create()
    with pytest.raises(StoreError, match="is not in conversation"):
        store.conversations.add(other, stranger, "user", "x")
    assert store.conversations.messages(other) == []


def test_text_that_cannot_be_encoded_is_stored_with_replacements(store: Store) -> None:
    conversation, *_ = exchange(store, "a\udc80\ud83d\ude42b\0c", "1 MB: " + "x" * 1_000_000)
    assert texts(store, conversation)[0] == "a\ufffd\ufffd\ufffdb\0c"
    assert len(texts(store, conversation)[1]) == 1_000_006


def test_prompts_are_kept_in_order_without_repetition_and_at_most_a_thousand(store: Store) -> None:
    for prompt in ("a", "a", "b", "a", "  ", ""):
        store.history.add_prompt(prompt)
    assert store.history.prompts() == ["a", "b", "a"]
    with store.database.write():
        for number in range(MOST_PROMPTS + 5):
            store.history.add_prompt(str(number))
    assert store.history.prompts() == [str(number) for number in range(5, MOST_PROMPTS + 5)]


def test_the_unsent_text_and_the_models_used_are_kept(store: Store) -> None:
    assert store.history.draft() == ""
    store.history.keep_draft("half a thou")
    store.history.keep_draft("half a thought\n")
    assert store.history.draft() == "half a thought\n"
    for number in range(MOST_MODELS + 3):
        store.history.used_model(f"/m/{number}.gguf")
    store.history.used_model("/m/5.gguf", support="embedded", lookup=True, name="Five")
    store.history.used_model("/m/9.gguf")
    recent = store.history.recent_models()
    assert len(recent) == MOST_MODELS
    assert [(m.path, m.support, m.lookup) for m in recent[:3]] == [
        ("/m/9.gguf", "", False),
        ("/m/5.gguf", "embedded", True),
        (f"/m/{MOST_MODELS + 2}.gguf", "", False),
    ]


def test_versions_share_a_place_whatever_system_prompt_is_between(store: Store) -> None:
    talk = store.conversations
    key = talk.create()
    asked = talk.add(key, None, "user", "Why?")
    first = talk.add(key, asked, "assistant", "First.")
    below = talk.under_system(key, asked, "Be brief.")
    second = talk.add(key, below, "assistant", "Second.")
    copy = edited(store, asked, "How?")
    assert talk.versions(key) == {
        first: (first, second),
        second: (first, second),
        asked: (asked, copy),
        copy: (asked, copy),
    }


def test_a_long_title_ends_with_a_whole_word(store: Store) -> None:
    key = store.conversations.create()
    store.conversations.add(key, None, "user", "word " * 40)
    title = store.conversations.get(key).title
    assert title == f"{' '.join(['word'] * ((TITLE_LENGTH + 1) // 5))}…" and len(title) <= TITLE_LENGTH


def test_the_latest_conversation_is_the_one_written_to_last(store: Store) -> None:
    talk = store.conversations
    assert talk.latest() is None
    first, second, third = talk.create(), talk.create(), talk.create()
    talk.pin(first)
    assert talk.latest() == third
    talk.delete(third)
    assert talk.latest() == second
