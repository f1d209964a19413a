"""The command palette: everything that can be done, found by its name or by what it does."""

from __future__ import annotations

from kits.chat_stage import Chat, Open
from textual.command import CommandPalette
from textual.widgets import OptionList

from ds4chat.tui.command_table import COMMANDS
from ds4chat.tui.help.screen import own_keys


async def open_palette(chat: Chat, words: str = "") -> OptionList:
    await chat.press("ctrl+p")
    palette = chat.app.screen
    assert isinstance(palette, CommandPalette)
    await chat.pilot.press(*words)
    await chat.searched()
    return palette.query_one(OptionList)


def texts(options: OptionList) -> list[str]:
    return [str(options.get_option_at_index(i).prompt) for i in range(options.option_count)]


async def choose(chat: Chat) -> None:
    await chat.pilot.press("down", "enter")
    while isinstance(chat.app.screen, CommandPalette):
        await chat.pilot.pause(0.02)
    await chat.settle()


async def test_every_command_and_every_key_without_one_is_there_once(opened: Open) -> None:
    async with opened() as chat:
        listed = texts(await open_palette(chat))
        for command in COMMANDS:
            assert sum(command.help in text and command.usage in text for text in listed) == 1, command
        with_command = {command.action for command in COMMANDS}
        for node in (chat.app, chat.screen):
            for row in own_keys(node, chat.app):
                if row.binding.id not in with_command and row.binding.id != "app.palette":
                    assert sum(row.binding.description in t and row.shown in t for t in listed) == 1, row
        assert any("/help [WORDS]  F1" in text for text in listed), "with the key that does the same"


def test_the_key_that_a_command_names_is_an_action() -> None:
    from ds4chat.tui.app import ChatApp
    from ds4chat.tui.chat.reading import ReadingScreen
    from ds4chat.tui.chat.screen import ChatScreen

    known = {b.id for owner in (ChatApp, ChatScreen, ReadingScreen) for b in vars(owner)["BINDINGS"]}
    assert {command.action for command in COMMANDS if command.action} <= known


async def test_a_command_is_found_by_name_and_by_what_it_does(opened: Open) -> None:
    async with opened() as chat:
        for words in ("theme", "colours"):
            listed = texts(await open_palette(chat, words))
            assert any("Choose the colours" in text for text in listed), (words, listed)
            await chat.press("escape")


async def test_a_name_that_begins_so_comes_before_words_that_have_it(opened: Open) -> None:
    """ "them" is also in what /help does, and "mod" in what many do."""
    async with opened() as chat:
        for words in ("them", "/the", "mod", "ex"):
            first = texts(await open_palette(chat, words))[0]
            assert f"/{words.strip('/')}" in first, words
            await chat.press("escape")


async def test_a_command_that_needs_more_begins_in_the_prompt_and_the_draft_is_kept(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("half a thought")
        await open_palette(chat, "/set KEY VALUE")
        await choose(chat)
        assert chat.prompt == "/set "
        assert chat.app.focused is chat.screen.prompt.text_field
        await chat.press("ctrl+u")
        await chat.press("up")
        assert chat.prompt == "half a thought"


async def test_an_action_without_a_command_is_done(opened: Open) -> None:
    async with opened() as chat:
        assert chat.screen.chat.tuning.depth == 2
        await open_palette(chat, "Draft one token more")
        await choose(chat)
        assert chat.screen.chat.tuning.depth == 3
