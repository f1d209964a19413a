"""What was written, gone back to: other versions, prompts edited in their place, cut replies gone on with."""

from __future__ import annotations

import pytest
from kits.chat import ended, steps_of
from kits.chat_stage import Chat, Open
from kits.screen_stage import work_done

from ds4chat.engine.events import Message
from ds4chat.tui.conversation import Reply, UserTurn
from ds4chat.tui.recorder import read_conversation

BRIEF = {"answer": False, "size": (80, 24)}


async def answer(chat: Chat, text: str, *, reason: str = "stop") -> None:
    """The engine answers the newest request."""
    number = chat.engine.generates[-1].reply
    await chat.push(*steps_of(number, [(text, "plain")]), ended(number, reason=reason, tokens=1))
    await workers(chat)


async def workers(chat: Chat) -> None:
    await work_done(chat.pilot)
    await chat.settle()
    await chat.settle()


async def ask(chat: Chat, text: str, reply: str, *, reason: str = "stop") -> None:
    await chat.type(text, "enter")
    await answer(chat, reply, reason=reason)


def texts(chat: Chat) -> list[str]:
    return [
        turn.text if isinstance(turn, UserTurn) else turn.answer for turn in chat.app.chat.conversation.turns
    ]


async def test_a_retry_leaves_the_other_reply_one_key_away(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "Why?", "First.")
        assert "1/1" not in chat.shown()
        await chat.press("f5")
        await answer(chat, "Second.")
        assert "‹ 2/2 ›" in chat.shown()
        await chat.press("shift+f5")
        await workers(chat)
        assert texts(chat) == ["Why?", "First."]
        assert "‹ 1/2 ›" in chat.shown() and "Second." not in chat.shown()
        # What comes next follows the version shown, on disk too.
        await ask(chat, "More?", "Yes.")
        assert [m.content for m in chat.engine.generates[-1].messages] == ["Why?", "First.", "More?"]
        key = chat.app.chat.conversation.key
        assert key is not None
        assert [m.text for m in chat.app.chat.recorder.store.conversations.path(key)] == [
            "Why?",
            "First.",
            "More?",
            "Yes.",
        ]


async def test_the_marks_under_a_reply_take_clicks(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "Why?", "First.")
        await chat.press("f5")
        await answer(chat, "Second.")
        for column, wanted in ((3, "First."), (9, "Second.")):
            rows = chat.shown().splitlines()
            y = next(i for i, row in enumerate(rows) if "/2 ›" in row)
            x = rows[y].index("‹")
            await chat.pilot.click(offset=(x + column - 3, y))
            await workers(chat)
            assert texts(chat) == ["Why?", wanted]


async def test_an_end_of_the_versions_is_said(opened: Open) -> None:
    async with opened(notices=True, **BRIEF) as chat:
        await ask(chat, "Why?", "First.")
        await chat.press("shift+f5")
        assert any("no other version" in said for said in chat.said())
        await chat.press("f5")
        await answer(chat, "Second.")
        await chat.type("/branch forward", "escape", "enter")
        assert "that is the newest version" in chat.shown()
        assert texts(chat) == ["Why?", "Second."]


async def test_an_earlier_prompt_is_edited_in_its_place(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "One?", "First.")
        await ask(chat, "Two?", "Second.")
        await chat.type("/edit 2", "escape", "enter")
        assert chat.prompt == "One?"
        await chat.type(" Now.", "enter")
        assert [m.content for m in chat.engine.generates[-1].messages] == ["One? Now."]
        await answer(chat, "Other.")
        assert texts(chat) == ["One? Now.", "Other."]
        assert "‹ 2/2 ›" in chat.shown()
        await chat.press("shift+f5")
        await workers(chat)
        assert texts(chat) == ["One?", "First.", "Two?", "Second."]


async def test_editing_is_left_and_nothing_is_lost(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "One?", "First.")
        await chat.type("a draft", "ctrl+n", "up", "ctrl+e")
        assert chat.prompt == "One?"
        await chat.press("escape")
        assert chat.prompt == "" and texts(chat) == ["One?", "First."]
        # The draft is in the history; what is sent now is a new prompt.
        await chat.press("up", "up")
        assert chat.prompt == "a draft"
        await chat.press("enter")
        assert texts(chat)[:3] == ["One?", "First.", "a draft"]


@pytest.mark.parametrize("reason", ["cancelled", "length"])
async def test_a_reply_that_was_cut_is_gone_on_with(opened: Open, reason: str) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "Count.", "One, tw", reason=reason)
        assert "Ctrl+G or /continue continues it" in chat.shown()
        await chat.press("ctrl+g")
        assert chat.engine.generates[-1].messages == (
            Message("user", "Count."),
            Message("assistant", "One, tw"),
        )
        await answer(chat, "o, three.")
        await ask(chat, "Thanks.", "Yes.")
        whole = Message("assistant", "One, two, three.")
        assert chat.engine.generates[-1].messages == (
            Message("user", "Count."),
            whole,
            Message("user", "Thanks."),
        )
        # The store gives the same conversation back.
        key = chat.app.chat.conversation.key
        assert key is not None
        stored = read_conversation(chat.app.chat.recorder.store, key, chat.app.chat.next_number)
        assert stored.messages()[:2] == (Message("user", "Count."), whole)


