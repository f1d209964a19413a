"""The explorer by keys and mouse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits.explorer_stage import Stage, many_rows, settled, shown, source, steps_from
from kits.pointer import drag, wheel
from kits.screen_stage import until
from rich.cells import cell_len
from textual.widgets import Button

from ds4chat.analysis.rows import rows_from_steps
from ds4chat.engine.events import Tuning
from ds4chat.tui.explorer import whatif
from ds4chat.tui.explorer.scenario import Scenario
from ds4chat.tui.explorer.screen import ExplorerScreen
from ds4chat.tui.explorer.source import Source, SourceError
from ds4chat.tui.explorer.table import TableHead, layout
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.kit.slider import VALUE_AT, Control
from ds4chat.tui.messages import TokenPicked, TuningChanged

WIDE, NARROW = (140, 45), (80, 24)
BOTH = pytest.mark.parametrize(
    "size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)], ids=["80x24", "140x45"]
)


@BOTH
async def test_it_opens_on_the_rows(size) -> None:
    """102 rows less six plain steps' none: 96, of which 72 were accepted."""
    app = Stage(source)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        assert app.explorer.said == "96 rows · 75.0 % accepted · by step ↑"
        assert app.focused is app.explorer.table
        text = shown(app)
        assert "step↑  p draft" in text
        assert "2 of 2 drafts accepted · depth 2 · margin 1.00 · gate 0 · 40.0 ms · reply 1" in text


async def test_a_wide_screen_shows_everything_and_a_narrow_one_a_view_at_a_time() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        text = shown(app)
        assert "By ratio" in text and "Acceptance by the drafter's probability" in text and "What if" in text
        await pilot.resize_terminal(*NARROW)
        await settled(pilot)
        text = shown(app)
        assert "step↑" in text and "1 Rows" in text and "By ratio" not in text
        await pilot.press("f2")
        await settled(pilot)
        text = shown(app)
        assert "By ratio" in text and "Acceptance by probability" in text and "step↑" not in text
        await pilot.press("f2")
        await settled(pilot)
        assert "What if" in shown(app) and "By ratio" not in shown(app)
        await pilot.press("f2")
        await settled(pilot)
        assert app.focused is app.explorer.replies.list
        await pilot.press("f2")
        await settled(pilot)
        assert app.focused is app.explorer.table


async def test_views_by_number_and_click() -> None:
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        for key, sign in (("2", "By ratio"), ("1", "step↑")):
            await pilot.press(key)
            await settled(pilot)
            assert sign in shown(app)
        await pilot.press("3")
        await settled(pilot)
        assert app.focused is app.explorer.query_one("#control-whatif-depth")
        for x, sign in ((10, "By ratio"), (2, "step↑"), (22, "What if")):
            await pilot.click("#view-bar", offset=(x, 0))
            await settled(pilot)
            assert sign in shown(app)


@BOTH
async def test_a_filter_line_narrows_the_rows_and_keeps_the_cursor(size) -> None:
    app = Stage(source)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        await pilot.press("down", "down")
        row = app.explorer.table.current_row
        await pilot.press("slash", *"miss")
        await settled(pilot)
        assert app.explorer.said.startswith("12 of 96 rows · 0.0 % accepted")
        assert app.explorer.table.current_row == row == 2
        await pilot.press("enter")
        assert app.focused is app.explorer.table


async def test_an_error_is_shown_and_the_rows_stay() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("ctrl+f", *"miss ratio<")
        await settled(pilot)
        assert app.explorer.filter_line.hint == "ratio takes a number, as in ratio<0.5 or ratio=0.2..0.8."
        assert len(app.explorer.table.listing) == 12
        await pilot.press(*"0.2")
        await settled(pilot)
        assert app.explorer.filter_line.hint.startswith("miss · ")
        assert app.explorer.said.startswith("6 of 96 rows")


async def test_the_word_is_completed_and_accepted_with_right() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("slash", *"rej")
        await pilot.pause()
        await pilot.press("right")
        await settled(pilot)
        assert app.explorer.filter_line.field.value == "rejected"
        assert app.explorer.said.startswith("24 of 96 rows")


async def test_the_table_says_that_no_row_passes() -> None:
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("slash", *"pos=9", "enter")
        await settled(pilot)
        assert "No row passes the filter." in shown(app)
        await pilot.press("down", "end", "pagedown", "enter", "r", "right")
        await settled(pilot)
        assert app.explorer.table.current_row is None and isinstance(app.screen, ExplorerScreen)


async def test_the_charts_follow_the_filter() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        assert "66      0" in shown(app)
        await pilot.press("slash", *"rejected")
        await settled(pilot)
        assert "66      0" not in shown(app)


