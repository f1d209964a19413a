"""What a day's use needs: presets, the last conversation, export, an editor, a context that fills, clicks."""

from __future__ import annotations

import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from kits.chat import PIECES, ReplayEngine, ended, loaded, steps_of
from kits.chat_stage import Chat, Open
from kits.screen_stage import work_done

from ds4chat.engine.events import EngineDied
from ds4chat.settings.schema import Settings
from ds4chat.store import Store
from ds4chat.tui.app import ChatApp
from ds4chat.tui.chat.editor import EditorError, edited
from ds4chat.tui.panels.tuning import TuningPanel
from ds4chat.tui.recorder import Recorder


async def command(chat: Chat, line: str) -> None:
    await chat.type(line, "escape", "enter")
    await work_done(chat.pilot)
    await chat.settle()


async def test_saving_a_preset_leaves_the_sessions_options_out_of_the_file(opened: Open) -> None:
    async with opened(mtp_margin=0.5, temp=0.25, notices=True) as chat:
        chat.app.post_message(TuningPanel.PresetSaved("mine", {"mtp-draft": 3}))
        await chat.searched()
        assert tomllib.loads(chat.app.settings_file.path.read_text()) == {
            "presets": {"mine": {"mtp-draft": 3}}
        }
        await command(chat, "/preset mine")
        assert chat.app.chat.tuning.depth == 3
        await command(chat, "/preset yours")
        assert any("no preset yours. Presets: mine" in said for said in chat.said())


async def test_the_last_conversation_is_opened_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))
    store = Store.in_memory()
    talk = store.conversations
    key = talk.create()
    asked = talk.add(key, None, "user", "An earlier prompt")
    talk.add(key, asked, "assistant", "An imported answer")
    app = ChatApp(Settings(model="/models/tiny.gguf"), ReplayEngine(), Recorder(store))
    app.first_conversation = talk.latest()
    async with app.run_test(size=(80, 24)) as pilot:
        await work_done(pilot)
        chat = Chat(app, pilot, app.chat.engine)  # type: ignore[arg-type]
        await chat.settle()
        shown = chat.shown()
        # A reply without steps shows its text among the tokens, too, and is no stopped one.
        assert "An earlier prompt" in shown and "An imported answer" in shown and "stopped" not in shown
        assert app.chat.conversation.key == key


async def test_export_proposes_a_name_and_says_the_whole_path(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(notices=True) as chat:
        await chat.type("Why is the sky blue?", "enter")
        await command(chat, "/export")
        assert chat.prompt == "/export why-is-the-sky-blue.md"
        await chat.press("escape", "enter")
        await work_done(chat.pilot)
        await chat.settle()
        file = tmp_path / "why-is-the-sky-blue.md"
        assert f"Written to {file}." in chat.said()
        assert "Why is the sky blue?" in file.read_text()


def editor(folder: Path, script: str) -> dict[str, str]:
    file = folder / "my editor"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return {"EDITOR": f"'{file}' --wait"}


def test_the_editor_gets_the_prompt_and_gives_it_back(tmp_path: Path) -> None:
    assert edited("one", editor(tmp_path, 'printf "\\nzwei é\\n" >> "$2"')) == "one\nzwei é"


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "No editor is named: set EDITOR"),
        ({"EDITOR": "'"}, "is not a program"),
        ({"EDITOR": "/no/such/program"}, "cannot edit the prompt: No such file"),
        ({"EDITOR": "false"}, "ended with code 1"),
    ],
)
def test_an_editor_that_fails_is_said(environ: dict[str, str], says: str) -> None:
    with pytest.raises(EditorError, match=says):
        edited("one", environ)