async def test_a_complete_reply_is_not_gone_on_with(opened: Open) -> None:
    async with opened(notices=True, **BRIEF) as chat:
        await ask(chat, "Count.", "One.")
        await chat.press("ctrl+g")
        assert len(chat.engine.generates) == 1
        assert any("F5 answers again" in said for said in chat.said())


async def test_undo_takes_a_reply_and_what_went_on_with_it(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "Count.", "One, tw", reason="cancelled")
        await chat.press("ctrl+g")
        await answer(chat, "o.")
        await chat.type("/undo", "escape", "enter")
        assert texts(chat) == [] and chat.prompt == "Count."


def test_a_crash_while_going_on_keeps_what_stood_before() -> None:
    from ds4chat.tui.conversation import Conversation

    begun = Reply(1, "m", state="stopped", tail="One, tw")
    died = Reply(2, "m", state="crashed", tail="o", before=begun)
    turns = [UserTurn("Count."), begun, died]
    assert Conversation(turns=list(turns)).messages() == (
        Message("user", "Count."),
        Message("assistant", "One, tw"),
    )
    begun.state = "crashed"
    assert Conversation(turns=list(turns)).messages() == ()
    died.state = "complete"
    assert Conversation(turns=list(turns)).messages()[1] == Message("assistant", "One, two")


CODE = "First:\n\n```python\na = 1\n```\n\nthen:\n\n- item\n\n  ```sh\n  ls -l\n  ```\n"


async def copied(chat: Chat, line: str) -> str:
    await chat.type(line, "escape", "enter")
    return chat.app.clipboard


async def test_copy_takes_replies_and_code_blocks_counted_from_the_last(opened: Open) -> None:
    async with opened(notices=True, **BRIEF) as chat:
        await ask(chat, "One", CODE)
        await ask(chat, "Two", "No code.")
        assert await copied(chat, "/copy") == "No code."
        assert await copied(chat, "/copy 2") == CODE
        assert await copied(chat, "/copy code") == "ls -l"
        assert await copied(chat, "/copy code 2") == "a = 1"
        assert await copied(chat, "/copy code 3") == "a = 1"
        assert any("fewer code blocks" in said for said in chat.said())
        chat.screen.prompt.text_field.put("")
        await copied(chat, "/copy five")
        assert any("five is not a number" in said for said in chat.said())


async def test_a_key_steps_through_what_can_be_copied(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "One", CODE)
        await chat.press("ctrl+n")
        assert "reply 1  ↑ ↓ move" in chat.shown()
        await chat.press("up", "up")
        assert "code block 1 of 2 in reply 1 (python)" in chat.shown()
        selected = chat.screen.get_selected_text()
        assert selected is not None and "a = 1" in selected and "ls" not in selected
        await chat.press("enter")
        assert chat.app.clipboard == "a = 1"
        assert chat.screen.focused is chat.screen.prompt.text_field
        assert "Enter copies" not in chat.shown()


async def test_what_is_typed_leaves_the_picked_piece(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "One", "Two.")
        await chat.press("ctrl+n", "x")
        assert chat.prompt == "x" and "Enter copies" not in chat.shown()


async def test_a_reply_gone_on_with_is_copied_whole(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "Count.", "One, tw", reason="cancelled")
        await chat.press("ctrl+g")
        await answer(chat, "o.")
        assert await copied(chat, "/copy") == "One, two."


@pytest.mark.parametrize("view", ["tokens", "markdown"])
async def test_words_are_found_from_the_end_upwards(opened: Open, view: str) -> None:
    async with opened(view=view, **BRIEF) as chat:
        for number in range(12):
            await ask(chat, f"prompt {number}", f"Reply **{number}** with a needle\n\nand more.")
        await chat.press("ctrl+f", *"NEEDLE")
        assert "12 of 12" in chat.shown()
        await chat.press("enter", "enter")
        assert "10 of 12" in chat.shown()
        assert chat.screen.get_selected_text() == "needle"
        assert ("Reply 9 with" if view == "markdown" else "Reply **9** with") in chat.shown()
        await chat.press("escape")
        assert chat.screen.focused is chat.screen.prompt.text_field
        # Other words, and words that stand nowhere.
        await chat.press("ctrl+f", *"haystack")
        assert "not found" in chat.shown()


async def test_a_word_in_a_folded_prompt_is_unfolded_and_brought_into_sight(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await ask(chat, "\n".join([*(f"line {number}" for number in range(30)), "the needle"]), "Found.")
        assert "more lines" in chat.shown() and "needle" not in chat.shown()
        await chat.press("ctrl+f", *"needle")
        assert "the needle" in chat.shown() and "more lines" not in chat.shown()
        assert chat.screen.get_selected_text() == "needle"


async def test_no_reflex_key_leaves_exact_mode(opened: Open) -> None:
    async with opened(**BRIEF) as chat:
        await chat.press("ctrl+f", "escape", "ctrl+g", "ctrl+n")
        assert chat.app.chat.tuning.mode == "exact" and not chat.engine.retunes