async def test_columns_sort_by_keys() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("right")
        assert app.explorer.table.listing.column == "position"
        await pilot.press("left", "left")
        assert app.explorer.table.listing.column == "outcome"
        await pilot.press("r")
        assert app.explorer.table.listing.descending
        assert app.explorer.said.endswith("by outcome ↓")
        outcomes = app.explorer.table.listing.rows.outcome[app.explorer.table.listing.shown]
        assert outcomes.tolist() == sorted(outcomes.tolist(), reverse=True)


async def test_a_click_on_a_name_sorts_and_a_second_one_reverses_the_order() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        x = next(c.start for c in layout(app.explorer.query_one(TableHead).size.width) if c.column == "ratio")
        await pilot.click("#table-head", offset=(x + 2, 0))
        await settled(pilot)
        assert app.explorer.said.endswith("by ratio ↑")
        assert "ratio↑" in shown(app)
        await pilot.click("#table-head", offset=(x + 2, 0))
        await settled(pilot)
        assert app.explorer.said.endswith("by ratio ↓")


async def test_the_cursor_moves_by_keys_and_mouse_and_stays_in_sight() -> None:
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        table = app.explorer.table
        height = table.scrollable_content_region.height
        moves = [("down", 1), ("j", 2), ("up", 1), ("k", 0), ("end", 95), ("g", 0), ("G", 95), ("home", 0)]
        for key, row in [*moves, ("pagedown", height - 1), ("pageup", 0), ("pageup", 0)]:
            await pilot.press(key)
            await pilot.pause()
            assert table.current_row == row
            assert 0 <= row - table.scroll_offset.y < height
        await pilot.click("#row-table", offset=(5, 4))
        assert table.current_row == 4


@pytest.mark.parametrize("way", ["key", "mouse"])
async def test_a_row_leads_to_its_token_and_the_explorer_closes(way) -> None:
    """Row 3 is the first draft of step 2."""
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        if way == "key":
            await pilot.press("down", "down", "down", "enter")
        else:
            await pilot.click("#row-table", offset=(5, 3), times=2)
        await pilot.pause()
        picked = app.of(TokenPicked)
        assert [(p.reply, p.step, p.token) for p in picked] == [(1, 2, 0)]
        assert not isinstance(app.screen, ExplorerScreen)


async def test_a_row_of_a_log_has_no_text_to_go_to() -> None:
    app = Stage(lambda: source(in_chat=False))
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("enter")
        await pilot.pause()
        assert app.of(TokenPicked) == [] and app.screen is app.explorer
        assert "open the conversation to go to its tokens" in app.explorer.said


async def test_h_and_a_click_show_the_other_histograms() -> None:
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        for title in ("By target's gap", "By drafter's gap", "By drafter's probability", "By ratio"):
            await pilot.press("h")
            await settled(pilot)
            assert title in shown(app)
        await pilot.click("#histogram")
        await settled(pilot)
        assert "By target's gap" in shown(app)


# -- what-if


@BOTH
async def test_a_control_asks_and_apply_changes_the_chat(size) -> None:
    app = Stage(source, Tuning(depth=2, temp=0.5))
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        await pilot.press("w", "right", "right")
        await settled(pilot)
        assert app.explorer.what_if.scenario == Scenario(depth=4)
        text = shown(app)
        assert "≈ estimate: the record determines" in text and "Speed: no step of depth 4 was timed." in text
        await pilot.press("down", "minus", "down", "3", "enter")
        await settled(pilot)
        assert app.explorer.what_if.scenario == Scenario(depth=4, margin=0.95, gate=3.0)
        await pilot.press("tab", "enter")
        await pilot.pause()
        assert [m.tuning for m in app.of(TuningChanged)] == [Tuning(depth=4, margin=0.95, gate=3.0, temp=0.5)]
        assert "depth 2→4, margin 1.00→0.95, gate 0.00→3.00" in app.explorer.said


async def test_a_applies_and_says_when_there_is_nothing_to() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("a")
        await pilot.pause()
        assert app.explorer.said.startswith("Nothing to apply") and app.of(TuningChanged) == []
        await pilot.press("w", "left")
        await settled(pilot)
        app.explorer.table.focus()
        await pilot.press("a")
        await pilot.pause()
        assert [m.tuning for m in app.of(TuningChanged)] == [Tuning(depth=1)]


@BOTH
async def test_no_control_swallows_a_key_that_the_line_at_the_foot_names(size) -> None:
    """``a`` applies, including what is being typed; other letters do what they do outside a control."""
    app = Stage(source)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        await pilot.press("w", "4", "a")
        await settled(pilot)
        assert [m.tuning for m in app.of(TuningChanged)] == [Tuning(depth=4)]
        assert not app.explorer.query_one("#control-whatif-depth", Control).editing
        await pilot.press("9", "9", "a")
        await settled(pilot)
        assert len(app.of(TuningChanged)) == 1, "an invalid value is not applied"
        assert "99" in app.explorer.query_one("#control-whatif-depth", Control).says
        await pilot.press("8", "e")
        assert app.focused is app.explorer.query_one("#explorer-export")


