"""The history screen by keys over a real store, and what the chat does with what was chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.chat import ReplayEngine
from kits.screen_stage import Host, until
from kits.stored import OTHER, TEXT, converse
from textual.pilot import Pilot
from textual.widgets import Input, Static

from ds4chat.settings.paths import state_file
from ds4chat.settings.schema import Settings
from ds4chat.store import Store, StoreError, open_store
from ds4chat.tui.app import ChatApp
from ds4chat.tui.conversation import Reply, UserTurn
from ds4chat.tui.history import changes as changes
from ds4chat.tui.history.branches import BranchScreen
from ds4chat.tui.history.changes import Chosen
from ds4chat.tui.history.screen import HistoryScreen
from ds4chat.tui.kit.row_list import RowList
from ds4chat.tui.recorder import Recorder, read_conversation


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    ticks = iter(range(1_700_000_000, 1_800_000_000))
    store = open_store(tmp_path / "conversations.db")
    monkeypatch.setattr(store.database, "_wall", lambda: float(next(ticks)))
    yield store
    store.close()


def shown(app: Host | ChatApp) -> list[str]:
    """The rows of the list on top."""
    found = app.screen.query_one(RowList)
    width = found.size.width
    return ["\n".join(line.plain for line in found._draw(i, width)) for i in range(found._count)]


def text_of(app: Host, name: str) -> str:
    return str(app.screen.query_one(name, Static).content)


async def test_the_list_has_pinned_ones_first_then_the_newest_and_a_preview(store: Store) -> None:
    first, second, third = (converse(store, f"ask {name}") for name in ("one", "two", "three"))
    store.conversations.pin(first)
    app = Host(HistoryScreen(store, current=second))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 3)
        rows = shown(app)
        assert [row[3:12].strip() for row in rows] == ["ask one", "ask three", "ask two"]
        assert [row[:2] for row in rows] == [" ★", "  ", "● "]
        # The conversation of the chat is the current row.
        await until(pilot, lambda: "ask two" in text_of(app, "#history-text"))
        assert TEXT in text_of(app, "#history-text")
        assert "12 drafts accepted" not in text_of(app, "#history-text")
        await pilot.press("home")
        await until(pilot, lambda: "ask one" in text_of(app, "#history-text"))
        await pilot.press("enter")
        await pilot.pause()
    assert app.results == [Chosen(first)]
    assert Chosen(third) not in app.results


async def test_search_marks_the_matches_and_opens_the_branch_that_holds_one(store: Store) -> None:
    key = converse(store, "the quick fox")
    root = store.conversations.path(key)[0].id
    store.conversations.set_leaf(key, None)
    converse(store, "the slow fox", conversation=key)
    converse(store, "no animal")
    app = Host(HistoryScreen(store))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 2)
        await pilot.press("slash", *"quick fo")

        def marked() -> set[str]:
            """The words that stand out in the second row."""
            if len(shown(app)) != 2 or "You: the quick fox" not in shown(app)[1]:
                return set()
            said = app.screen.query_one(RowList)._draw(1, 90)[1]
            return {said.plain[s.start : s.end] for s in said.spans if getattr(s.style, "bgcolor", None)}

        await until(pilot, lambda: marked() == {"quick", "fox"})
        await pilot.press("enter", "down", "enter")
        await until(pilot, lambda: app.results)
    # The first of both words begins after "the ".
    assert app.results == [Chosen(key, root, 4)]
    assert store.conversations.path(key)[0].id == root


async def test_rename_pin_delete_and_undo(store: Store) -> None:
    key = converse(store, "ask one")
    converse(store, "ask two")
    app = Host(HistoryScreen(store, current=key))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 2)
        await pilot.press("r")
        assert app.screen.query_one("#history-ask", Input).value == "ask one"
        app.screen.query_one("#history-ask", Input).value = "Foxes"
        await pilot.press("enter")
        await until(pilot, lambda: "Foxes" in shown(app)[1])
        await pilot.press("p")
        await until(pilot, lambda: shown(app)[0].startswith("●★ Foxes"))
        await pilot.press("d")
        await until(pilot, lambda: len(shown(app)) == 1)
        assert store.conversations.get(key).deleted_ms is not None
        await pilot.press("u")
        await until(pilot, lambda: len(shown(app)) == 2)
        assert store.conversations.get(key).deleted_ms is None
        assert "Foxes" in shown(app)[0]


def test_deleting_a_conversation_removes_its_saved_state(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text could be read back from that. Those of other conversations stay."""
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    key, other = converse(store, "ask one"), converse(store, "ask two")
    state_file(key).parent.mkdir(parents=True)
    for number in (key, other):
        state_file(number).write_bytes(b"tokens")
    delete = store.conversations.delete

    def killed_before(conversation: int) -> None:
        assert not state_file(key).exists()
        delete(conversation)

    monkeypatch.setattr(store.conversations, "delete", killed_before)
    changes.delete(store, key)
    assert store.conversations.get(key).deleted_ms is not None
    assert list(state_file(key).parent.iterdir()) == [state_file(other)]


