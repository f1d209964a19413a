"""Every slash command that takes an argument uses it, or refuses it with a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny
from kits.chat_stage import Chat, Open
from kits.screen_stage import work_done

from ds4chat.engine.events import Load
from ds4chat.tui.command_table import COMMANDS
from ds4chat.tui.explorer.screen import ExplorerScreen
from ds4chat.tui.help.screen import HelpScreen
from ds4chat.tui.messages import SettingsChanged
from ds4chat.tui.settings.screen import SettingsScreen
from ds4chat.tui.settings.theme_picker import ThemePicker

# A chat is opened for each case.
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A command with a good argument and a bad one."""

    good: str
    bad: str
    refusal: str
    """Part of the sentence about the bad one."""


CASES: dict[str, Case] = {
    "undo": Case("tuning", "everything", "/undo takes tuning, or no argument."),
    "model": Case("{file}", "nowhere.gguf", "nowhere.gguf is not a file"),
    "mtp": Case("off", "sometimes", "/mtp takes on, off, embedded, lookup, none or a file"),
    "draft": Case("7", "17", "mtp-draft 17 is out of range: it takes 1 to 16, or auto."),
    "margin": Case("0.75", "3", "out of range"),
    "gate": Case("2.5", "wide", "gate"),
    "temp": Case("0.6", "-1", "out of range"),
    "set": Case("top-k 12", "top-q 12", "top-q is not a known key; did you mean top-p?"),
    "read": Case("{text}", "nowhere.txt", "nowhere.txt"),
    "ctx": Case("1024", "long", "ctx-size"),
    "try": Case("2", "4", "/try takes 1, 2 or 3"),
    "compare": Case("plain 4", "plain deeper", "deeper is not a setting to compare"),
    "view": Case("markdown", "pictures", "/view takes tokens or markdown"),
    "theme": Case("ds4-light", "ds4-lihgt", "There is no theme 'ds4-lihgt'. Did you mean ds4-light"),
    "export": Case("{out}", "{nowhere}", "nowhere"),
    "edit": Case("1", "0", "0 is not a number"),
    "branch": Case("back", "sideways", "/branch takes back or forward"),
    "copy": Case("1", "all", "all is not a number"),
    "drop": Case("0", "1", "There is nothing to leave out: the model always gets the last prompt."),
    "preset": Case("mine", "yours", "There is no preset"),
}
"""The commands whose argument can be wrong."""

FREE: dict[str, str] = {
    "help": "margin",
    "settings": "margin",
    "system": "Be brief.",
    "explore": "nowhere.log",
    "get": "llama 3",
    "find": "sea",
}
"""Those that take any words; what is wrong with a log file is said by the explorer, which reads it."""


def test_every_command_with_an_argument_is_here() -> None:
    assert {*CASES, *FREE} == {command.name for command in COMMANDS if command.argument}


def filled(argument: str, folder: Path) -> str:
    model, text = folder / "m.gguf", folder / "notes.txt"
    if "{file}" in argument:
        model.write_bytes(tiny.build("llama", folder).read_bytes())
    text.write_text("a note")
    places = {"{file}": model, "{text}": text, "{out}": folder / "out.md", "{nowhere}": "/nowhere/x.md"}
    return str(places.get(argument, argument))


@pytest.mark.parametrize("name", CASES)
async def test_a_bad_argument_is_refused_in_a_sentence_and_stays_to_be_mended(
    name: str, opened: Open, tmp_path: Path
) -> None:
    async with opened() as chat:
        await chat.type("Hi", "enter")
        before = (chat.screen.chat.tuning, chat.app.settings, list(chat.screen.chat.conversation.turns))
        line = f"/{name} {filled(CASES[name].bad, tmp_path)}"
        await chat.type(line, "escape", "enter")
        assert any(CASES[name].refusal in said for said in chat.said()), chat.said()
        assert not any(said.startswith("--") for said in chat.said()), "the chat has no such options"
        assert chat.prompt == line
        assert before == (
            chat.screen.chat.tuning,
            chat.app.settings,
            list(chat.screen.chat.conversation.turns),
        )


