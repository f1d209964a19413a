"""Numbers and charts of the panels, worked out by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ds4chat.engine.events import Tuning
from ds4chat.engine.stats import PositionCount
from ds4chat.text import unmoving
from ds4chat.tui.kit.charts import changes, curve_lines, position_lines, stacked_line
from ds4chat.tui.kit.figures import (
    count,
    decimal,
    level,
    percent,
    rate_bar,
    ratio,
    stacked,
    token_text,
    whole_percent,
)
from ds4chat.tui.kit.history import History


def plain(lines) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def test_counts_are_grouped_and_shortened_to_their_width() -> None:
    assert count(7) == "      7"
    assert count(1234) == "  1,234"
    assert count(None) == "      –"
    assert count(12_345, 5) == "12345"
    assert count(123_456, 4) == "123k"
    assert count(12_345_678, 7) == "  12.3M"
    assert count(12_345_678, 8) == "12345678"
    assert count(10**16, 7) == "      ∞"


def test_decimals_lose_places_before_they_grow() -> None:
    assert decimal(3.14159, 6, 2) == "  3.14"
    assert decimal(1234.56, 6, 2) == "1234.6"
    assert decimal(123456.7, 6, 2) == "123457"
    assert decimal(float("nan"), 5) == "    –"
    assert percent(0.613) == " 61.3 %"
    assert percent(1.0) == "100.0 %"
    assert percent(None) == "    –  "
    assert ratio(1.236) == " 1.24×"


@given(st.floats(allow_nan=True, allow_infinity=True) | st.none(), st.integers(4, 12))
def test_no_number_ever_changes_the_width(value, width: int) -> None:
    assert len(decimal(value, width, 2)) == width
    assert len(percent(value if value is None or 0 <= value <= 1 else 0.5)) == 7


@given(st.integers(0, 10**18), st.integers(4, 12))
def test_no_count_ever_changes_the_width(value: int, width: int) -> None:
    text = count(value, width)
    assert len(text) == width
    assert not text.strip().startswith("0.0")


def test_rate_bar_counts_half_cells() -> None:
    assert rate_bar(0.5, 10) == ("━━━━━", "─────")
    assert rate_bar(0.25, 10) == ("━━╾", "───────")
    assert rate_bar(None, 4) == ("", "────")
    assert rate_bar(1.0, 4) == ("━━━━", "")


def test_stacked_bar_is_shared_by_the_largest_remainder() -> None:
    """Of 10 cells, 1:1:1 is 3.33 each: the first takes the cell that is left over."""
    assert stacked([1, 1, 1], 10) == [4, 3, 3]
    assert stacked([88, 9, 3], 10) == [9, 1, 0]
    assert stacked([0, 0], 10) == [0, 0]
    assert plain([stacked_line([("draft", 1.0), ("verify", 3.0)], 8)]) == ["████████"]
    assert stacked_line([("draft", 1.0), ("verify", 3.0)], 8) == (("██", "draft"), ("██████", "verify"))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6), st.integers(1, 200))
def test_stacked_bar_always_fills_its_width(parts: list[float], width: int) -> None:
    assert sum(stacked(parts, width)) == (width if sum(parts) > 0 else 0)


def test_levels_are_eighths() -> None:
    assert [level(x) for x in (0, 0.125, 0.5, 0.99, 1.0)] == ["▁", "▂", "▅", "█", "█"]


def test_token_text_is_visible_harmless_and_exactly_as_wide() -> None:
    assert token_text(" the\n", 6) == "␣the⏎ "
    assert token_text("\x1b[31m\u202e\u200b", 10) == "␛[31m▯▯   "
    assert token_text("speculative", 6) == "specu…"
    assert token_text("", 3) == "·  "


@given(st.text(max_size=20), st.integers(1, 12))
def test_token_text_never_leaves_its_column(text: str, width: int) -> None:
    shown = token_text(text, width)
    assert cell_len(shown) == width
    assert unmoving(shown) == shown and not any(c.isspace() and c != " " for c in shown)


def test_position_lines_show_share_and_tally() -> None:
    lines = plain(position_lines([PositionCount(4, 3), PositionCount(3, 0), PositionCount()], 42))
    assert [len(line) for line in lines] == [42, 42, 42]
    assert lines[0] == " 1 " + "━" * 15 + "─" * 5 + "  75.0 %        3/4"
    assert lines[1] == " 2 " + "─" * 20 + "   0.0 %        0/3"
    assert lines[2] == " 3 " + "─" * 20 + "     –          0/0"


def test_many_positions_share_lines_where_there_is_little_room() -> None:
    counts = [
        PositionCount(4, 3),
        PositionCount(3, 0),
        PositionCount(2, 2),
        PositionCount(),
        PositionCount(8, 1),
    ]
    assert plain(position_lines(counts, 46, compact=True)) == [
        " 1 ▇ 75%  2 ▁  0%  3 █100%  4 ·  –   5 ▂ 12% "
    ]
    assert len(position_lines(counts[:4], 46, compact=True)) == 4
    lines = plain(position_lines([PositionCount(4, 3)] * 16, 46, compact=True))
    assert len(lines) == 4 and lines[3] == "16 ▇ 75% "
    assert len(position_lines(counts, 46)) == 5


def test_history_means_are_weighted_and_columns_never_shift() -> None:
    """Five steps in two columns: groups of four, from the first step on."""
    history = History()
    for accepted, judged in ((1, 2), (2, 2), (0, 0), (1, 4), (3, 3)):
        history.add(accepted, judged, False)
    assert [g.value for g in history.columns(8)] == [0.5, 1.0, None, 0.25, 1.0]
    assert [g.value for g in history.columns(2)] == [4 / 8, 1.0]


def test_history_is_bounded_and_keeps_its_marks() -> None:
    """Capacity 4: at the fifth step the groups cover two steps each, at the ninth four."""
    history = History(capacity=4)
    for step in range(9):
        history.add(step, 1, step == 2)
    groups = history.columns(100)
    assert [(g.numerator, g.denominator) for g in groups] == [(6, 4), (22, 4), (8, 1)]
    assert [g.marked for g in groups] == [True, False, False]
    assert history.steps == 9


def test_curve_has_min_max_and_a_mark_where_a_setting_changed() -> None:
    history = History()
    for value, marked in ((0.0, False), (1.0, True), (0.5, False)):
        history.add(value, 1, marked)
    history.add(0, 0, False)
    upper, lower, marks = plain(curve_lines(history, 20, "accept", top=1.0, unit="%", scale=100))
    assert upper == " █         " + " ↑100.0% "
    assert lower == "▁██·       " + " ↓  0.0% "
    assert marks == "╌▲╌╌" + "╌" * 7
    assert [role for _, role in curve_lines(history, 20, "accept")[2]].count("mark") == 1


def test_a_compact_curve_is_one_cell_high() -> None:
    history = History()
    for value, marked in ((0.0, False), (1.0, True), (0.5, False)):
        history.add(value, 1, marked)
    curve, marks = plain(curve_lines(history, 20, "accept", top=1.0, unit="%", scale=100, compact=True))
    assert curve == "▁█▅        " + " ↑100.0% "
    assert marks == "╌▲╌" + "╌" * 8 + " ↓  0.0% "


def test_an_empty_curve_has_the_same_size() -> None:
    lines = plain(curve_lines(History(), 30, "verify", unit="ms"))
    assert len(lines) == 3 and len(lines[0]) == len(lines[1]) == 30


def test_changes_name_every_field_that_differs() -> None:
    before = Tuning(depth=2, margin=1.0, seed=3)
    assert changes(before, before) == ""
    now = Tuning(depth="auto", margin=0.8, strict=True, seed=3)
    assert changes(before, now) == "depth 2→auto, margin 1.00→0.80, strict off→on"


def test_a_whole_percentage_is_all_or_nothing_only_where_it_is() -> None:
    """3,448 of 3,453 are 99.86 %: a hundred would hide the five."""
    assert [whole_percent(share) for share in (0.0, 1 / 3453, 0.605, 3448 / 3453, 1.0)] == [
        "  0%",
        "  1%",
        " 60%",
        " 99%",
        "100%",
    ]
