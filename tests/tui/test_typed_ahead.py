"""Letters typed right after the key that opens a field: they are the field's, never commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kits.chat import ReplayEngine
from kits.explorer_stage import many_rows, source
from kits.screen_stage import work_done
from kits.stored import converse
from textual import events
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from ds4chat.engine.events import Tuning
from ds4chat.settings.schema import Settings
from ds4chat.store import Store, open_store
from ds4chat.tui.app import ChatApp
from ds4chat.tui.explorer.screen import ExplorerScreen
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


async def test_a_field_at_the_top_never_has_the_focus_of_the_list_below_it(
    tmp_path: Path, store: Store, over: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key typed right after the one that opens the screen is the list's: 2 shows the explorer's charts."""
    focused: list[tuple[Screen[Any], Widget | None]] = []
    set_focus = Screen.set_focus

    def noted(screen: Screen[Any], widget: Widget | None, *args: Any, **options: Any) -> None:
        focused.append((screen, widget))
        set_focus(screen, widget, *args, **options)

    monkeypatch.setattr(Screen, "set_focus", noted)
    converse(store, "a dragon")
    for sheet in (
        HistoryScreen(store),
        SettingsScreen(Settings(), SettingsFile(tmp_path / "c.toml", Settings(), {}), "margin"),
        ExplorerScreen(lambda: source(many_rows(20)), Tuning),
    ):
        async with over(sheet):
            of_sheet = [widget for screen, widget in focused if screen is sheet]
            assert of_sheet and not any(isinstance(widget, Input) for widget in of_sheet)