def test_a_conversation_whose_saved_state_cannot_be_deleted_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    key = converse(store, "ask one")
    state_file(key).mkdir(parents=True)  # what unlink refuses
    with pytest.raises(StoreError, match=r"The saved state .* cannot be deleted"):
        changes.delete(store, key)
    assert store.conversations.get(key).deleted_ms is None


def test_deleting_from_a_store_in_memory_leaves_the_states_of_the_one_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    store = Store.in_memory()
    key = converse(store, "ask one")
    state_file(key).parent.mkdir(parents=True)
    state_file(key).write_bytes(b"tokens")
    changes.delete(store, key)
    assert state_file(key).exists()


async def test_a_conversation_that_is_written_to_is_not_deleted(store: Store) -> None:
    key = converse(store, "ask one")
    app = Host(HistoryScreen(store, current=key, writing=key))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown(app))
        await pilot.press("d")
        await pilot.pause()
        assert [n.message for n in app._notifications] == [
            "A reply is being written to this conversation. Stop it first."
        ]
    assert store.conversations.get(key).deleted_ms is None


async def test_only_the_conversations_of_one_model(store: Store) -> None:
    converse(store, "ask one")
    converse(store, "ask two", model=OTHER)
    app = Host(HistoryScreen(store))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 2)
        await pilot.press("m")
        await until(pilot, lambda: len(shown(app)) == 1)
        assert "ask two" in shown(app)[0]
        assert text_of(app, "#history-state").endswith("model: Other")
        await pilot.press("m")
        await until(pilot, lambda: shown(app) and "ask one" in shown(app)[0])
        await pilot.press("m")
        await until(pilot, lambda: len(shown(app)) == 2)


async def test_branches_are_drawn_switched_and_forked(store: Store) -> None:
    key = converse(store, "root")
    prompt, first = store.conversations.path(key)
    store.conversations.set_leaf(key, prompt.id)
    again = store.conversations.add(key, prompt.id, "assistant", "another answer")
    app = Host(HistoryScreen(store))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown(app))
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, BranchScreen) and len(shown(app)) == 3)
        assert [row[:12] for row in shown(app)] == ["● You: root", "  ├ Model: S", "● ├ Model: a"]
        await pilot.press("up", "enter")
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        assert store.conversations.get(key).active_leaf == first.id
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, BranchScreen) and len(shown(app)) == 3)
        await pilot.press("end", "f")
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen) and len(shown(app)) == 2)
        assert "root (fork)" in shown(app)[0]
    made = store.conversations.listed()[0]
    assert made.forked_from == again
    assert [m.text for m in store.conversations.path(made.id)] == ["root", "another answer"]


