"""Where what is typed goes: into the prompt, from the first moment on and wherever the focus is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from kits.chat_stage import Open
from kits.terminal import Terminal
from textual import events

from ds4chat.tui.help.screen import HelpScreen
from ds4chat.tui.kit.slider import Control
from ds4chat.tui.panels.confidence import ConfidenceLog
from ds4chat.tui.panels.panel import PanelTitle

TEXT = "use a space"


async def test_typing_on_a_panel_title_reaches_the_prompt(opened: Open) -> None:
    """Tab with nothing to complete goes there. The first letters are keys of the Tuning panel's controls."""
    async with opened(size=(140, 45)) as chat:
        titles = list(chat.screen.query(PanelTitle))
        assert len(titles) == 4
        for title in titles:
            title.focus()
            await chat.press(*("space" if c == " " else c for c in TEXT))
            assert (chat.prompt, chat.app.focused) == (TEXT, chat.screen.prompt.text_field)
            chat.screen.prompt.text_field.put("")


async def test_tab_leaves_the_prompt_and_typing_comes_back_to_it(opened: Open) -> None:
    async with opened(size=(140, 45)) as chat:
        await chat.press("a", "tab")
        assert isinstance(chat.app.focused, PanelTitle)
        await chat.press("b", "c")
        assert chat.prompt == "abc"


async def test_typing_on_what_takes_no_text_reaches_the_prompt(opened: Open) -> None:
    """With no focus at all, Enter and Backspace are the prompt's too."""
    async with opened(size=(140, 45)) as chat:
        for where in (chat.screen.query_one(ConfidenceLog), None):
            chat.screen.set_focus(where)
            await chat.press("h", "i", "backspace", "o")
            assert chat.prompt == "ho", where
            if where is not None:
                chat.screen.prompt.text_field.put("")
        chat.screen.set_focus(None)
        await chat.press("enter")
        assert [g.messages[-1].content for g in chat.engine.generates] == ["ho"]


async def test_a_paste_reaches_the_prompt_wherever_the_focus_is(opened: Open) -> None:
    async with opened(size=(140, 45)) as chat:
        for where in (chat.screen.query(PanelTitle).first(), chat.transcript, None):
            chat.screen.set_focus(where)
            chat.app.post_message(events.Paste("two\nlines"))
            await chat.pilot.pause()
            await chat.pilot.pause()
            assert chat.prompt == "two\nlines"
            chat.screen.prompt.text_field.put("")


async def test_a_control_keeps_its_own_keys_and_gives_the_others_to_the_prompt(opened: Open) -> None:
    async with opened(size=(140, 60)) as chat:
        control = chat.screen.query_one("#control-margin", Control)
        control.focus()
        await chat.press("0", ".", "5", "enter")
        assert chat.screen.chat.tuning.margin == 0.5
        assert chat.app.focused is control
        await chat.press("h", "i")
        assert chat.prompt == "hi"
        chat.screen.query_one("#control-depth", Control).focus()
        await chat.press("a", "u", "t", "o", "enter")
        assert chat.screen.chat.tuning.depth == "auto"


async def test_a_key_of_the_panel_around_the_focus_is_the_panels(opened: Open) -> None:
    async with opened(size=(140, 60)) as chat:
        chat.screen.query_one(ConfidenceLog).focus()
        await chat.press("question_mark")
        assert isinstance(chat.app.screen, HelpScreen)
        await chat.press("escape")
        assert chat.prompt == ""


async def test_space_opens_a_folded_prompt_in_the_conversation(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("\n".join(f"line {n}" for n in range(40)), "enter")
        chat.transcript.focus()
        assert "more lines" in chat.shown()
        await chat.press("home", "space")
        assert "more lines" not in chat.shown()
        assert chat.prompt == ""


async def test_a_second_undo_is_a_command_and_the_text_it_stood_behind_comes_back_with_up(
    opened: Open,
) -> None:
    async with opened() as chat:
        for text in ("first", "second"):
            await chat.type(text, "enter")
        for text in ("second", "first"):
            await chat.press(*"/undo", "enter")
            assert chat.prompt == text
        assert chat.screen.chat.conversation.turns == []
        assert [g.messages[-1].content for g in chat.engine.generates] == ["first", "second"]
        await chat.press("/", "backspace", "up")
        assert chat.prompt == "first"


async def test_a_slash_in_a_text_that_was_touched_is_a_slash(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("either", "enter")
        await chat.press(*"/undo", "enter", *" or/nor")
        assert chat.prompt == "either or/nor"


async def test_a_refused_command_makes_way_for_the_next_one(opened: Open) -> None:
    async with opened() as chat:
        await chat.press(*"/dra", "space", *"x", "enter")
        assert chat.prompt == "/dra x"
        await chat.press(*"/temp", "space", "1", "enter")
        assert chat.screen.chat.tuning.temp == 1


@pytest.mark.slow  # a chat in a terminal of its own
@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.4])
def test_what_is_typed_while_it_starts_is_in_the_prompt(
    seconds: float, tiny_dir: Path, tmp_path: Path
) -> None:
    target = tiny.build("llama", tiny_dir)
    chat = Terminal("-m", target, "-t", "1", DS4CHAT_HOME=str(tmp_path))
    try:
        chat.read(seconds)
        chat.type("early words")
        chat.until(lambda screen: "│ early words" in screen and "ready" in screen)
    finally:
        chat.close()


@pytest.mark.slow  # a chat in a terminal of its own
def test_joiners_no_break_spaces_and_alt_enter_arrive_as_a_terminal_sends_them(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """Sent whole to the model, and read back from what was stored of the prompt."""
    target = tiny.build("llama", tiny_dir)
    chat = Terminal("-m", target, "-t", "1", "-n", "1", DS4CHAT_HOME=str(tmp_path))
    try:
        chat.until("ready")
        chat.type("می\u200cخواهم 1\u00a0km\x1b\rend")
        chat.until("end")
        chat.type("\r")
        chat.until("cut at its limit")
        chat.enter(f"/export {tmp_path}/talk.json")
        chat.until("Written to")
    finally:
        chat.close()
    talk = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert talk["messages"][0]["text"] == "می\u200cخواهم 1\u00a0km\nend"
