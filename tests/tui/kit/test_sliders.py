"""Numbers by the mouse: dragging a control's value and turning the wheel on it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kits.panel_stage import Stage
from kits.pointer import drag, drag_to, let_go, press_at, wheel
from textual import events
from textual.pilot import Pilot

from ds4chat.engine.events import Tuning
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.kit.slider import PLUS_AT, VALUE_AT, Control
from ds4chat.tui.messages import TuningChanged
from ds4chat.tui.panels.knobs import KNOBS

START = Tuning(depth=4, margin=0.5, gate=5.0, temp=1.0, top_k=40, top_p=0.5, min_p=0.05, seed=3)
START = dataclasses.replace(START, repeat_penalty=1.5)
SIZE = (60, 24)
GRIP = VALUE_AT + 4

NUMBERS = [
    ("depth", {"depth": 7}, {"depth": 2}),
    ("margin", {"margin": 0.65}, {"margin": 0.4}),
    ("gate", {"gate": 6.5}, {"gate": 4.0}),
    ("temp", {"temp": 1.3}, {"temp": 0.8}),
    ("top-k", {"top_k": 55}, {"top_k": 30}),
    ("top-p", {"top_p": 0.65}, {"top_p": 0.4}),
    ("min-p", {"min_p": 0.08}, {"min_p": 0.03}),
    ("repeat-penalty", {"repeat_penalty": 1.65}, {"repeat_penalty": 1.4}),
    ("seed", {"seed": 6}, {"seed": 1}),
]
"""Each control of a number, and what three steps up and two steps down make of START."""


@asynccontextmanager
async def panel(*names: str) -> AsyncIterator[tuple[Stage, Pilot[Any]]]:
    """The dock with these panels open (none named: as it comes), showing START."""
    app = Stage(*names)
    async with app.run_test(size=SIZE) as pilot:
        app.dock.tuning.begin_with(START)
        await pilot.pause()
        yield app, pilot


def tunings(app: Stage) -> list[Tuning]:
    return [message.tuning for message in app.of(TuningChanged)]


def control(app: Stage, name: str) -> Control:
    return app.query_one(f"#control-{name}", Control)


def test_every_number_is_in_the_table_above() -> None:
    assert [knob.name for knob in KNOBS.values() if knob.share is not None] == [
        name for name, _, _ in NUMBERS
    ]


async def test_a_number_follows_the_pointer_one_step_a_cell_and_undo_takes_the_drag_back() -> None:
    async with panel("tuning") as (app, pilot):
        for name, three_up, two_down in NUMBERS:
            app.dock.tuning.begin_with(START)
            slider = control(app, name)
            await drag(pilot, slider, GRIP, GRIP + 1, GRIP + 3)
            await pilot.pause()
            assert tunings(app)[-1] == dataclasses.replace(START, **three_up), name
            assert not slider.editing, f"the end of a drag on {name} is no click"
            await drag(pilot, slider, GRIP, GRIP - 5)
            await pilot.pause()
            assert tunings(app)[-1] == dataclasses.replace(START, **two_down), name
            app.dock.tuning.action_undo()
            app.dock.tuning.action_undo()
            await pilot.pause()
            assert app.dock.tuning.tuning == START, name


async def test_the_wheel_turns_a_number_and_undo_takes_the_whole_turn_back() -> None:
    async with panel("tuning") as (app, pilot):
        for name, three_up, two_down in NUMBERS:
            app.dock.tuning.begin_with(START)
            posted = len(tunings(app))
            slider = control(app, name)
            await pilot.hover(slider, offset=(GRIP, 0))
            await wheel(pilot, slider, 3, GRIP)
            await pilot.pause()
            assert len(tunings(app)) == posted + 3, name
            assert tunings(app)[-1] == dataclasses.replace(START, **three_up), name
            await pilot.hover(app.dock.tuning.title_bar)
            await pilot.hover(slider, offset=(GRIP, 0))
            await wheel(pilot, slider, -5, GRIP)
            await pilot.pause()
            assert tunings(app)[-1] == dataclasses.replace(START, **two_down), name
            app.dock.tuning.action_undo()
            assert app.dock.tuning.tuning == dataclasses.replace(START, **three_up), name
            app.dock.tuning.action_undo()
            assert app.dock.tuning.tuning == START, name
            await pilot.pause()


async def test_a_drag_reaches_auto_beyond_sixteen_and_comes_back_to_nothing() -> None:
    async with panel("tuning") as (app, pilot):
        slider = control(app, "depth")
        await press_at(pilot, slider, GRIP)
        for x in (12, 13, 40, 0):
            await drag_to(pilot, slider, GRIP + x)
        await let_go(pilot, slider, GRIP)
        await pilot.pause()
        assert [t.depth for t in tunings(app)] == [16, "auto", 4]
        assert slider.value == "4"
        assert "apply from the next step" in app.query_one("#tuning-undo", LinesView).text


async def test_scrolling_past_a_number_changes_nothing_and_scrolls_the_dock() -> None:
    """The pointer rests at a value's column while the panels pass under it."""
    async with panel() as (app, pilot):
        x = control(app, "depth").region.x + GRIP
        await pilot.hover(offset=(x, 5))
        for _ in range(40):
            await pilot._post_mouse_events([events.MouseScrollDown], offset=(x, 5))
        await pilot.pause()
        assert app.dock.scroll_offset.y == app.dock.max_scroll_y > 0
        assert tunings(app) == []
        name = control(app, "margin")
        await pilot.hover(name, offset=(2, 0))
        await wheel(pilot, name, 1, 2)
        await pilot.pause()
        assert tunings(app) == [] and app.dock.scroll_offset.y < app.dock.max_scroll_y