async def test_export_and_import_round_trip(store: Store, tmp_path: Path) -> None:
    converse(store, "ask one")
    file = tmp_path / "one.json"
    app = Host(HistoryScreen(store))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown(app))
        await pilot.press("e")
        app.screen.query_one("#history-ask", Input).value = str(file)
        await pilot.press("enter")
        await until(pilot, file.exists)
        await pilot.press("i")
        app.screen.query_one("#history-ask", Input).value = str(file)
        await pilot.press("enter")
        await until(pilot, lambda: len(shown(app)) == 2)
        await pilot.press("i")
        app.screen.query_one("#history-ask", Input).value = str(tmp_path / "missing.json")
        await pilot.press("enter")
        await until(pilot, lambda: any("cannot be read" in n.message for n in app._notifications))
    assert json.loads(file.read_text())["title"] == "ask one"
    one, two = store.conversations.listed()
    assert [m.text for m in store.conversations.path(one.id)] == [
        m.text for m in store.conversations.path(two.id)
    ]


async def test_ten_thousand_conversations_are_drawn_where_they_are_in_sight(store: Store) -> None:
    with store.database.write() as connection:
        connection.executemany(
            "INSERT INTO conversations (title, created_ms, updated_ms) VALUES (?, ?, ?)",
            [(f"title {i}", i, i) for i in range(10_000)],
        )
    app = Host(HistoryScreen(store))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.screen.query_one(RowList)._count == 10_000)
        rows = app.screen.query_one(RowList)
        drawn: list[int] = []
        draw = rows._draw
        rows._draw = lambda index, width: (drawn.append(index), draw(index, width))[1]
        await pilot.press("end")
        await pilot.pause()
        assert "title 0 " in draw(9_999, 78)[0].plain
        assert set(drawn) <= {0, *range(9_950, 10_000)}


async def test_model_text_is_shown_harmless(store: Store) -> None:
    converse(store, "ask\x1b]0;owned\x07", pieces=[("red \x1b[31m\u202e text", "plain")])
    app = Host(HistoryScreen(store))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "text" in text_of(app, "#history-text"))
        assert "\x1b" not in text_of(app, "#history-text") + "".join(shown(app))
        assert "\\x1b[31m\\u202e text" in text_of(app, "#history-text")


# ---------------------------------------------------------------------------------------- with the chat


@pytest.fixture
def chat(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChatApp:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    settings = Settings(model="/models/tiny.gguf", mtp_draft=2)
    return ChatApp(settings, ReplayEngine(), Recorder(store))


async def test_a_chosen_conversation_is_shown_and_goes_on(chat: ChatApp, store: Store) -> None:
    key = converse(store, "ask one")
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: chat.chat.state == "ready")
        await pilot.press("ctrl+b")
        await until(pilot, lambda: isinstance(chat.screen, HistoryScreen) and shown(chat))
        await pilot.press("enter")
        await until(pilot, lambda: chat.chat.conversation.key == key)
        user, reply = chat.chat.conversation.turns
        assert isinstance(user, UserTurn)
        assert isinstance(reply, Reply)
        assert chat.chat_screen.transcript.shows(reply)
        chat.chat_screen.prompt.text_field.insert("ask more")
        await pilot.press("enter")
        await until(pilot, lambda: len(chat.chat.conversation.turns) == 4 and chat.chat.reply is None)
        # The recorder's thread stores the reply.
        stored = ["ask one", TEXT, "ask more", TEXT]
        await until(pilot, lambda: [m.text for m in store.conversations.path(key)] == stored)


async def open_hit(chat: ChatApp, pilot: Pilot[int], query: str, down: int = 0) -> None:
    """Open the history, search, and choose one of what was found."""
    await pilot.press("ctrl+b")
    await until(pilot, lambda: isinstance(chat.screen, HistoryScreen) and shown(chat))
    before = shown(chat)
    await pilot.press("slash", *query)
    await until(pilot, lambda: shown(chat) and shown(chat) != before)
    await pilot.press("enter", *["down"] * down, "enter")
    await until(pilot, lambda: not isinstance(chat.screen, HistoryScreen))


