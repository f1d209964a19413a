"""The Tuning panel: every control by key, by mouse and by typing, undo, and presets."""

from __future__ import annotations

import dataclasses

import pytest
from kits.panel_stage import LOADED, Stage

from ds4chat.engine.events import Tuning
from ds4chat.engine.from_settings import changed, preset_of
from ds4chat.settings.schema import TUNING
from ds4chat.settings.validate import SettingError
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.kit.slider import MINUS_AT, PLUS_AT, VALUE_AT, Control
from ds4chat.tui.messages import TuningChanged
from ds4chat.tui.panels.knobs import KNOBS, Memory
from ds4chat.tui.panels.tuning import TuningPanel

START = Tuning(depth=2, margin=1.0, gate=0.0, temp=0.0, top_p=0.95, min_p=0.05, seed=-1)


def tunings(app: Stage) -> list[Tuning]:
    return [message.tuning for message in app.of(TuningChanged)]


async def focused(app: Stage, pilot, name: str) -> Control:
    control = app.query_one(f"#control-{name}", Control)
    control.focus()
    await pilot.pause()
    return control


CHANGES: dict[str, tuple[dict, dict]] = {
    "depth": ({"depth": 3}, {"depth": 1}),
    "mode": ({"margin": 0.8}, {"strict": True}),
    "margin": ({}, {"margin": 0.95}),
    "gate": ({"gate": 0.5}, {}),
    "temp": ({"temp": 0.1}, {}),
    "top-k": ({"top_k": 45}, {"top_k": 35}),
    "top-p": ({"top_p": 1.0}, {"top_p": 0.9}),
    "min-p": ({"min_p": 0.06}, {"min_p": 0.04}),
    "repeat-penalty": ({"repeat_penalty": 1.05}, {"repeat_penalty": 0.95}),
    "seed": ({"seed": 0}, {}),
    "pause": ({"depth": 0}, {"depth": 0}),
}
"""The fields of START that one step up and one step down change; at the end of a range nothing is posted."""


async def test_each_control_moves_by_keys_and_by_mouse() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        for name, (more, less) in CHANGES.items():
            for fields, key, x in ((more, "right", PLUS_AT + 1), (less, "left", MINUS_AT)):
                for by_mouse in (False, True):
                    app.dock.tuning.begin_with(START)
                    control = await focused(app, pilot, name)
                    posted = len(tunings(app))
                    if by_mouse:
                        await pilot.click(control, offset=(x, 0))
                    else:
                        await pilot.press(key)
                    await pilot.pause()
                    wanted = [dataclasses.replace(START, **fields)] if fields else []
                    assert tunings(app)[posted:] == wanted, (name, key, by_mouse)


async def test_depth_ends_where_the_drafter_does() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        drafter = dataclasses.replace(LOADED.drafter, max_depth=3)
        app.dock.show_engine(dataclasses.replace(LOADED, drafter=drafter), "ready")
        app.dock.tuning.begin_with(START)
        await focused(app, pilot, "depth")
        await pilot.press("right", "right", "left")
        await pilot.pause()
        assert [t.depth for t in tunings(app)] == [3, "auto", 3]


async def test_depth_walks_from_one_over_sixteen_to_auto_and_back() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.begin_with(START)
        control = await focused(app, pilot, "depth")
        await pilot.press("pageup", "pageup", "pageup", "pageup")
        await pilot.pause()
        assert [t.depth for t in tunings(app)] == [7, 12, "auto"]
        assert control.value == "auto" and "fastest" in control.says
        await pilot.press("minus")
        await pilot.pause()
        assert tunings(app)[-1].depth == 16


async def test_a_pause_remembers_the_depth() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.begin_with(dataclasses.replace(START, depth="auto"))
        control = await focused(app, pilot, "pause")
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert [t.depth for t in tunings(app)] == [0, "auto"]
        assert control.value == "on"


async def test_mode_returns_to_the_last_approximate_margin_and_is_marked() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.begin_with(dataclasses.replace(START, margin=0.65))
        assert app.dock.tuning.has_class("-lossy")
        assert app.dock.tuning.title_bar.headline == "depth 2 · approx ≥0.65"
        await focused(app, pilot, "mode")
        await pilot.press("left", "right")
        await pilot.pause()
        assert [(t.margin, t.mode) for t in tunings(app)] == [(1.0, "exact"), (0.65, "approximate")]


TYPED: list[tuple[str, str, str, object]] = [
    ("depth", "auto", "depth", "auto"),
    ("depth", "7", "depth", 7),
    ("margin", ".75", "margin", 0.75),
    ("gate", "12.5", "gate", 12.5),
    ("temp", "0.7", "temp", 0.7),
    ("top-k", "12", "top_k", 12),
    ("top-p", "0.5", "top_p", 0.5),
    ("min-p", "0", "min_p", 0.0),
    ("repeat-penalty", "1.1", "repeat_penalty", 1.1),
    ("seed", "4294967294", "seed", 4294967294),
]


