"""Panels and figures are selected with the mouse, and copied as the transcript is."""

from __future__ import annotations

from typing import Any

import pytest
from kits.chat_stage import Chat, Open
from kits.explorer_stage import VERDICTS, Stage, reply_of, settled, steps_from
from textual import events
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import Selection
from textual.widget import Widget

from ds4chat.tui.chat.status_line import StatusLine
from ds4chat.tui.explorer.source import Source
from ds4chat.tui.explorer.views import ViewBar
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.panels.panel import PanelTitle

# A chat is opened for each case.
pytestmark = pytest.mark.slow

WIDE = (120, 60)


async def drag(pilot: Pilot[Any], start: tuple[Widget, int, int], *stops: tuple[Widget, int, int]) -> None:
    """Press in a cell of a widget, move over others, and let go in the last."""
    widget, x, y = start
    await pilot.mouse_down(widget, offset=(x, y))
    for widget, x, y in stops:
        region = widget.region
        await pilot._post_mouse_events([events.MouseMove], offset=(region.x + x, region.y + y), button=1)
    await pilot.mouse_up(widget, offset=(x, y))
    await pilot.pause()


async def answered(chat: Chat) -> None:
    await chat.type("Hello", "enter")
    while chat.screen.dock_view.drawing_due:
        await chat.pilot.pause(0.02)
    await chat.settle()


def lines_of(chat: Chat, name: str) -> tuple[LinesView, list[str]]:
    view = chat.screen.query_one(name, LinesView)
    return view, [line.rstrip() for line in view.text.splitlines()]