def sight(chat: ChatApp) -> tuple[range, str]:
    """The rows of the transcript that are in sight, and the text that is selected."""
    transcript = chat.chat_screen.transcript
    top = transcript.scroll_offset.y
    return range(top, top + transcript.size.height), chat.chat_screen.get_selected_text() or ""


@pytest.mark.parametrize("shown_already", [False, True], ids=["another", "the one in the chat"])
async def test_a_prompt_that_was_found_is_in_sight_and_marked(
    chat: ChatApp, store: Store, shown_already: bool
) -> None:
    others = [f"ask {number}" for number in range(10)]
    key = converse(store, *others, "a quick fox", *others)
    converse(store, "another")
    if shown_already:
        chat.chat.conversation = read_conversation(store, key, chat.chat.next_number)
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: chat.chat.state == "ready")
        chat.chat_screen.show_conversation()
        await pilot.pause()
        await open_hit(chat, pilot, "quick fox")
        await until(pilot, lambda: sight(chat)[1])
        rows, selected = sight(chat)
        assert selected == "a quick fox"
        transcript = chat.chat_screen.transcript
        assert "a quick fox" in transcript.render_line(0).text
        assert rows.stop < transcript.virtual_size.height
        assert not transcript.following
        await pilot.press("escape")
        assert sight(chat)[1] == ""


@pytest.mark.parametrize("view", ["tokens", "markdown"])
async def test_a_reply_that_was_found_is_open_at_the_word(chat: ChatApp, store: Store, view: str) -> None:
    words: list[tuple[str, object]] = [(f" word{number}", "plain") for number in range(2_000)]
    words[700] = (" needle", "plain")
    key = converse(store, "ask one", "ask two", pieces=words)
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: chat.chat.state == "ready")
        chat.chat_screen.run_command(f"/view {view}")
        await open_hit(chat, pilot, "needle", down=1)
        transcript = chat.chat_screen.transcript
        await until(pilot, lambda: transcript.cursor)
        assert transcript.cursor is not None
        reply, token = transcript.cursor
        assert chat.chat.conversation.key == key
        assert reply.tokens[token].text == " needle"
        await pilot.pause()
        in_sight = [transcript.render_line(y).text for y in range(transcript.size.height)]
        assert any(" needle" in row for row in in_sight)


async def test_deleting_the_conversation_of_the_chat_begins_a_new_one(chat: ChatApp, store: Store) -> None:
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: chat.chat.state == "ready")
        chat.chat_screen.prompt.text_field.insert("ask one")
        await pilot.press("enter")
        await until(pilot, lambda: chat.chat.conversation.last_reply and chat.chat.reply is None)
        chat.chat_screen.run_command("/history")
        await until(pilot, lambda: isinstance(chat.screen, HistoryScreen) and shown(chat))
        await pilot.press("d")
        await until(pilot, lambda: not shown(chat))
        await pilot.press("escape")
        await until(pilot, lambda: not chat.chat.conversation.turns)
    assert chat.chat.conversation.key is None


async def test_export_of_the_chat_is_the_document_that_can_be_imported(
    chat: ChatApp, store: Store, tmp_path: Path
) -> None:
    from ds4chat.store.importing import import_file

    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: chat.chat.state == "ready")
        chat.chat_screen.prompt.text_field.insert("ask one")
        await pilot.press("enter")
        await until(pilot, lambda: chat.chat.conversation.last_reply and chat.chat.reply is None)
        chat.chat_screen.run_command(f"/export {tmp_path / 'chat.json'}")
        await until(pilot, lambda: any("Written to" in n.message for n in chat._notifications))
        made = import_file(store, tmp_path / "chat.json")
        assert [m.text for m in store.conversations.path(made)] == ["ask one", TEXT]
        chat.chat_screen.run_command(f"/export {tmp_path / 'chat.json'}")
        await until(pilot, lambda: any("exists already" in n.message for n in chat._notifications))
        # The command that failed is in the prompt again.
        await until(pilot, lambda: chat.chat_screen.prompt.text.startswith("/export "))
