"""Pictures of the history at 80x24 and 140x45, without anything random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from kits.screen_stage import Host, until
from kits.stored import OTHER, TINY, converse
from textual.pilot import Pilot
from textual.widgets import Static

from ds4chat.store import Store, open_store
from ds4chat.tui.history import screen as history
from ds4chat.tui.history.screen import HistoryScreen

# Pictures of whole screens; their contents are also tested without pictures.
pytestmark = pytest.mark.slow

SIZES = ((80, 24), (140, 45))
NOON = datetime(2026, 6, 15, 12).timestamp()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Thirty conversations, two days apart, one of them pinned, one with branches."""
    days = iter(range(-60, 10_000))
    at = {"now": NOON}
    store = open_store(tmp_path / "conversations.db")
    monkeypatch.setattr(store.database, "_wall", lambda: at["now"])
    monkeypatch.setattr(history.time, "time", lambda: NOON)
    for i in range(30):
        at["now"] = NOON + 2 * next(days) * 43_200
        key = converse(store, f"Explain speculative decoding, part {i}", model=OTHER if i % 3 else TINY)
    store.conversations.pin(key - 20)
    path = store.conversations.path(key)
    store.conversations.set_leaf(key, path[0].id)
    store.conversations.add(key, path[0].id, "assistant", "Another answer, shorter than the first.")
    yield store
    store.close()


async def settled(pilot: Pilot[None]) -> None:
    """The list and the preview are there."""
    await until(pilot, lambda: str(pilot.app.screen.query_one("#history-text", Static).content))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_list(store: Store, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    assert snap_compare(Host(HistoryScreen(store, current=30)), terminal_size=size, run_before=settled)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_search(store: Store, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    screen = HistoryScreen(store, current=30)

    async def search(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("slash", *'"large one"', "enter")
        await until(pilot, lambda: screen._hits is not None)
        screen.query_one("#history-text", Static).update("")
        screen.read_current()
        await settled(pilot)

    assert snap_compare(Host(screen), terminal_size=size, run_before=search)