async def test_a_click_still_opens_the_field_and_the_signs_still_step() -> None:
    async with panel("tuning") as (app, pilot):
        slider = control(app, "margin")
        await drag(pilot, slider, PLUS_AT + 1, PLUS_AT + 4)
        assert tunings(app) == []
        await pilot.click(slider, offset=(GRIP, 0))
        await pilot.pause()
        assert slider.editing
        await drag(pilot, slider, GRIP, GRIP + 3)
        await pilot.pause()
        assert tunings(app) == [], "while a value is typed the field is a text field"


async def test_switches_and_names_are_no_sliders() -> None:
    async with panel("tuning") as (app, pilot):
        for name in ("pause", "mode", "preset"):
            await pilot.hover(control(app, name), offset=(GRIP, 0))
            await wheel(pilot, control(app, name), 2, GRIP)
        await drag(pilot, control(app, "preset"), GRIP, GRIP + 3)
        await pilot.pause()
        assert tunings(app) == []


FILLED = [
    ("depth", {"depth": "auto"}, 8),
    ("depth", {"depth": 8}, 4),
    ("depth", {"depth": 0}, 0),
    ("margin", {"margin": 0.5}, 4),
    ("gate", {"gate": 100.0}, 8),
    ("temp", {"temp": 0.5}, 2),
    ("top-k", {"top_k": 100}, 8),
    ("top-p", {"top_p": 1.0}, 8),
    ("min-p", {"min_p": 0.0}, 0),
    ("repeat-penalty", {"repeat_penalty": 0.5}, 0),
    ("seed", {"seed": -1}, 0),
    ("seed", {"seed": 49}, 4),
    ("seed", {"seed": 2**31}, 8),
]
"""Eight cells: depth 8 of 17 places is 3.8 of them. Seeds fill it from -1 (a new one each time) to 99."""

NEAR_AN_END = [
    ("depth", {"depth": 1}, 1),
    ("depth", {"depth": 16}, 7),
    ("margin", {"margin": 0.01}, 1),
    ("margin", {"margin": 0.99}, 7),
    ("seed", {"seed": 0}, 1),
]
"""Rounded, 0.99 of eight cells would be all of them: approximate would look exact."""


async def test_the_field_is_filled_as_far_as_the_value_has_come() -> None:
    async with panel("tuning") as (app, pilot):
        for name, tuning, cells in (*FILLED, *NEAR_AN_END):
            app.dock.tuning.begin_with(dataclasses.replace(START, **tuning))
            await pilot.pause()
            slider = control(app, name)
            assert slider.filled == cells, tuning
            underlined = [part.text for part in slider.render_line(0) if part.style and part.style.underline]
            assert len("".join(underlined)) == cells, tuning


async def test_the_whole_panel_fits_on_a_small_screen() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        rows = [control(app, knob.name).region for knob in KNOBS.values()]
        rows += [control(app, "preset").region, app.query_one("#tuning-undo").region]
        assert all(row.height == 1 and 0 < row.y < 24 for row in rows)
        assert app.dock.max_scroll_y <= 3, "only the folded panels' titles stand above it"
