"""Slash commands as typed, and what completes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny
from kits.chat_stage import Open
from kits.screen_stage import work_done

from ds4chat.tui.app import ChatApp
from ds4chat.tui.chat.screen import ChatScreen
from ds4chat.tui.chat.slash_commands import ChatCommands
from ds4chat.tui.command_table import COMMANDS, CommandError, is_command, parse
from ds4chat.tui.messages import PromptSubmitted
from ds4chat.tui.prompt.completion import suggest


def test_every_command_has_a_handler() -> None:
    for command in COMMANDS:
        name = command.name
        owners = ((ChatCommands, f"do_{name}"), (ChatScreen, f"action_{name}"), (ChatApp, f"action_{name}"))
        assert command.sets or any(callable(getattr(owner, method, None)) for owner, method in owners)


def test_names_are_unique() -> None:
    names = [name for command in COMMANDS for name in (command.name, *command.aliases)]
    assert len(names) == len(set(names))


def test_an_unknown_command_names_the_nearest() -> None:
    with pytest.raises(CommandError, match=r"no command /modle. Did you mean /model\?"):
        parse("/modle")


def test_a_command_without_its_argument_says_what_it_takes() -> None:
    with pytest.raises(CommandError, match=r"/read needs FILE after it: put a text file into the prompt"):
        parse("/read")


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.argument], ids=lambda c: c.name)
def test_a_command_without_an_argument_refuses_one(command) -> None:
    """What follows it is never passed over: it may have been meant as text."""
    with pytest.raises(CommandError, match=f"/{command.name} takes no argument"):
        parse(f"/{command.name} the rest of a sentence")


def test_an_alias_and_the_argument_are_read() -> None:
    parsed = parse("/depth  4 ")
    assert (parsed.command.name, parsed.argument) == ("draft", "4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/help", True),
        ("/draft 3", True),
        (" /help", False),
        ("/usr/bin is a folder", False),
        ("/", False),
        ("/help\nme", False),
        ("1/2", False),
    ],
)
def test_a_path_or_a_text_is_no_command(text: str, expected: bool) -> None:
    assert is_command(text) is expected


def test_commands_complete_by_their_beginning_first() -> None:
    assert next(s.insert for s in suggest("/ma")) == "/margin "
    assert "/think" in [s.insert for s in suggest("/think")]


def test_arguments_complete() -> None:
    assert [s.insert for s in suggest("/draft a")] == ["auto"]
    assert "top-p" in [s.insert for s in suggest("/set top")]


def test_theme_names_complete() -> None:
    assert [s.insert for s in suggest("/theme d", ("day", "dusk", "night"))] == ["day", "dusk"]


def test_files_complete_after_read_and_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "node").mkdir()
    (tmp_path / ".hidden").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert [s.insert for s in suggest("/read no")] == ["node/", "notes.txt"]
    assert [s.insert for s in suggest("look at @not")] == ["notes.txt"]
    assert suggest("look at @not")[0].start == len("look at @")
    assert [s.label for s in suggest("/read .h")] == [".hidden"]


def test_a_mention_of_a_path_with_blanks_goes_between_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my file.py").write_text("x")
    (tmp_path / "my folder").mkdir()
    (tmp_path / "my folder" / "in it.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert [s.insert for s in suggest("see @my")] == ['"my folder/', '"my file.py"']
    (found,) = suggest('see @"my folder/in i')
    assert (found.insert, found.start) == ('"my folder/in it.txt"', len("see @"))
    assert suggest('see @"my file.py"') == []
    assert [s.insert for s in suggest("/read my f")] == ["my folder/", "my file.py"]


def test_only_models_complete_where_a_model_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.gguf", "B.GGUF", "notes.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [s.insert for s in suggest("/model ")] == ["models/", "a.gguf", "B.GGUF"]
    assert [s.insert for s in suggest("/mtp ./")] == ["./models/", "./a.gguf", "./B.GGUF"]


def test_ordinary_text_completes_nothing() -> None:
    assert suggest("hello there") == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
async def test_a_pipe_or_an_unknown_home_is_refused_and_the_line_stays(opened: Open, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with opened() as chat:
        for line in ("/read {}", "/model {}", "/mtp {}", "say @{}", "/read ~no-such-user/{}"):
            text, before = line.format(pipe), len(chat.said())
            await chat.type(text, "enter")
            await work_done(chat.pilot)
            await chat.settle()
            assert (chat.prompt, chat.engine.generates) == (text, [])
            said = chat.said()[before:]
            assert len(said) == 1 and "pipe" in said[0], line
            chat.screen.prompt.text_field.put("")


@pytest.mark.parametrize(
    ("support", "why"),
    [("embedded", "has no NextN block inside"), ("{other}", "it was made for the architecture deepseek4")],
)
async def test_a_support_choice_that_does_not_fit_keeps_the_drafter_in_use(
    support: str, why: str, opened: Open, tiny_dir: Path
) -> None:
    target, other = tiny.build("llama", tiny_dir), tiny.build("deepseek4-support", tiny_dir)
    async with opened() as chat:
        chat.app.load(model=str(target), lookup=True)
        await chat.settle()
        sent = list(chat.engine.sent)
        line = f"/mtp {support.format(other=other)}"
        await chat.type(line, "escape", "enter")
        await work_done(chat.pilot)
        await chat.settle()
        assert chat.engine.sent == sent
        assert why in chat.said()[-1]
        assert (chat.prompt, chat.app.settings.mtp, chat.screen.chat.state) == (line, "", "ready")


async def test_another_drafter_ends_a_pause(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/mtp off", "escape", "enter")
        assert chat.app.chat.tuning.depth == 0
        await chat.type("/mtp lookup", "escape", "enter")
        assert chat.app.chat.tuning.depth == 2 and chat.app.settings.lookup


async def test_editing_says_how_many_prompts_there_are(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/edit", "escape", "enter")
        assert chat.said() == ["There is no prompt to edit yet."]
        await chat.type("one", "enter")
        await chat.type("/edit 2", "escape", "enter")
        assert chat.said()[-1] == "This conversation has only 1 prompt: 1 is the last."


async def test_prompts_keep_their_order_while_files_are_read(opened: Open, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("inside")
    async with opened() as chat:
        for text in (f"one @{file}", "two", f"three @{file}"):
            chat.screen.post_message(PromptSubmitted(text))
        await chat.pilot.pause()
        for _ in range(3):
            await work_done(chat.pilot)
            await chat.settle()
        quoted = "notes.txt:\n```\ninside\n```"
        asked = [g.messages[-1].content for g in chat.engine.generates]
        assert asked == [f"one {quoted}", "two", f"three {quoted}"]
