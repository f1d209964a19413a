"""What a frame of a growing reply renders and writes: the cells that changed, as Textual writes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyte
import pytest
from kits.chat import PIECES, ended, steps_of
from kits.chat_stage import Open
from rich.console import Console
from rich.segment import Segment
from textual._compositor import Compositor, CompositorUpdate
from textual._styles_cache import StylesCache
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ds4chat.engine.events import Prefill
from ds4chat.tui.kit.compositor import CellsUpdate, FrugalCompositor
from ds4chat.tui.kit.scrolling import EdgeScrollBar

# Whole sessions are drawn twice, as they are and by Textual alone.
pytestmark = pytest.mark.slow

SIZES = [(80, 24), (150, 45)]


@contextmanager
def compared(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> Iterator[list[str]]:
    """Every update that is drawn meanwhile, as what it writes to a terminal; each is made a second time by
    Textual's own compositor, and must change a terminal's screen in the same way."""
    written: list[str] = []
    console = Console(color_system="truecolor", force_terminal=True)
    frugal = FrugalCompositor.render_partial_update

    def screen(update: CompositorUpdate) -> list[list[pyte.screens.Char]]:
        """What a terminal shows that had a mark in every cell."""
        terminal = pyte.Screen(*size)
        stream = pyte.Stream(terminal)
        stream.feed("\x1b[?7l" + "".join(f"\x1b[{y + 1};1H" + "▒" * size[0] for y in range(size[1])))
        stream.feed(update.render_segments(console))
        return [[terminal.buffer[y][x] for x in range(size[0])] for y in range(size[1])]

    def both(self: FrugalCompositor) -> CellsUpdate | None:
        changed = self._dirty_regions.copy()
        update = frugal(self)
        self._dirty_regions |= changed
        plain = Compositor.render_partial_update(self)
        assert (update is None) is (plain is None)
        if update is not None and plain is not None:
            written.append(update.render_segments(console))
            assert screen(update) == screen(plain)
        return update

    with monkeypatch.context() as patch:
        patch.setattr(FrugalCompositor, "render_partial_update", both)
        yield written


@contextmanager
def rendered_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Widget, int]]]:
    """Widgets whose rows are rendered meanwhile, and how many of them at a time."""
    rendered: list[tuple[Widget, int]] = []
    render_widget, render_line = StylesCache.render_widget, StylesCache.render_line
    rows = 0

    def counted_line(self: StylesCache, *args: Any) -> Strip:
        nonlocal rows
        rows += 1
        return render_line(self, *args)

    def counted(self: StylesCache, widget: Widget, crop: Region) -> list[Strip]:
        before = rows
        strips = render_widget(self, widget, crop)
        rendered.append((widget, rows - before))
        return strips

    with monkeypatch.context() as patch:
        patch.setattr(StylesCache, "render_line", counted_line)
        patch.setattr(StylesCache, "render_widget", counted)
        yield rendered


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_it_writes_what_textual_writes(
    opened: Open, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """A reply that grows beyond the screen, panels, scrolling, the cursor, notices over the text, sheets."""
    with compared(monkeypatch, size) as written:
        async with opened(size=size, answer=False, notices=True) as chat:
            await chat.type("Tell me.", "enter")
            reply = chat.engine.generates[-1].reply
            await chat.push(Prefill(reply, 40, 40, 0, 80.0))
            pieces = [*PIECES, ("\n\n", "plain")] * 12
            steps = steps_of(reply, pieces)
            for at in range(0, len(steps), 9):
                await chat.push(*steps[at : at + 9])
                if at == 45:
                    await chat.press("f2")
                if at == 63:
                    await chat.press("f2", "pageup", "a", "ctrl+t")
                if at == 81:
                    chat.app.notify("over the text", timeout=600)  # it stays to the end
                    await chat.press("ctrl+end", "f6", "f4", "left", "escape")
                while chat.screen.dock_view.drawing_due:
                    await chat.pilot.pause(0.05)
            await chat.push(ended(reply))
            await chat.press("f1")
            await chat.press("escape", "f3", "f3")
    assert len(written) > 15


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_token_has_its_row_rendered_and_no_others(
    opened: Open, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    async with opened(size=size, answer=False, panels="") as chat:
        await chat.type("Tell me.", "enter")
        reply = chat.engine.generates[-1].reply
        steps = steps_of(reply, [("One", "plain"), (" two", "plain"), (" three", "plain")])
        await chat.push(*steps[:2])
        await chat.pilot.pause(0.3)
        with rendered_rows(monkeypatch) as rendered:
            chat.transcript.grow(grown := chat.app.chat.reply)  # type: ignore[arg-type]
            assert grown is not None
            grown.add_step(steps[2])
            chat.transcript.grow(grown)
            await chat.pilot.pause()
        of_transcript = [rows for widget, rows in rendered if widget is chat.transcript]
        assert 0 < sum(of_transcript) <= 2
        assert sum(rows for _, rows in rendered) <= 6


async def test_scrolling_renders_only_rows_that_come_into_sight(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(size=(80, 24), answer=False) as chat:
        await chat.type("Tell me.", "enter")
        reply = chat.engine.generates[-1].reply
        await chat.push(*steps_of(reply, [*PIECES, ("\n\n", "plain")] * 20))
        height = chat.transcript.size.height
        assert chat.transcript.max_scroll_y > 2 * height
        for by, most in ((-1, 1), (-height + 2, height - 2), (3, 3), (-2 * height, height)):
            with rendered_rows(monkeypatch) as rendered:
                chat.transcript.action_line(by)
                await chat.pilot.pause()
            assert sum(rows for widget, rows in rendered if widget is chat.transcript) == most


async def test_rows_that_moved_look_as_if_they_were_rendered_again(opened: Open) -> None:
    """The transcript and the confidence log, while they grow and are scrolled."""

    def shown() -> list[list[Segment]]:
        return [
            list(strip)
            for view in (chat.transcript, chat.screen.dock_view.confidence.log_view)
            for strip in view.render_lines(view.size.region)
        ]

    async with opened(size=(150, 45), answer=False) as chat:
        await chat.type("Tell me.", "enter")
        reply = chat.engine.generates[-1].reply
        steps = steps_of(reply, [*PIECES, ("\n\n", "plain")] * 20)
        log = chat.screen.dock_view.confidence.log_view
        for at in range(0, len(steps), 9):
            await chat.push(*steps[at : at + 9])
            await chat.press(
                *{18: ["pageup"], 54: ["ctrl+end"], 63: ["f4", "up"], 90: ["escape"]}.get(at, [])
            )
            if at in (27, 36, 99):
                log.action_move(-2)
            while chat.screen.dock_view.drawing_due:
                await chat.pilot.pause(0.05)
            before = shown()
            chat.transcript.refresh()
            log.refresh()
            assert shown() == before
        assert chat.transcript.max_scroll_y and log.max_scroll_y


async def test_the_scrollbar_draws_where_its_thumb_begins_and_ends(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(size=(80, 24), answer=False) as chat:
        await chat.type("Tell me.", "enter")
        reply = chat.engine.generates[-1].reply
        steps = steps_of(reply, [*PIECES, ("\n\n", "plain")] * 40)
        await chat.push(*steps[: len(steps) // 2])
        bar = chat.transcript.vertical_scrollbar
        assert isinstance(bar, EdgeScrollBar) and bar.size.height > 8
        drawn: list[Region] = []
        refresh = bar.refresh
        with monkeypatch.context() as patch:
            patch.setattr(bar, "refresh", lambda *rows: (drawn.extend(rows), refresh(*rows)))
            await chat.push(*steps[-4:])
        assert drawn and all(row.height == 1 for row in drawn) and len(drawn) <= 8
        await chat.press("pageup")
        shown = [strip.text for strip in bar.render_lines(Region(0, 0, 1, bar.size.height))]
        bar.refresh()
        await chat.pilot.pause()
        assert shown == [strip.text for strip in bar.render_lines(Region(0, 0, 1, bar.size.height))]


async def test_the_scrollbar_draws_every_row_that_changes(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the reply grows and is scrolled, and after the screen got another height."""

    def looks() -> list[Strip]:
        return bar.render_lines(Region(0, 0, bar.size.width, bar.size.height))

    async with opened(size=(80, 24), answer=False) as chat:
        await chat.type("Tell me.", "enter")
        reply = chat.engine.generates[-1].reply
        steps = steps_of(reply, [*PIECES, ("\n\n", "plain")] * 40)
        await chat.push(*steps[:100])
        bar = chat.transcript.vertical_scrollbar
        refresh = bar.refresh
        drawn: set[int] = set()
        moves = 0
        for height in (24, 40, 18):
            await chat.pilot.resize_terminal(80, height)
            await chat.pilot.pause()
            for act in ("pageup", "pageup", "ctrl+end", *(f"grow {at}" for at in range(3)), "pageup"):
                drawn.clear()
                before = looks()
                with monkeypatch.context() as patch:
                    patch.setattr(
                        bar, "refresh", lambda *rows: (drawn.update(row.y for row in rows), refresh(*rows))
                    )
                    if act.startswith("grow"):
                        await chat.push(*steps[100 + height : 130 + height])
                    else:
                        await chat.press(act)
                changed = {y for y, (old, new) in enumerate(zip(before, looks())) if old != new}
                assert changed <= drawn, (height, act)
                moves += bool(changed)
        assert moves > 12
