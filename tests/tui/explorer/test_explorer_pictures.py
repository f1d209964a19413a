"""Pictures of the explorer at 80x24 and 140x45, dark and light, without anything random."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from kits.explorer_stage import VERDICTS, Stage, reply_of, settled, source, steps_from
from kits.looks import looks
from textual.pilot import Pilot
from textual.widgets import Input

from ds4chat.engine.events import Tuning
from ds4chat.tui.explorer.source import Source, SourceError

# Pictures of whole screens; their contents are also tested without pictures.
pytestmark = pytest.mark.slow

Scene = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture
def same(snap_compare, monkeypatch, tmp_path):
    """Compare a scene of the explorer, from an empty folder so that names of files are short and the same."""
    monkeypatch.chdir(tmp_path)

    def compare(scene: Scene, size: tuple[int, int], theme: str, load: Callable[[], Source] = source) -> bool:
        async def before(pilot: Pilot[None]) -> None:
            app = pilot.app
            app.animation_level = "none"
            await settled(pilot)
            app.theme = theme
            await scene(pilot)
            await settled(pilot)
            for field in app.screen.query(Input):
                field.cursor_blink = False
            app.mouse_position = (0, 0)  # type: ignore[assignment]
            await pilot.pause()

        return snap_compare(Stage(load), terminal_size=size, run_before=before)

    return compare


@looks
def test_rows_sorted_with_the_cursor_inside(same, size, theme) -> None:
    async def scene(pilot: Pilot[None]) -> None:
        pilot.app.explorer.table.sort("ratio")
        await pilot.press("down", "down", "down", "down")

    assert same(scene, size, theme)


@looks
def test_a_filter_that_is_none(same, size, theme) -> None:
    async def scene(pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"rejected rato<0.5")

    assert same(scene, size, theme)


@looks
def test_charts_of_the_drafters_gap(same, size, theme) -> None:
    async def scene(pilot: Pilot[None]) -> None:
        await pilot.press("h", "h")

    assert same(scene, size, theme)


@looks
def test_what_if(same, size, theme) -> None:
    async def scene(pilot: Pilot[None]) -> None:
        await pilot.press("w", "left", "down", "left", "left")

    assert same(scene, size, theme)


@looks
def test_a_file_that_exists(same, size, theme, tmp_path) -> None:
    (tmp_path / "rows.csv").write_text("mine")

    async def scene(pilot: Pilot[None]) -> None:
        await pilot.press("e", *"rows.csv", "enter")

    assert same(scene, size, theme)


@looks
def test_nothing_to_show(same, size, theme) -> None:
    def load() -> Source:
        raise SourceError("old.log cannot be read: No such file or directory.")

    async def scene(pilot: Pilot[None]) -> None:
        await pilot.pause()

    assert same(scene, size, theme, load)


@pytest.mark.parametrize(
    ("size", "theme"), [((80, 24), "ds4-dark"), ((120, 40), "ds4-light")], ids=["80x24", "120x40"]
)
def test_the_conversation_in_time(same, size, theme) -> None:
    """Three replies; the second began at another depth, and its margin changed."""
    first = reply_of(steps_from(VERDICTS))
    second = steps_from(VERDICTS[:20], Tuning(depth=4, temp=0.8), reply=2)
    changed = [replace(step, tuning=replace(step.tuning, margin=0.8)) for step in second[12:]]
    third = reply_of(steps_from(("-", "+-", "", "-") * 8, Tuning(depth=4), reply=3))
    replies = [first, reply_of([*second[:12], *changed]), third]

    async def scene(pilot: Pilot[None]) -> None:
        await pilot.press("4")
        await settled(pilot)
        await pilot.press("up")

    assert same(scene, size, theme, lambda: Source.of("this conversation", replies, in_chat=True))
