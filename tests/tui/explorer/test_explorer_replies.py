"""The conversation over time: figures of the replies, the strip, and the view by keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kits.explorer_stage import Stage, reply_of, settled, shown, steps_from
from kits.stored_replies import keep
from rich.cells import cell_len

from ds4chat.engine.events import Ended, Phases, Tuning
from ds4chat.engine.speclog import conf_line, timing_line
from ds4chat.store import Store
from ds4chat.store.recording import Request
from ds4chat.tui.conversation import Reply
from ds4chat.tui.explorer.replies import (
    Strip,
    detail_lines,
    head_line,
    reply_rows,
    row_line,
    settings_words,
    sparkline,
)
from ds4chat.tui.explorer.source import LOG_OPTIONS, Source, log_source, stored_source
from ds4chat.tui.kit.lines import Line
from ds4chat.tui.messages import TokenPicked
from ds4chat.tui.transcript.summary import summary_lines

DEEP = Tuning(depth=2, temp=0.8, seed=7)
LOSSY = replace(DEEP, margin=0.8)
WIDE, NARROW = (120, 40), (80, 24)
BOTH = pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80x24", "120x40"])


def conversation() -> list[Reply]:
    """Reply 1: a pass of 20 ms, two steps of 40 ms that bring 3 tokens each, then the margin changes, and two
    that bring 1. Reply 2: depth 1 from its start, all of it rejected, a pass first."""
    first = [
        *steps_from(("", "++", "++"), DEEP),
        *(replace(step, index=step.index + 3) for step in steps_from(("-", "-"), LOSSY)),
    ]
    second = steps_from(("", "-", "-"), Tuning(depth=1), reply=2)
    return [reply_of(first), reply_of(second)]


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def drawn(lines: Sequence[Line]) -> list[str]:
    return [text(line) for line in lines]


def test_a_row_has_the_replys_own_figures() -> None:
    """Reply 1: 1 + 3 + 3 + 1 + 1 tokens, 4 of 6 drafts, 180 ms; plain decoding takes 20 ms a token. Reply 2:
    3 tokens in 100 ms."""
    one, two = reply_rows(conversation())
    assert (one.number, one.tokens, one.acceptance) == (1, 9, 4 / 6)
    assert one.tokens_per_s == 9 / 0.18
    assert one.speedup == 9 * 20 / 180 and one.speedup_role == "good"
    assert (two.number, two.tokens, two.acceptance) == (2, 3, 0.0)
    assert two.tokens_per_s == 3 / 0.1
    assert two.speedup == 3 * 20 / 100 and two.speedup_role == "bad"


def test_the_figures_are_those_below_the_replys_text() -> None:
    reply = conversation()[0]
    reply.end(Ended(1, "stop", "", 9, 0, 10.0, 190.0, 30.0, 20, 7))
    (row,) = reply_rows([reply])
    said = text(summary_lines(reply, 200)[0])
    assert said == "9 tokens · 47.4 tok/s · 1.00× plain · 67% accepted"
    assert row.tokens_per_s == reply.stats.decode_tokens_per_s == 9 / 190 * 1000
    assert row.speedup == reply.stats.plain.speedup


def test_changes_are_told_within_a_reply_and_between_two() -> None:
    one, two = reply_rows(conversation())
    assert one.changes == ((3, "margin 1.00→0.80"),)
    assert two.changes == ((0, "depth 2→1, margin 0.80→1.00, temp 0.80→0.00, seed 7→-1"),)


def test_a_reply_without_steps_is_no_row() -> None:
    assert reply_rows([Reply(1, "m", tail="from long ago")]) == ()


def test_the_speed_by_the_load_alone_is_muted() -> None:
    reply = Reply(1, "m")
    reply.stats.plain.load_ms = 25.0
    for step in steps_from(("++",)):
        reply.add_step(step)
    (row,) = reply_rows([reply])
    assert (row.speedup, row.speedup_role) == (3 * 25 / 40, "muted")


def test_the_settings_are_told_that_are_not_the_defaults_and_the_depth() -> None:
    assert settings_words(Tuning(depth=2)) == "depth 2"
    assert settings_words(replace(LOSSY, strict=True)) == "depth 2, margin 0.80, strict on, temp 0.80, seed 7"
    assert settings_words(LOSSY, LOG_OPTIONS) == "margin 0.80"
    assert settings_words(DEEP, LOG_OPTIONS) == "defaults"


@pytest.mark.parametrize("width", [60, 74, 114, 200])
def test_every_line_is_as_wide_as_its_head(width: int) -> None:
    head = head_line(width)
    for row in reply_rows(conversation()):
        line = row_line(row, width)
        assert cell_len(text(line)) == cell_len(text(head)) == width


def test_a_line_tells_everything_in_its_column() -> None:
    one, two = reply_rows(conversation())
    head, first, second = text(head_line(114)), text(row_line(one, 114)), text(row_line(two, 114))
    columns = {
        name: head.index(name) + len(name) for name in ("reply", "tokens", "accept.", "tok/s", "× plain")
    }
    ends = {name: (first[:end].split()[-1], second[:end].split()[-1]) for name, end in columns.items()}
    assert ends == {
        "reply": ("1", "2"),
        "tokens": ("9", "3"),
        "accept.": ("%", "%"),
        "tok/s": ("50.0", "30.0"),
        "× plain": ("1.00×", "0.60×"),
    }
    assert "66.7 %" in first and "  0.0 %" in second
    assert first[head.index("settings") :].startswith("depth 2, temp 0.80, seed 7")
    assert first[: head.index("▲") + 1].endswith("1")
    assert first[head.index("acceptance") :].rstrip() == "·██▁▁"
    assert second[head.index("acceptance") :].rstrip() == "·▁▁"


def test_settings_that_do_not_fit_end_in_dots() -> None:
    row = replace(reply_rows(conversation())[0], tuning=replace(LOSSY, strict=True, top_k=3))
    line = text(row_line(row, 74))
    assert "…" in line and cell_len(line) == 74


def test_the_sparkline_covers_all_steps_in_its_room() -> None:
    (row,) = reply_rows([reply_of(steps_from(("++",) * 40 + ("-",) * 40))])
    assert sparkline(row.curve, 10) == "█████▁▁▁▁▁"


def test_the_strip_has_ms_a_token_the_changes_and_whose_steps_they_are() -> None:
    """Steps take 20, 40/3, 40/3, 40, 40, then 20, 40, 40 ms a token; the margin changes before step 3, and
    the depth before the second reply."""
    strip = Strip(reply_rows(conversation()))
    title, upper, lower, marks, ruler = drawn(strip.lines(40, 0))
    assert title == "Milliseconds per token over all replies"
    assert upper[:8] == "   ██ ██" and lower[:8] == "█▆▆█████"
    assert upper.endswith("40.0ms") and lower.endswith("13.3ms")
    assert marks[:8] == "╌╌╌▲╌▲╌╌"
    assert ruler == "1━━━━2──"
    roles = [role for part, role in strip.lines(40, 1)[-1] for _ in part]
    assert roles == ["muted", *["track"] * 4, *["mark"] * 3]


def test_the_strip_of_a_long_conversation_stays_in_its_room() -> None:
    replies = [reply_of(steps_from(("++", "-") * 40, reply=number)) for number in range(95, 105)]
    strip = Strip(reply_rows(replies))
    lines = drawn(strip.lines(60, 9))
    assert all(cell_len(line) <= 60 for line in lines)
    # 800 steps in 50 columns of 16.
    assert lines[-1].startswith("95") and "99" in lines[-1]
    # The current reply has its number whatever is beside it.
    assert lines[-1].endswith("104━━") and len(lines[-1]) == 50


def test_a_log_without_times_has_an_empty_strip(tmp_path: Path) -> None:
    log = tmp_path / "conf.log"
    steps = steps_from(("++", "-"), LOSSY)
    log.write_text("\n".join(conf_line(step, row) for step in steps for row in step.judged))
    found = log_source(str(log))
    (row,) = found.replies
    line = text(row_line(row, 80, found.options))
    assert "margin 0.80" in line and "50" not in settings_words(row.tuning, found.options)
    assert line.count("–") == 2  # no speed, and none to compare it with
    assert drawn(Strip(found.replies).lines(40, 0))[2].startswith("··")


def test_a_log_tells_a_row_a_reply_with_the_speed(tmp_path: Path) -> None:
    log = tmp_path / "all.log"
    steps = [step for reply in conversation() for step in reply.steps]
    log.write_text(
        "\n".join(
            line for one in steps for line in (*(conf_line(one, row) for row in one.judged), timing_line(one))
        )
    )
    found = log_source(str(log))
    assert [row.number for row in found.replies] == [1, 2]
    assert [round(row.tokens_per_s or 0) for row in found.replies] == [50, 30]
    assert [row.changes for row in found.replies] == [
        ((3, "margin 1.00→0.80"),),
        ((0, "margin 0.80→1.00"),),
    ]


def test_a_stored_reply_has_the_figures_that_it_had_live() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    live = conversation()[0]
    end = Ended(1, "stop", "", 9, 0, 10.0, 190.0, 30.0, 20, 7)
    live.end(end)
    keep(recorder, *live.steps, end)
    assert recorder.conversation is not None and recorder.message is not None
    (row,) = stored_source(store, recorder.conversation).replies
    (expected,) = reply_rows([live])
    assert row == replace(expected, number=recorder.message)


def test_the_detail_has_all_settings_and_each_change() -> None:
    one, two = reply_rows(conversation())
    assert drawn(detail_lines(one, 100)) == [
        "reply 1: depth 2, temp 0.80, seed 7 · ▲ step 3: margin 1.00→0.80",
        "",
    ]
    lines = drawn(detail_lines(two, 60))
    assert " ".join(lines).startswith("reply 2: depth 1 · ▲ before it: depth 2→1, margin 0.80→1.00,")
    assert len(lines) == 2 and all(len(line) <= 60 for line in lines)


def test_a_step_without_a_time_takes_no_place_in_the_curve() -> None:
    steps = steps_from(("++", "-"))
    steps[1] = replace(steps[1], ms=Phases(*[float("nan")] * 6))
    assert drawn(Strip(reply_rows([reply_of(steps)])).lines(40, 0))[2].startswith("█·")


# -- the view


def load() -> Source:
    return Source.of("this conversation", conversation(), in_chat=True)


@BOTH
async def test_the_view_shows_the_newest_reply_and_goes_through_all(size) -> None:
    app = Stage(load)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        await pilot.press("4")
        await settled(pilot)
        screen = shown(app)
        assert "1 Rows" in screen if size == NARROW else "By ratio" not in screen
        assert "Milliseconds per token over all replies" in screen
        assert "reply 2: depth 1 · ▲ before it: depth 2→1" in screen
        assert app.focused is app.explorer.replies.list
        await pilot.press("up")
        await pilot.pause()
        assert "reply 1: depth 2, temp 0.80, seed 7 · ▲ step 3: margin 1.00→0.80" in shown(app)
        await pilot.press("1")
        await settled(pilot)
        assert "Milliseconds per token" not in shown(app) and app.focused is app.explorer.table


@BOTH
async def test_the_keys_of_other_views_lead_out_of_it(size) -> None:
    app = Stage(load)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        for key, sign in (("h", "By target's gap"), ("w", "What if")):
            await pilot.press("4")
            await settled(pilot)
            assert "Milliseconds per token" in shown(app)
            await pilot.press(key)
            await settled(pilot)
            assert "Milliseconds per token" not in shown(app), key
            assert sign in shown(app)


async def test_enter_shows_the_reply_in_its_text() -> None:
    app = Stage(lambda: replace(load(), numbers=(16, 17)))
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("4", "up", "enter")
        await pilot.pause()
        assert app.of(TokenPicked) == [TokenPicked(16, 0, 0)]
        assert app.screen is not app.explorer


async def test_a_reply_that_is_not_in_the_chat_stays_and_says_why() -> None:
    app = Stage(lambda: replace(load(), in_chat=False))
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("4", "enter")
        await pilot.pause()
        assert app.explorer.said.startswith("The text of this conversation is not in the chat")
        assert not app.seen


async def test_what_has_come_since_is_read_with_f5_and_the_cursor_stays() -> None:
    replies = conversation()[:1]
    app = Stage(lambda: Source.of("this conversation", replies))
    async with app.run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("4")
        await settled(pilot)
        assert "reply 1:" in shown(app)
        replies += conversation()[1:]
        await pilot.press("f5")
        await settled(pilot)
        assert "reply 1:" in shown(app)
        await pilot.press("end")
        await pilot.pause()
        assert "reply 2:" in shown(app)