async def test_a_value_can_be_typed() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        for name, typed, field, value in TYPED:
            app.dock.tuning.begin_with(START)
            control = await focused(app, pilot, name)
            posted = len(tunings(app))
            await pilot.press(*typed, "enter")
            await pilot.pause()
            assert tunings(app)[posted:] == [dataclasses.replace(START, **{field: value})], (name, typed)
            assert not control.editing, name


async def test_a_wrong_value_says_why_and_changes_nothing() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.begin_with(START)
        control = await focused(app, pilot, "depth")
        await pilot.press("1", "7", "enter")
        await pilot.pause()
        assert tunings(app) == [] and control.value == "2"
        assert "17 is out of range" in control.says
        assert [n.message for n in app._notifications] == [control.says], "the line is too short for it"
        await pilot.press("right")
        await pilot.pause()
        assert control.value == "3" and "out of range" not in control.says


async def test_esc_and_leaving_drop_what_was_typed() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.begin_with(START)
        control = await focused(app, pilot, "margin")
        await pilot.press("0", ".", "5", "backspace", "escape")
        assert not control.editing
        await pilot.click(control, offset=(VALUE_AT + 2, 0))
        await pilot.pause()
        assert control.editing
        await pilot.press("5", "tab")
        assert not control.editing and app.focused is not control
        assert tunings(app) == []


async def test_arrows_walk_over_the_controls() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        await focused(app, pilot, "pause")
        await pilot.press("down", "down", "up")
        assert app.focused is app.query_one("#control-depth")


async def test_undo_goes_back_step_by_step_whoever_made_the_change() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.begin_with(START)
        await focused(app, pilot, "depth")
        await pilot.press("right")
        elsewhere = dataclasses.replace(START, depth=3, temp=0.5)
        app.dock.tuning.show_tuning(elsewhere)
        app.dock.tuning.show_tuning(elsewhere)
        await pilot.pause()
        line = app.query_one("#tuning-undo", LinesView)
        assert line.text == "u undo: temp 0.50→0.00"
        await pilot.press("u")
        await pilot.click(line)
        await pilot.press("ctrl+z")
        await pilot.pause()
        assert [(t.depth, t.temp) for t in tunings(app)] == [(3, 0.0), (3, 0.0), (2, 0.0)]


async def test_showing_a_tuning_posts_nothing() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.show_tuning(dataclasses.replace(START, depth=9))
        await pilot.pause()
        assert tunings(app) == []
        assert app.query_one("#control-depth", Control).value == "9"


async def test_presets_are_named_saved_chosen_and_applied() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.begin_with(START)
        control = await focused(app, pilot, "preset")
        await pilot.press("enter")
        await pilot.pause()
        assert "none yet" in control.says
        app.dock.tuning.show_presets({"wild": {"temp": 1.2, "mtp-draft": 5}, "calm": {"temp": 0.0}})
        assert control.value == "calm"
        await pilot.press("right", "enter")
        await pilot.pause()
        assert tunings(app) == [dataclasses.replace(START, temp=1.2, depth=5)]

        await pilot.press("s", *["backspace"] * 4, "m", "i", "n", "e", "enter")
        await pilot.pause()
        saved = app.of(TuningPanel.PresetSaved)[-1]
        assert saved.name == "mine"
        assert saved.values["temp"] == 1.2 and saved.values["mtp-draft"] == 5
        assert control.value == "mine"


async def test_a_preset_with_a_bad_value_is_refused() -> None:
    app = Stage("tuning")
    async with app.run_test(size=(60, 30)) as pilot:
        app.dock.tuning.begin_with(START)
        app.dock.tuning.show_presets({"bad": {"mtp-draft": 99}})
        control = await focused(app, pilot, "preset")
        await pilot.press("enter")
        await pilot.pause()
        assert tunings(app) == [] and "out of range" in control.says


def test_a_preset_holds_every_field_of_a_tuning() -> None:
    """A field added to Tuning must be added to presets; a pause is never part of one."""
    assert {option.tuning for option in TUNING} == {field.name for field in dataclasses.fields(Tuning)}
    tuning = Tuning(depth=4, margin=0.9, temp=0.3, seed=7)
    assert changed(Tuning(), preset_of(tuning)) == tuning
    assert changed(Tuning(depth=3), preset_of(dataclasses.replace(tuning, depth=0))).depth == 3
    assert changed(START, {"theme": "dusk"}) == START
    with pytest.raises(SettingError):
        changed(START, {"mtp-margin": 2.0})


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_every_control_has_one_short_line_and_the_options_help(knob) -> None:
    """A dock of 50 cells leaves 44 for the line over the text: border, scrollbar and padding take six."""
    assert knob.option.help
    tuning, memory = START, Memory()
    for _ in range(40):
        assert 0 < len(knob.says(tuning)) <= 44 - len(" + ") - PLUS_AT
        tuning = knob.step(tuning, 1, memory)