async def test_a_context_that_fills_is_said_once_with_what_to_do(opened: Open) -> None:
    async with opened(load=loaded(n_ctx=70), size=(100, 40)) as chat:
        await chat.type("one", "enter")
        await chat.type("two", "enter")
        assert chat.shown().count("The context is nearly full: 62 of 70 tokens") == 1
        assert "/ctx 140" in chat.shown()
        await command(chat, "/drop 1")
        await chat.type("three", "enter")
        assert [m.content for m in chat.engine.generates[-1].messages if m.role == "user"] == ["two", "three"]
        await command(chat, "/drop 0")
        await chat.type("four", "enter")
        users = [m.content for m in chat.engine.generates[-1].messages if m.role == "user"]
        assert users == ["one", "two", "three", "four"]


async def test_more_than_there_is_cannot_be_dropped(opened: Open) -> None:
    async with opened(notices=True) as chat:
        await chat.type("one", "enter")
        await command(chat, "/drop 1")
        assert any("nothing to leave out" in said for said in chat.said())
        chat.screen.prompt.text_field.put("")
        await chat.type("two", "enter")
        await command(chat, "/drop 2")
        assert any("from 0 to 1" in said for said in chat.said())


async def test_there_is_no_queue_to_drop(opened: Open) -> None:
    async with opened(notices=True) as chat:
        await command(chat, "/unqueue")
        assert "No prompt waits." in chat.said()


async def test_the_status_line_takes_clicks(opened: Open) -> None:
    async with opened(size=(120, 30), notices=True) as chat:
        await chat.push(*steps_of(1, PIECES), ended(1))
        row = chat.shown().splitlines()[-1]
        await chat.pilot.click(offset=(row.index("eagle3 depth") + 2, 29))
        await chat.settle()
        assert chat.app.chat.tuning.depth == 0
        row = chat.shown().splitlines()[-2]
        await chat.pilot.click(offset=(row.index("MTP off") + 2, 28))
        await chat.settle()
        assert chat.app.chat.tuning.depth == 2
        row = chat.shown().splitlines()[-1]
        await chat.pilot.click(offset=(row.index("ctx") + 1, 29))
        await chat.settle()
        assert any(said.startswith("The context holds") for said in chat.said())


async def test_a_context_that_a_server_does_not_tell_is_no_figure(opened: Open) -> None:
    async with opened(size=(120, 30), notices=True, answer=False) as chat:
        await chat.type("hi", "enter")
        steps = [replace(step, context_used=0) for step in steps_of(1, PIECES)]
        await chat.push(*steps, replace(ended(1), context_used=0))
        assert "ctx –/2,048" in chat.shown()
        await command(chat, "/ctx")
        assert "The server does not say how many tokens the context holds." in chat.said()


async def test_the_hint_takes_clicks(opened: Open) -> None:
    from ds4chat.tui.help.screen import HelpScreen

    async with opened(size=(100, 30)) as chat:
        rows = chat.shown().splitlines()
        y = next(i for i, row in enumerate(rows) if row.rstrip().endswith("F1 help"))
        await chat.pilot.click(offset=(rows[y].index("F1 help") + 1, y))
        await chat.pilot.pause()
        assert isinstance(chat.app.screen, HelpScreen)


async def test_a_command_that_cannot_run_now_says_the_one_reason(opened: Open) -> None:
    async with opened(answer=False, notices=True) as chat:
        for line, reason in (
            ("/undo", "There is nothing to undo."),
            ("/check", "There is no reply to check yet."),
            ("/compare", "There is no prompt to compare settings with yet."),
        ):
            await chat.type(line, "enter")
            assert chat.said()[-1] == reason
            chat.screen.prompt.text_field.put("")
        await chat.type("one", "enter")
        for line in ("/undo", "/check", "/compare"):
            await chat.type(line, "enter")
            assert chat.said()[-1] == "A reply is running: Esc stops it."
            chat.screen.prompt.text_field.put("")
        await chat.push(*steps_of(1, PIECES), EngineDied(1, None, "SIGKILL", "It was killed.", ()))
        for line in ("/check", "/compare"):
            await chat.type(line, "enter")
            assert chat.said()[-1] == "The engine stopped: F5 loads the model again."
            chat.screen.prompt.text_field.put("")