async def effect(chat: Chat, name: str, folder: Path) -> object:
    """What shows that the good argument was used."""
    controller, app = chat.screen.chat, chat.app
    return {
        "undo": controller.tuning.temp,
        "model": Path(app.settings.model).name,
        "mtp": controller.tuning.depth,
        "draft": controller.tuning.depth,
        "margin": controller.tuning.margin,
        "gate": controller.tuning.gate,
        "temp": controller.tuning.temp,
        "set": controller.tuning.top_k,
        "read": "a note" in chat.screen.prompt.text,
        "ctx": next(c.ctx for c in reversed(chat.engine.sent) if isinstance(c, Load)),
        "try": [g.messages[-1].content for g in chat.engine.generates],
        "compare": [g.tuning.depth for g in chat.engine.generates if g.trial][:2],
        "view": chat.transcript.markdown,
        "theme": (app.theme, app.settings.theme),
        "export": (folder / "out.md").exists(),
        "edit": chat.prompt,
        "branch": any("There is no other version" in said for said in chat.said()),
        "copy": "Copied reply 1." in chat.said(),
        "drop": "The model gets the whole conversation again." in chat.shown(),
        "preset": controller.tuning.depth,
    }[name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("undo", 0.0),
        ("model", "m.gguf"),
        ("mtp", 0),
        ("draft", 7),
        ("margin", 0.75),
        ("gate", 2.5),
        ("temp", 0.6),
        ("set", 12),
        ("read", True),
        ("ctx", 1024),
        ("try", ["Hi", "Write a short story about a fox."]),
        ("compare", [0, 4]),
        ("view", True),
        ("theme", ("ds4-light", "ds4-light")),
        ("export", True),
        ("edit", "Hi"),
        ("branch", True),
        ("copy", True),
        ("drop", True),
        ("preset", 3),
    ],
)
async def test_a_good_argument_is_used(name: str, expected: object, opened: Open, tmp_path: Path) -> None:
    async with opened() as chat:
        await chat.type("Hi", "enter")
        if name == "undo":
            chat.screen.run_command("/temp 0.9")
        if name == "preset":
            chat.app.post_message(SettingsChanged(presets={"mine": {"mtp-draft": 3}}))
            await chat.settle()
        argument = filled(CASES[name].good, tmp_path)
        assert await effect(chat, name, tmp_path) != expected
        await chat.type(f"/{name} {argument}", "escape", "enter")
        await work_done(chat.pilot)
        assert await effect(chat, name, tmp_path) == expected
        assert f"/{name}" not in chat.prompt


async def test_words_after_help_and_settings_filter_them(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/help undo", "escape", "enter")
        assert isinstance(chat.app.screen, HelpScreen)
        listed = chat.app.screen.query_one("#help-lines").text  # type: ignore[attr-defined]
        assert "/undo" in listed and "/quit" not in listed
        await chat.press("escape")
        await chat.type("/settings min-p", "escape", "enter")
        assert isinstance(chat.app.screen, SettingsScreen)
        listed = "\n".join(str(option.prompt) for option in chat.app.screen.query_one("OptionList")._options)  # type: ignore[attr-defined]
        assert "min-p" in listed and "top-k" not in listed


async def test_system_and_explore_take_any_words(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/system Be brief.", "escape", "enter")
        assert chat.screen.chat.conversation.system == "Be brief."
        await chat.type("/explore nowhere.log", "escape", "enter")
        assert isinstance(chat.app.screen, ExplorerScreen)
        await work_done(chat.pilot)
        strips = chat.app.screen._compositor.render_strips(chat.app.screen.size)
        assert "nowhere.log cannot be read" in "".join(s.text for strip in strips for s in strip)


async def test_a_system_prompt_given_in_a_conversation_says_from_when_it_holds(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        await chat.type("/system Be brief.", "escape", "enter")
        assert "System prompt: Be brief." in chat.shown()
        assert "It applies from the next prompt on; /retry answers the last one" in chat.shown()


async def test_theme_without_a_name_opens_the_picker(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/theme", "escape", "enter")
        assert isinstance(chat.app.screen, ThemePicker)
