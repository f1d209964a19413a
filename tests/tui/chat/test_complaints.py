"""What users of terminal chats complain about, where no other test stands for it."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from kits.chat import PIECES, ended, steps_of
from kits.chat_stage import Open
from kits.screen_stage import work_done
from textual.geometry import Offset

from ds4chat.tui.conversation import Reply, UserTurn
from ds4chat.tui.kit import clipboard
from ds4chat.tui.transcript.blocks import ReplyBlock, UserBlock

# A chat is opened for each case.
pytestmark = pytest.mark.slow

FENCE = [
    "Here",
    ":\n\n",
    "```",
    "python",
    "\n",
    "def ",
    "f(x)",
    ":\n",
    "    return",
    " x\n",
    "```",
    "\n\nDone.",
]


async def test_a_code_fence_is_text_while_it_forms_and_code_when_the_reply_ends(opened: Open) -> None:
    """It neither flickers while its end is missing nor goes blank when it is rendered."""
    async with opened(answer=False, view="markdown") as chat:
        await chat.type("Write f", "enter")
        steps = steps_of(1, [(text, "plain") for text in FENCE])
        written = ""
        for step, text in zip(steps, FENCE, strict=True):
            written += text
            await chat.push(step)
            shown = [line.strip() for line in chat.shown().splitlines()]
            assert all(line.strip() in shown for line in written.splitlines()), written
        assert "```" in chat.shown()
        await chat.push(ended(1, tokens=len(FENCE)))
        shown = chat.shown()
        assert "```" not in shown, "rendered"
        assert "def f(x):" in shown and "    return x" in shown and "Done." in shown
        for _ in range(2):
            await chat.press("f3")
        assert "def f(x):" in chat.shown()


async def test_a_long_conversation_draws_and_renders_only_what_is_in_sight(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 messages: a page costs rows in the number of the screen's, in either view."""
    counted: Counter[str] = Counter()

    def count(owner: type, name: str, what: str) -> None:
        real = getattr(owner, name)

        def counting(self: object, *args: object) -> object:
            counted[what] += 1
            return real(self, *args)

        monkeypatch.setattr(owner, name, counting)

    async with opened() as chat:
        turns = chat.screen.chat.conversation.turns
        for number in range(1, 2501):
            reply = Reply(number, "tiny")
            for step in steps_of(number, PIECES):
                reply.add_step(step)
            reply.end(ended(number))
            turns += [UserTurn(f"question {number}"), reply]
        chat.screen.show_conversation()
        await chat.settle()
        assert "22 tokens" in chat.shown()
        count(UserBlock, "row", "rows")
        count(ReplyBlock, "row", "rows")
        count(ReplyBlock, "render_with", "rendered")
        height = chat.transcript.size.height
        for key in ("pageup", "pageup"):
            counted.clear()
            await chat.press(key)
            chat.shown()
            assert 0 < counted["rows"] <= 2 * height
        counted.clear()
        await chat.press("f3")
        chat.shown()
        assert 0 < counted["rendered"] <= 2 * height
        assert counted["rows"] <= 3 * height
        counted.clear()
        await chat.pilot.resize_terminal(100, 30)
        await chat.settle()
        chat.shown()
        assert 0 < counted["rows"] <= 3 * chat.transcript.size.height


async def test_copying_goes_both_ways(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some terminals ignore the sequence for it and say nothing."""
    taken: list[str] = []
    monkeypatch.setattr(clipboard, "copy", lambda text: taken.append(text) or True)
    async with opened() as chat:
        await chat.type("Hi", "enter")
        await chat.type("/copy", "enter")
        await work_done(chat.pilot)
        assert chat.app.clipboard.startswith("Speculative decoding lets")
        assert taken == [chat.app.clipboard]


async def test_the_terminals_cursor_stands_where_the_text_goes_on(opened: Open) -> None:
    """An input method draws there; a wide character takes two cells."""
    async with opened() as chat:
        field = chat.screen.prompt.text_field
        await chat.type("a")
        start = chat.app.cursor_position
        await chat.type("日本")
        assert chat.app.cursor_position == start + Offset(4, 0) == field.cursor_screen_offset


async def test_the_text_can_be_scrolled_and_selected_while_it_is_written(opened: Open) -> None:
    async with opened(answer=False, size=(80, 14)) as chat:
        await chat.type("Hi", "enter")
        await chat.push(*steps_of(1, PIECES * 12))
        end = chat.transcript.scroll_offset.y
        await chat.press("pageup")
        at = chat.transcript.scroll_offset.y
        assert at < end
        await chat.push(*steps_of(1, PIECES * 4, first=200))
        assert chat.transcript.scroll_offset.y == at, "what is read stays in place"
        await chat.pilot.mouse_down("#transcript", offset=(4, 2))
        await chat.pilot.hover("#transcript", offset=(20, 2))
        await chat.pilot.mouse_up("#transcript", offset=(20, 2))
        await chat.press("ctrl+c")
        assert chat.app.clipboard and chat.screen.chat.reply is not None, "copied, and the reply goes on"


async def test_thinking_is_switched_for_the_next_turn_on(opened: Open) -> None:
    async with opened() as chat:
        for command, think in (("/nothink", False), ("/think", True)):
            await chat.type(command, "enter")
            await chat.type("Hi", "enter")
            assert chat.engine.generates[-1].think is think
            assert chat.app.settings.think is think


async def test_a_cut_reply_is_what_the_next_turn_goes_on_from(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("Hi", "enter")
        await chat.push(*steps_of(1, PIECES[:4]), ended(1, reason="length", detail="The limit is 4 tokens."))
        await chat.type("go on", "enter")
        messages = chat.engine.generates[-1].messages
        assert [m.content for m in messages[-2:]] == ["Speculative decoding lets", "go on"]


async def test_what_a_library_prints_never_reaches_the_screen(opened: Open) -> None:
    """Textual draws on stderr, where libraries print."""
    async with opened() as chat:
        before = chat.shown()
        print("stray words")
        print("stray words", file=sys.stderr)
        await chat.settle()
        assert chat.shown() == before
        assert sys.stdout is not sys.__stdout__ and sys.stderr is not sys.__stderr__