async def test_a_field_that_takes_letters_is_named_in_their_place_at_the_foot() -> None:
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        assert "e export" in shown(app)
        for key in ("slash", "e"):
            await pilot.press(key)
            await pilot.pause()
            assert "e export" not in shown(app) and "Esc goes back" in shown(app)
            await pilot.press("escape")
            await pilot.pause()
            assert "e export" in shown(app)


async def test_the_views_are_named_without_digits_where_digits_are_values() -> None:
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        assert "1 Rows" in shown(app)
        await pilot.press("3")
        await settled(pilot)
        assert "1 Rows" not in shown(app) and "Rows" in shown(app)
        await pilot.press("1", "enter")
        await settled(pilot)
        assert app.explorer.what_if.scenario == Scenario(depth=1)


async def test_values_go_back_to_the_recorded_ones() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        buttons = app.explorer.what_if.query(Button)
        assert all(button.disabled for button in buttons)
        await pilot.press("w", "right", "down", "left")
        await settled(pilot)
        assert not any(button.disabled for button in buttons)
        await pilot.press("backspace")
        await settled(pilot)
        assert app.explorer.what_if.scenario == Scenario(depth=3)
        await pilot.click("#whatif-reset")
        await settled(pilot)
        assert app.explorer.what_if.scenario == Scenario()
        assert "Change a value to see what it would do." in shown(app)


async def test_a_typed_value_out_of_range_is_refused_beside_the_control() -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("w", *"17", "enter")
        await settled(pilot)
        assert "17" in app.explorer.query_one("#control-whatif-depth").says
        assert app.explorer.what_if.scenario == Scenario()


@contextmanager
def slow_walk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[int | None]]]:
    """The real walk behind a gate; the depths that were asked, in order."""
    opened, asked, walk = threading.Event(), [], whatif.what_if

    def waiting(rows, *, depth, **values):
        asked.append(depth)
        assert opened.wait(120)
        return walk(rows, depth=depth, **values)

    monkeypatch.setattr(whatif, "what_if", waiting)
    yield opened, asked
    opened.set()


async def test_only_the_last_of_many_changes_is_worked_out(monkeypatch) -> None:
    """While a thread works on depth 3, five more are asked: one more walk, of the last, and its figures."""
    with slow_walk(monkeypatch) as (gate, asked):
        app = Stage(source)
        async with app.run_test(size=WIDE) as pilot:
            await settled(pilot)
            await pilot.press("w", "right")
            await until(pilot, lambda: asked)
            for _ in range(5):
                await pilot.press("right")
                await pilot.pause(whatif.DEBOUNCE_SECONDS * 1.5)
            assert "Working it out" in shown(app)
            gate.set()
            await settled(pilot)
            assert asked == [3, 8]
            assert app.explorer.what_if.result is not None
            assert len(app.explorer.what_if.result.by_position) == 8


async def test_a_failed_walk_is_reported_and_the_next_one_works(monkeypatch) -> None:
    def broken(*args, **values):
        raise ValueError("no rows of that kind")

    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        with monkeypatch.context() as patch:
            patch.setattr(whatif, "what_if", broken)
            await pilot.press("w", "right")
            await settled(pilot)
        assert "No figures: no rows of that kind" in shown(app)
        await pilot.press("right")
        await settled(pilot)
        assert app.explorer.what_if.result is not None


# -- reading


async def test_a_record_that_cannot_be_read_is_reported_and_f5_tries_again() -> None:
    tries = []

    def load() -> Source:
        tries.append(1)
        if len(tries) == 1:
            raise SourceError("old.log cannot be read: No such file or directory.")
        return source(rows_from_steps(steps_from(("++",))), note="1 line is incomplete.")

    app = Stage(load)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        assert "old.log cannot be read: No such file or directory." in shown(app)
        await pilot.press("down", "enter", "e", "w", "f2", "f2")
        assert app.focused is app.explorer.table
        await pilot.press("f5")
        await settled(pilot)
        assert app.explorer.said == "2 rows · 100.0 % accepted · by step ↑ · 1 line is incomplete."
        assert "cannot be read" not in shown(app)


async def test_reading_again_keeps_filter_and_order() -> None:
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("slash", *"rejected", "enter", "right", "r", "f5")
        await settled(pilot)
        assert app.explorer.said == "24 of 96 rows · 0.0 % accepted · by p ↓"


