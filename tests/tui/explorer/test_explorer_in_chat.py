"""The explorer from the chat: its key, its command, and what it hands back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kits.chat import ReplayEngine, SettledRecorder
from kits.explorer_stage import steps_from
from kits.screen_stage import work_done
from textual.pilot import Pilot

from ds4chat.engine.events import Load, Tuning
from ds4chat.engine.speclog import conf_line
from ds4chat.settings.schema import Settings
from ds4chat.tui.app import ChatApp
from ds4chat.tui.explorer.screen import ExplorerScreen
from ds4chat.tui.help.screen import collect_keys

# A chat is opened for each case.
pytestmark = pytest.mark.slow


@asynccontextmanager
async def chat() -> AsyncIterator[tuple[ChatApp, Pilot[int], ReplayEngine]]:
    """A chat with one reply of 22 tokens, 15 of them judged."""
    engine = ReplayEngine()
    app = ChatApp(Settings(mtp_draft=2), engine, SettledRecorder())
    async with app.run_test(size=(100, 30)) as pilot:
        app.chat.load(Load("tiny.gguf"))
        app.chat_screen.draw_frame()
        await say(app, pilot, "hello")
        yield app, pilot, engine


async def say(app: ChatApp, pilot: Pilot[int], text: str) -> None:
    app.chat_screen.prompt.text_field.insert(text)
    await pilot.press("enter")
    app.chat_screen.draw_frame()
    await pilot.pause()


async def explorer(app: ChatApp, pilot: Pilot[int]) -> ExplorerScreen:
    await work_done(pilot)
    assert isinstance(app.screen, ExplorerScreen)
    return app.screen


@pytest.mark.parametrize("key", ["f11", "ctrl+l"])
async def test_its_key_opens_it_over_this_conversation_once(key) -> None:
    async with chat() as (app, pilot, _):
        await pilot.press(key)
        screen = await explorer(app, pilot)
        assert screen.said.startswith("15 rows")
        await pilot.press(key)
        assert await explorer(app, pilot) is screen
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.chat_screen


async def test_the_command_opens_a_log_file(tmp_path: Path) -> None:
    log = tmp_path / "old.log"
    log.write_text("\n".join(conf_line(one, row) for one in steps_from(("++", "-")) for row in one.judged))
    async with chat() as (app, pilot, _):
        await say(app, pilot, f"/explore {log}")
        screen = await explorer(app, pilot)
        assert screen.said.startswith("3 rows")
        assert screen.source is not None and not screen.source.in_chat


async def test_a_log_that_is_missing_is_said_in_the_explorer(tmp_path: Path) -> None:
    async with chat() as (app, pilot, _):
        await say(app, pilot, "/explore no-such.log")
        screen = await explorer(app, pilot)
        assert len(screen.table.listing) == 0
        assert "no-such.log cannot be read: No such file or directory." in str(screen._empty.content)


async def test_a_row_is_shown_in_the_text() -> None:
    """The second row is the second draft of step 1: " decoding", the third token of the reply."""
    async with chat() as (app, pilot, _):
        await say(app, pilot, "/explore")
        await explorer(app, pilot)
        await pilot.press("down", "enter")
        await pilot.pause()
        await pilot.pause()
        assert app.screen is app.chat_screen
        assert app.chat_screen.transcript.cursor == (app.chat.conversation.turns[-1], 2)
        assert app.chat_screen._card.display


async def test_what_is_applied_goes_to_the_engine_and_can_be_undone() -> None:
    async with chat() as (app, pilot, _):
        before = app.chat.tuning
        await pilot.press("f11")
        await explorer(app, pilot)
        await pilot.press("w", "right", "3", "tab", "tab")
        await pilot.press("1", "enter")
        app.screen.action_apply()  # type: ignore[attr-defined]
        await pilot.pause()
        await pilot.pause()
        assert app.chat.tuning == Tuning(**{**_values(before), "depth": 3, "gate": 1.0})
        await pilot.press("escape", "escape")
        await pilot.pause()
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert app.chat.tuning == before


def _values(tuning: Tuning) -> dict[str, object]:
    return {name: getattr(tuning, name) for name in Tuning.__slots__}


async def test_an_empty_chat_says_what_to_do() -> None:
    app = ChatApp(Settings(), ReplayEngine())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f11")
        screen = await explorer(app, pilot)
        assert "No draft was judged in this conversation yet." in str(screen._empty.content)


async def test_help_lists_its_keys() -> None:
    async with chat() as (app, pilot, _):
        await pilot.press("f11")
        await explorer(app, pilot)
        rows = {row.binding.id: row.shown for row in collect_keys(app)}
        assert "f11" in rows["app.explore"].lower()
        assert {"explorer.filter", "explorer.sort_next", "explorer.apply"} <= set(rows)
