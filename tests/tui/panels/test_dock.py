"""The dock with its panels in a running app: what they show, how often they draw, and how they fold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, get_args

from kits.chat_stage import Open
from kits.panel_stage import LOADED, OFF, Stage, step
from rich.cells import cell_len

from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Ended, Prefill, ServerInfo, Tells, Tuning
from ds4chat.engine.stats import Stats
from ds4chat.tui.kit.lines import Line, LinesView
from ds4chat.tui.messages import SettingsChanged, TokenPicked
from ds4chat.tui.panels import dock as dock_module
from ds4chat.tui.panels.acceptance import counter_lines, outcome_lines, speed_lines
from ds4chat.tui.panels.confidence import (
    ConfidenceLog,
    ConfidencePanel,
    JudgedRow,
    columns,
    head_line,
    row_spans,
)
from ds4chat.tui.panels.dock import open_panels
from ds4chat.tui.panels.panel import PanelTitle
from ds4chat.tui.panels.timings import phase_lines
from ds4chat.tui.panels.timings import speed_lines as rate_lines
from ds4chat.tui.themes import load_themes

STEPS = [step(0, 2, 2), step(1, 1, 2), step(2, 0, 2), step(3, 2, 2)]
"""Accepted 5 of 7 judged of 8 drafted; positions 3/4 and 2/3; 9 tokens in 4 steps of 40 ms."""


def folded(steps=STEPS) -> Stats:
    stats = Stats(plain=PlainTime(LOADED.plain_ms))
    for one in steps:
        stats.fold(one)
    return stats


def shown(app: Stage, view: str) -> str:
    return app.query_one(f"#{view}", LinesView).text


async def settle(pilot: Any) -> None:
    """Until what arrived is drawn."""
    while pilot.app.dock.drawing_due:
        await pilot.pause(0.02)
    await pilot.pause()


async def test_acceptance_shows_the_counters_by_hand() -> None:
    """Speed: 9 tokens in 160 ms are 56.2 tok/s, against 20 plain (50 ms): 2.81 times."""
    app = Stage()
    async with app.run_test(size=(60, 70)) as pilot:
        app.dock.show_engine(LOADED, "ready")
        stats = folded()
        app.dock.show_step_batch(STEPS, stats, folded(STEPS * 2))
        await settle(pilot)
        lines = shown(app, "acceptance-lines").splitlines()
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "drafted 8 accepted 5" in text
    assert "judged 7 rate 71.4 %" in text
    assert "mean len 1.25 tok/step 2.25" in text
    assert "session 71.4 %" in text
    assert "75.0 % 3/4" in text and "66.7 % 2/3" in text
    assert "full 2 partial 1 miss 1" in text
    assert "56.2 tok/s 2.81× plain decoding" in text
    assert "20.0 tok/s plain: a pass at load" in text
    assert ("2.81×", "muted") in [(text.strip(), role) for line in speed_lines(stats) for text, role in line]


def test_an_outcome_has_its_colour_once_it_happened() -> None:
    """Two full steps, a partial one and a miss: nothing that would warn of a fallback."""
    roles = {text.strip(): role for line in outcome_lines(folded()) for text, role in line}
    assert (roles["full"], roles["miss"]) == ("good", "bad")
    assert roles["fallback"] == roles["gated"] == roles["plain"] == "muted"


def widest(lines: list[Line]) -> int:
    return max(cell_len("".join(text for text, _ in line)) for line in lines)


def words(lines: list[Line]) -> list[str]:
    return sorted(word for line in lines for text, _ in line for word in text.split())


def test_a_narrow_panel_keeps_its_figures() -> None:
    """In a dock over a screen of 40 columns lines have 35 cells, on one of 30 columns 25."""
    stats = folded()
    for lines_of in (partial(counter_lines, stats, stats), partial(outcome_lines, stats)):
        for width in (25, 35, 46):
            assert widest(lines_of(width)) <= width and words(lines_of(width)) == words(lines_of(46))
    assert [len(counter_lines(stats, stats, width)) for width in (25, 35, 46)] == [8, 4, 4]
    assert [len(outcome_lines(stats, width)) for width in (25, 35, 46)] == [6, 3, 2]
    assert widest(speed_lines(stats)) <= 35 and widest(phase_lines(STEPS[-1].ms, stats)) <= 35
    assert widest(rate_lines(stats, 12345.6, 123456.7)) <= 35
    for tells in get_args(Tells):
        server = ServerInfo("", "box", "llama-server", "", tells, "", None, (), (), (), False, False)
        assert widest(speed_lines(Stats(), replace(LOADED, server=server))) <= 35


async def test_a_dock_over_40_columns_cuts_no_figure(opened: Open) -> None:
    async with opened(size=(40, 60)) as chat:
        await chat.press("f2")
        view = chat.screen.dock_view.query_one("#acceptance-lines", LinesView)
        assert view.size.width >= 35


async def test_the_prefill_is_shown_while_the_reply_is_written_and_goes_with_it() -> None:
    """40 tokens of which 10 were reused: 30 in 150 ms are 200 a second. The first of the steps took 40 ms."""
    app = Stage()
    async with app.run_test(size=(60, 70)) as pilot:

        async def figures() -> str:
            await settle(pilot)
            return " ".join(shown(app, "timings-lines").split())

        app.dock.timings.prefill = Prefill(1, 40, 40, 10, 150.0)
        app.dock.show_step_batch(STEPS, folded(), folded())
        assert "prefill 200.0 tok/s first 190.0 ms" in await figures()
        app.dock.reset_reply()
        assert "prefill – tok/s first – ms" in await figures()
        app.dock.timings.prefill = Prefill(2, 40, 40, 40, 0.0)
        app.dock.show_step_batch(STEPS, folded(), folded())
        assert "prefill – tok/s first 40.0 ms" in await figures()


async def test_timings_show_last_mean_share_and_speeds() -> None:
    app = Stage()
    async with app.run_test(size=(60, 70)) as pilot:
        stats = folded()
        app.dock.show_step_batch(STEPS, stats, stats)
        ended = Ended(1, "stop", "", 30, 10, 100.0, 160.0, 123.0, 60, 1)
        stats.fold(ended)
        app.dock.show_end(stats)
        await settle(pilot)
        text = "\n".join(" ".join(line.split()) for line in shown(app, "timings-lines").splitlines())
        bar = app.query_one("#timings-lines", LinesView).lines[7]
    assert "■ draft 4.0 4.0 10.0 %" in text
    assert "■ verify 32.0 32.0 80.0 %" in text
    assert "total 40.0 40.0 100.0 %" in text
    assert "prefill 200.0 tok/s first 123.0 ms" in text
    assert "decode 56.2 tok/s" in text
    cells = {role: len(cell) for cell, role in bar}
    width = sum(cells.values())
    assert cells["verify"] == round(width * 0.8) and cells["draft"] == round(width * 0.1)


async def test_why_speculation_is_off_is_on_the_panel() -> None:
    app = Stage()
    async with app.run_test(size=(46, 70)) as pilot:
        app.dock.show_engine(None, "Loading the model.")
        await settle(pilot)
        assert "Loading the model." in shown(app, "acceptance-lines")
        app.dock.show_engine(OFF, "ready")
        await settle(pilot)
        text = " ".join(shown(app, "acceptance-lines").split())
        assert "Speculation is off: the target has no NextN block; give a support file with --mtp." in text
        app.dock.show_engine(LOADED, "ready")
        await settle(pilot)
        assert "off" not in shown(app, "acceptance-lines")


async def test_a_changed_setting_is_marked_in_both_curves_and_named() -> None:
    app = Stage()
    async with app.run_test(size=(60, 70)) as pilot:
        steps = [
            step(0, 2, 2),
            step(1, 2, 2, Tuning(depth=2, margin=0.8)),
            step(2, 2, 2, Tuning(depth=2, margin=0.8)),
        ]
        app.dock.show_step_batch(steps, folded(steps), folded(steps))
        await settle(pilot)
        assert "▲ step 1: margin 1.00→0.80" in shown(app, "acceptance-lines")
        for view in ("acceptance-lines", "timings-lines"):
            assert "╌▲╌" in shown(app, view)
        app.dock.reset_reply()
        await settle(pilot)
        assert "╌▲╌" not in shown(app, "timings-lines")


async def test_many_batches_are_drawn_together_and_an_idle_dock_draws_nothing(monkeypatch) -> None:
    """What arrives inside one drawing interval is drawn by the first frame after it."""
    drawings: list[float] = []
    now = [100.0]
    monkeypatch.setattr(dock_module, "monotonic", lambda: now[0])
    app = Stage()
    async with app.run_test(size=(60, 70)):
        dock = app.dock
        draw = dock._draw
        monkeypatch.setattr(dock, "_draw", lambda: (drawings.append(now[0]), draw())[1])
        dock.draw_if_due()
        assert drawings == []
        for one in STEPS * 12 + STEPS[:2]:
            dock.show_step_batch([one], folded(), folded())
            dock.draw_if_due()
        assert drawings == []
        now[0] = 200.0
        dock.draw_if_due()
        dock.draw_if_due()
        assert drawings == [200.0]
        assert len(dock.confidence.log_view.rows) == 12 * 7 + 4


async def test_the_confidence_log_keeps_no_more_out_of_sight_than_in_sight() -> None:
    """At 80x24 the dock may stay closed for a whole session."""
    panel = ConfidencePanel(capacity=10)
    for index in range(40):
        panel.add_steps([step(index, 2, 2)], folded(), folded())
    assert [row.step for row in panel._pending] == [n for n in range(35, 40) for _ in range(2)]


async def test_only_changed_lines_are_drawn_again() -> None:
    app = Stage()
    async with app.run_test(size=(60, 70)) as pilot:
        view = app.query_one("#timings-lines", LinesView)
        await pilot.pause()
        lines = list(view.lines)
        assert view.set_lines(lines) == 0
        lines[3] = (("other", ""),)
        assert view.set_lines(lines) == 1


async def test_numbers_do_not_change_the_shape_of_a_panel() -> None:
    """From nothing to a million tokens, no line of the counters or timings gets longer or shorter."""
    app = Stage()
    async with app.run_test(size=(60, 70)) as pilot:
        app.dock.show_engine(LOADED, "ready")
        one = [step(0, 1, 1)]
        shapes = []
        for scale in (1, 1_000_000):
            stats = folded(one)
            stats.drafted *= scale
            stats.judged *= scale
            stats.accepted *= scale
            stats.emitted *= scale
            stats.steps *= scale
            stats.ms = {phase: ms * scale for phase, ms in stats.ms.items()}
            app.dock.show_step_batch(one, stats, stats)
            await settle(pilot)
            texts = [shown(app, "acceptance-lines"), shown(app, "timings-lines")]
            shapes.append([[len(line) for line in text.splitlines()] for text in texts])
    assert shapes[0] == shapes[1]


async def test_little_height_brings_the_panels_closer_and_back() -> None:
    app = Stage()
    async with app.run_test(size=(60, 43)) as pilot:
        await settle(pilot)
        low = app.dock.acceptance.region.height + app.dock.timings.region.height
        assert app.dock.has_class("-compact")
        await pilot.resize_terminal(60, 70)
        await settle(pilot)
        high = app.dock.acceptance.region.height + app.dock.timings.region.height
        assert not app.dock.has_class("-compact")
        assert high - low == 2 + 1 + 1  # empty lines of Acceptance, one row of each of the two curves


async def test_a_click_or_a_key_folds_and_the_choice_is_told() -> None:
    app = Stage("timings acceptance tuning")
    async with app.run_test(size=(60, 70)) as pilot:
        assert [panel.NAME for panel in app.dock.children] == [
            "timings",
            "acceptance",
            "tuning",
            "confidence",
        ]
        assert app.dock.confidence.folded and app.dock.open == "timings acceptance tuning"
        await pilot.click(app.dock.timings.title_bar)
        await pilot.pause()
        assert app.of(SettingsChanged)[-1].changes["panels"] == "acceptance tuning"
        assert app.dock.timings.body.region.height == 0
        app.dock.confidence.title_bar.focus()
        await pilot.press("enter")
        await pilot.pause()
        assert app.of(SettingsChanged)[-1].changes["panels"] == "acceptance tuning confidence"
        app.dock.acceptance.title_bar.post_message(PanelTitle.Pressed())
        await pilot.pause()
        assert app.of(SettingsChanged)[-1].changes["panels"] == "tuning confidence"


def test_the_panels_setting_is_read_leniently() -> None:
    assert open_panels("tuning acceptance tuning nonsense") == ["tuning", "acceptance"]
    assert open_panels("") == []


# ---------------------------------------------------------------------------------------- confidence


def test_columns_give_way_in_order() -> None:
    """Six cells of text at least: at 48 all columns, at 42 no probability, at 36 no draft gap either."""
    assert (columns(48).draft_gap, columns(48).draft_prob) == (6, 6)
    assert (columns(42).draft_gap, columns(42).draft_prob) == (6, 0)
    assert (columns(36).draft_gap, columns(36).draft_prob) == (0, 0)
    for width in (36, 41, 42, 47, 48, 60, 90):
        fit = columns(width)
        rows = dock_rows([step(7, 1, 2)])
        for row in rows:
            assert len("".join(text for text, _ in row_spans(row, fit))) <= width
        assert len("".join(text for text, _ in head_line(fit))) <= width


def dock_rows(steps):
    return [JudgedRow(one.reply, one.index, row) for one in steps for row in one.judged]


async def filled(app: Stage, pilot: Any) -> ConfidenceLog:
    """The confidence log, with the rows of 60 steps."""
    many = [step(i, 1, 2) for i in range(60)]
    app.dock.show_step_batch(many, folded(many), folded(many))
    await settle(pilot)
    return app.dock.confidence.log_view


async def test_confidence_rows_follow_until_scrolled_and_end_follows_again() -> None:
    app = Stage("confidence")
    async with app.run_test(size=(60, 20)) as pilot:
        log = await filled(app, pilot)
        assert len(log.rows) == 120 and log.scroll_offset.y == log.max_scroll_y > 0
        log.focus()
        await pilot.press("up", "up", "pageup")
        await pilot.pause()
        assert not log.following
        assert "End follows" in app.dock.confidence.title_bar.headline
        place = log.scroll_offset.y
        more = [step(60 + i, 1, 2) for i in range(10)]
        app.dock.show_step_batch(more, folded(more), folded(more))
        await settle(pilot)
        assert log.scroll_offset.y == place and len(log.rows) == 140
        await pilot.press("end")
        await pilot.pause()
        assert log.following and log.scroll_offset.y == log.max_scroll_y
        assert log.cursor_row is None


async def test_the_wheel_stops_following_too() -> None:
    app = Stage("confidence")
    async with app.run_test(size=(60, 20)) as pilot:
        log = await filled(app, pilot)
        log.scroll_to(y=10, animate=False)
        await pilot.pause()
        assert not log.following


async def test_a_full_log_drops_the_oldest_and_keeps_the_view_in_place() -> None:
    class Small(Stage):
        def compose(self):
            yield ConfidenceLog(capacity=100)

    app = Small()
    async with app.run_test(size=(60, 20)) as pilot:
        log = app.query_one(ConfidenceLog)
        log.extend(dock_rows([step(i, 1, 1) for i in range(100)]))
        await pilot.pause()
        log.focus()
        await pilot.press("home", *["down"] * 50)
        row = log.cursor_row
        top = log.rows[log.scroll_offset.y].step
        log.extend(dock_rows([step(100 + i, 1, 1) for i in range(10)]))
        await pilot.pause()
        assert len(log.rows) == 100 and log.rows[0].step == 10
        assert log.cursor_row is row and row.step == 50
        assert log.rows[log.scroll_offset.y].step == top
        log.extend(dock_rows([step(200 + i, 1, 1) for i in range(90)]))
        assert log.cursor_row is None


async def test_the_cursor_is_seen_in_every_theme() -> None:
    """Its row differs from the next one by its ground, or, in the terminal's palette, by reversal."""
    app = Stage("confidence")
    async with app.run_test(size=(60, 20)) as pilot:
        few = [step(0, 2, 2), step(1, 2, 2)]
        app.dock.show_step_batch(few, folded(few), folded(few))
        await settle(pilot)
        log = app.dock.confidence.log_view
        log.focus()
        await pilot.press("home")
        for name in (theme.name for theme in load_themes(None)[0]):
            app.theme = name
            await pilot.pause()
            cursor, other = (list(log.render_line(y))[1].style for y in (0, 1))
            assert cursor.color == other.color
            assert (cursor.bgcolor, cursor.reverse) != (other.bgcolor, other.reverse), name


async def test_a_row_is_picked_with_enter_or_the_mouse() -> None:
    app = Stage("confidence")
    async with app.run_test(size=(60, 20)) as pilot:
        few = [step(0, 1, 2, reply=4), step(1, 2, 2, reply=4)]
        app.dock.show_step_batch(few, folded(few), folded(few))
        await settle(pilot)
        log = app.dock.confidence.log_view
        log.focus()
        await pilot.press("home", "down", "enter")
        await pilot.pause()
        assert [vars_of(picked) for picked in app.of(TokenPicked)] == [(4, 0, 1)]
        await pilot.click(log, offset=(3, 3))
        await pilot.pause()
        assert vars_of(app.of(TokenPicked)[-1]) == (4, 1, 1)


def vars_of(picked: TokenPicked) -> tuple[int, int, int]:
    return picked.reply, picked.step, picked.token