async def test_a_record_that_is_too_long_is_a_sentence_too() -> None:
    def load() -> Source:
        raise MemoryError

    app = Stage(load)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        assert "The record is too long for the memory of this machine." in shown(app)


# -- export


async def test_the_rows_shown_are_exported_in_their_order(tmp_path: Path) -> None:
    app = Stage(source)
    path = tmp_path / "rows.csv"
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("slash", *"miss", "enter", "r", "e")
        app.explorer.query_one("#explorer-export").value = str(path)
        await pilot.press("enter")
        await settled(pilot)
        assert app.explorer.said == f"12 rows written to {path}."
        assert app.focused is app.explorer.table
    lines = path.read_text().splitlines()
    assert lines[0].startswith("reply,step,position")
    assert lines[1].startswith("1,56,1,")


async def test_a_file_that_exists_is_overwritten_on_the_second_enter_alone(tmp_path: Path) -> None:
    app = Stage(source)
    path, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    path.write_text("mine")
    other.write_text("mine too")
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("e")
        field = app.explorer.query_one("#explorer-export")
        for name in (path, other):
            field.value = str(name)
            await pilot.press("enter")
            await settled(pilot)
            assert app.explorer.said == f"{name} exists already. Enter again overwrites it, Esc keeps it."
        assert (path.read_text(), other.read_text()) == ("mine", "mine too")
        await pilot.press("enter")
        await settled(pilot)
        assert len(other.read_text().splitlines()) == 96 and path.read_text() == "mine"


async def test_escape_keeps_the_file_and_then_closes(tmp_path: Path) -> None:
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("e", *"rows.txt", "enter")
        await settled(pilot)
        assert app.explorer.said == "rows.txt ends in neither .csv nor .jsonl. The ending decides the format."
        await pilot.press("escape")
        assert app.focused is app.explorer.table
        await pilot.press("slash", *"miss", "escape")
        await settled(pilot)
        assert app.explorer.said.startswith("96 rows")
        await pilot.press("escape", "escape")
        await pilot.pause()
        assert not isinstance(app.screen, ExplorerScreen)


async def test_a_what_if_value_is_dragged_and_turned() -> None:
    """Three cells from the recorded value (margin: four down), then back to it; two notches up, one down."""
    values = {
        "depth": (1, Scenario(depth=5), Scenario(depth=3)),
        "margin": (8, Scenario(margin=0.8), Scenario(margin=0.95)),
        "gate": (0, Scenario(gate=1.5), Scenario(gate=0.5)),
    }
    app = Stage(source)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        panel = app.explorer.what_if
        grip = VALUE_AT + 4
        for name, (filled, dragged, turned) in values.items():
            slider = panel.query_one(f"#control-whatif-{name}", Control)
            assert slider.filled == filled, name
            await drag(pilot, slider, grip, grip + (-4 if name == "margin" else 3))
            await settled(pilot)
            assert panel.scenario == dragged and panel.result is not None
            await pilot.click("#whatif-reset")
            await drag(pilot, slider, grip, grip + 5, grip)
            await pilot.pause()
            assert panel.scenario == Scenario(), name
            await pilot.hover(slider, offset=(grip, 0))
            step = -1 if name == "margin" else 1
            await wheel(pilot, slider, 2 * step, grip)
            await pilot.pause()
            await wheel(pilot, slider, -step, grip)
            await pilot.pause()
            assert panel.scenario == turned
            await pilot.click("#whatif-reset")
            await settled(pilot)


async def test_the_foot_names_the_keys_of_the_view_in_sight_and_how_to_leave() -> None:
    app = Stage(source)
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        for key, keys in (
            ("1", "/ filter · ←→ sort · r reverse · Enter text · e export · Esc closes"),
            ("2", "h another chart · / filter · e export · Esc closes"),
            ("3", "↑↓ choose · ←→ change · Del as recorded · a applies · Esc closes"),
        ):
            await pilot.press(key)
            await settled(pilot)
            assert keys in shown(app)
        await pilot.resize_terminal(*WIDE)
        await settled(pilot)
        assert "e export · h chart · w what if · 4 replies · Esc closes" in shown(app)


@pytest.mark.parametrize("columns", [40, 60, 80])
async def test_a_chart_is_as_wide_as_its_lines(columns: int) -> None:
    app = Stage(lambda: source(many_rows(200)))
    async with app.run_test(size=(columns, 40)) as pilot:
        await settled(pilot)
        await pilot.press("2")
        await settled(pilot)
        for name in ("#histogram", "#reliability"):
            view = app.explorer.query_one(name, LinesView)
            assert max(cell_len(line) for line in view.text.splitlines()) <= view.size.width