async def test_a_part_of_a_panels_line_is_copied(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await answered(chat)
        view, lines = lines_of(chat, "#acceptance-lines")
        assert lines[0].startswith("drafted ")
        await drag(chat.pilot, (view, 0, 0), (view, 3, 0), (view, 6, 0))
        await chat.press("ctrl+c")
        assert chat.app.clipboard == "drafted"


async def test_lines_of_a_panel_are_copied_as_they_are_shown(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await answered(chat)
        view, lines = lines_of(chat, "#timings-lines")
        at = next(y for y, line in enumerate(lines) if "verify" in line)
        await drag(chat.pilot, (view, 2, at), (view, 4, at + 1), (view, 7, at + 2))
        assert lines[at].startswith("■ verify")
        wanted = "\n".join([lines[at][2:], lines[at + 1], lines[at + 2][:8].rstrip()])
        assert chat.screen.get_selected_text() == wanted
        await chat.press("ctrl+c")
        assert chat.app.clipboard == wanted
        assert not chat.screen.selections


async def test_a_selection_goes_over_several_panels_and_their_titles(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await answered(chat)
        dock = chat.screen.dock_view
        first, lines = lines_of(chat, "#acceptance-lines")
        last, below = lines_of(chat, "#timings-lines")
        await drag(
            chat.pilot, (first, 0, len(lines) - 1), (dock.timings.title_bar, 5, 0), (last, 4, 0), (last, 9, 1)
        )
        await chat.press("ctrl+c")
        copied = chat.app.clipboard.splitlines()
        assert copied[0] == lines[-1]
        assert copied[1].startswith("▾ Timings") and copied[1].endswith("ms/step")
        assert copied[2:] == [below[0], below[1][:10].rstrip()]
        assert not dock.timings.folded


async def test_the_rows_of_the_confidence_log_are_copied_and_none_is_picked(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await answered(chat)
        log = chat.screen.dock_view.confidence.log_view
        first = log.scroll_offset.y
        rows = [log.draw_line(y).text.rstrip() for y in (first, first + 1)]
        await drag(chat.pilot, (log, 0, 0), (log, 10, 1), (log, log.scrollable_content_region.width - 1, 1))
        await chat.press("ctrl+c")
        assert chat.app.clipboard.splitlines() == rows
        assert log.cursor_row is None


async def test_the_tuning_panel_is_copied_with_others_and_its_values_still_slide(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await answered(chat)
        dock = chat.screen.dock_view
        depth = dock.query_one("#control-depth", Widget)
        below = dock.query_one("#control-margin", Widget)
        await drag(chat.pilot, (dock.tuning.title_bar, 0, 0), (depth, 5, 0), (below, 20, 0))
        await chat.press("ctrl+c")
        copied = chat.app.clipboard.splitlines()
        assert copied[0].startswith("▾ Tuning") and copied[-1].split()[:3] == ["margin", "−", "1.00"]
        assert [line.split()[:3] for line in copied if line.startswith("depth")] == [["depth", "−", "2"]]
        before = chat.app.chat.tuning.depth
        await drag(chat.pilot, (depth, 10, 0), (depth, 11, 0), (depth, 12, 0))
        assert chat.app.chat.tuning.depth == before + 2
        assert not chat.screen.selections


async def test_the_status_line_is_copied_and_its_commands_are_for_clicks(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await answered(chat)
        line = chat.screen.query_one(StatusLine)
        text = line.text.splitlines()[0]
        at = text.index("eagle3")
        await drag(chat.pilot, (line, at, 0), (line, at + 4, 0), (line, at + 13, 0))
        await chat.press("ctrl+c")
        assert chat.app.clipboard == "eagle3 depth 2"
        assert chat.app.chat.tuning.depth == 2
        await chat.pilot.click(line, offset=(at, 0))
        await chat.settle()
        assert chat.app.chat.tuning.depth == 0


async def test_a_title_that_is_dragged_over_does_not_fold_and_a_clicked_one_does(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await answered(chat)
        panel = chat.screen.dock_view.acceptance
        title = panel.query_one(PanelTitle)
        await drag(chat.pilot, (title, 2, 0), (title, 8, 0), (title, 11, 0))
        assert chat.screen.get_selected_text() == "Acceptance" and not panel.folded
        await chat.pilot.click(title, offset=(4, 0))
        await chat.settle()
        assert panel.folded and not chat.screen.selections


async def test_what_is_selected_is_marked_and_only_that(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await answered(chat)
        view, _ = lines_of(chat, "#acceptance-lines")
        await drag(chat.pilot, (view, 2, 0), (view, 4, 0), (view, 5, 0))
        ground = chat.screen.get_component_rich_style("screen--selection").bgcolor
        marked = [
            segment.text
            for segment in view.render_line(0)
            if segment.style and segment.style.bgcolor == ground
        ]
        assert "".join(marked) == "afte"


# -- the explorer


def load() -> Source:
    return Source.of("this conversation", [reply_of(steps_from(VERDICTS))], in_chat=True)


@pytest.mark.parametrize(
    ("keys", "name", "first"),
    [
        ("", "#row-table", "0"),
        ("", "#table-head", "step↑"),
        ("", "#row-detail", "2 of 2 drafts"),
        ("2", "#histogram", "By ratio"),
        ("2", "#reliability", "Acceptance by probability"),
        ("3", "#whatif-figures", ""),
        ("4", "#reply-list", "1 depth 2"),
        ("4", "#reply-strip", "Milliseconds per token"),
        ("4", "#reply-detail", "reply 1: depth 2"),
    ],
)
async def test_every_figure_of_the_explorer_is_copied(keys: str, name: str, first: str) -> None:
    app = Stage(load)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        if keys:
            await pilot.press(keys)
            await settled(pilot)
        view = app.explorer.query_one(name)
        # Up to the cell before the scrollbar.
        await drag(pilot, (view, 0, 0), (view, 3, 0), (view, view.scrollable_content_region.width - 1, 0))
        await pilot.press("ctrl+c")
        lines = app.screen._compositor.render_strips(app.screen.size)
        shown = lines[view.region.y].text[view.region.x : view.region.right].rstrip(" ▁▂▃▄▅▆▇█")
        assert app.clipboard.strip().startswith(first) and app.clipboard.strip()
        assert app.clipboard.rstrip(" ▁▂▃▄▅▆▇█") == shown
        assert app.screen is app.explorer


async def test_a_drag_over_the_names_of_the_views_opens_none() -> None:
    app = Stage(load)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        bar = app.explorer.query_one(ViewBar)
        await drag(pilot, (bar, 0, 0), (bar, 5, 0), (bar, 14, 0))
        assert app.explorer.get_selected_text() == "1 Rows   2 Char"
        assert app.focused is app.explorer.table
        await pilot.click(bar, offset=(12, 0))
        await settled(pilot)
        assert app.explorer.has_class("-charts")


async def test_a_selection_that_lines_are_gone_from_copies_what_is_left(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        view = LinesView()
        await chat.screen.mount(view)
        view.set_lines([(("one", ""),), (("two", ""),)])
        await chat.settle()
        assert view.get_selection(Selection(None, None)) == ("one\ntwo", "\n")
        assert view.get_selection(Selection(Offset(1, 1), Offset(9, 5))) == ("wo", "\n")
        view.set_lines([])
        assert view.get_selection(Selection(Offset(1, 1), Offset(9, 5))) is None
