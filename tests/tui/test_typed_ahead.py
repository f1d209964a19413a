"""Letters typed right after the key that opens a field: they are the field's, never commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kits.chat import ReplayEngine
from kits.screen_stage import work_done
from kits.stored import converse
from textual import events
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from ds4chat.settings.schema import Settings
from ds4chat.store import Store, open_store
from ds4chat.tui.app import ChatApp
from ds4chat.tui.history.screen import HistoryScreen
from ds4chat.tui.log.screen import LogScreen
from ds4chat.tui.settings.file import SettingsFile
from ds4chat.tui.settings.screen import SettingsScreen


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "conversations.db")
    yield store
    store.close()


Open = Callable[[Screen[Any]], AbstractAsyncContextManager[tuple[ChatApp, Pilot[Any]]]]


@pytest.fixture
def over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a sheet over the chat."""
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))

    @asynccontextmanager
    async def opened(sheet: Screen[Any]) -> AsyncIterator[tuple[ChatApp, Pilot[Any]]]:
        app = ChatApp(Settings(model="/models/tiny.gguf"), ReplayEngine())
        async with app.run_test(size=(80, 24)) as pilot:
            app.push_screen(sheet)
            await work_done(pilot)
            yield app, pilot

    return opened


async def burst(pilot: Pilot[Any], keys: str) -> None:
    """All keys at once, as they come while the screen is busy: each is on its way before the first is
    dealt with."""
    target = pilot.app.focused
    assert target is not None
    for key in keys:
        name = {"/": "slash", "\n": "enter"}.get(key, key)
        target._forward_event(events.Key(name, None if key == "\n" else key))
    await pilot.pause()
    await pilot.pause()


def field(screen: Screen[Any], name: str) -> str:
    return screen.query_one(name, Input).value


async def test_a_search_in_the_history_deletes_and_renames_nothing(store: Store, over: Open) -> None:
    converse(store, "a dragon")
    converse(store, "a knight")
    async with over(HistoryScreen(store)) as (app, pilot):
        await burst(pilot, "/dragon")
        assert field(app.screen, "#history-search") == "dragon"
    assert len(store.conversations.listed()) == 2


async def test_a_search_in_the_log_follows_nothing(tmp_path: Path, over: Open) -> None:
    path = tmp_path / "a.log"
    path.write_text("one f\ntwo fn\n")
    async with over(LogScreen(path)) as (app, pilot):
        await burst(pilot, "/fn")
        assert field(app.screen, "#log-search") == "fn"
        await burst(pilot, "\n")
        assert app.focused is app.screen.query_one("#log-view")


async def test_a_filter_of_the_settings_saves_and_resets_nothing(tmp_path: Path, over: Open) -> None:
    path = tmp_path / "c.toml"
    async with over(SettingsScreen(Settings(), SettingsFile(path, Settings(), {}))) as (app, pilot):
        await burst(pilot, "/seeds")
        assert field(app.screen, "#settings-filter") == "seeds"
    assert not path.exists()
