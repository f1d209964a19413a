"""Which rows are listed and in which order, the columns that fit, and what 200,000 rows cost."""

from __future__ import annotations

from time import thread_time

import numpy as np
import pytest
from kits.explorer_stage import Stage, many_rows, settled, source, steps_from
from rich.cells import cell_len

from ds4chat.analysis.filters import Filter
from ds4chat.analysis.rows import rows_from_steps
from ds4chat.tui.explorer.listing import COLUMNS, Listing
from ds4chat.tui.explorer.query import parse_query
from ds4chat.tui.explorer.table import head_line, layout, row_line

SMALL = ("++", "-", "+-", "~+")
"""Rows 0..6. Ratios: 1, 1, 0.25, 1, 0.45, 0.55, 1; texts: the, small, model, comma, drafts, newline, what."""


def small() -> Listing:
    return Listing(rows_from_steps(steps_from(SMALL)))


def listed(listing: Listing) -> list[int]:
    return listing.shown.tolist()


def test_everything_is_listed_in_order_at_first() -> None:
    assert listed(small()) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("rejected", [2, 4]),
        ("lossy", [5]),
        ("miss", [2]),
        ("partial full", [0, 1, 3, 4, 5, 6]),
        ("pos=2", [1, 4, 6]),
        ("ratio<0.5", [2, 4]),
        ("ratio=0.55", [5]),
        ('"Model"', []),
        ('"model"', [2]),
        ('pos=2 rejected "drafts"', [4]),
    ],
)
def test_a_filter_line_lists_these_rows(line: str, rows: list[int]) -> None:
    listing = small()
    listing.narrow(parse_query(line))
    assert listed(listing) == rows


@pytest.mark.parametrize(
    ("column", "descending", "rows"),
    [
        ("step", True, [6, 5, 4, 3, 2, 1, 0]),
        ("position", False, [0, 2, 3, 5, 1, 4, 6]),
        ("ratio", False, [2, 4, 5, 0, 1, 3, 6]),
        ("ratio", True, [0, 1, 3, 6, 5, 4, 2]),
        ("draft", False, [5, 3, 4, 2, 1, 0, 6]),
        ("accepted", False, [2, 4, 0, 1, 3, 5, 6]),
        ("outcome", False, [0, 1, 5, 6, 3, 4, 2]),
    ],
)
def test_a_column_sorts_and_equal_rows_keep_their_order(column, descending, rows) -> None:
    """The draft texts without their blanks: newline, comma, drafts, model, small, the, what."""
    listing = small()
    listing.sort(column, descending)
    assert listed(listing) == rows


def test_rows_without_a_value_come_last_either_way() -> None:
    rows = rows_from_steps(steps_from(SMALL))
    rows.draft_prob[[0, 3]] = np.nan
    listing = Listing(rows)
    for descending, order in ((False, [2, 4, 5, 1, 6, 0, 3]), (True, [1, 6, 4, 5, 2, 0, 3])):
        listing.sort("draft_prob", descending)
        assert listed(listing) == order


def test_filter_and_order_hold_together_whichever_came_first() -> None:
    one, other = small(), small()
    one.narrow(parse_query("pos=1"))
    one.sort("ratio")
    other.sort("ratio")
    other.narrow(parse_query("pos=1"))
    assert listed(one) == listed(other) == [2, 5, 0, 3]
    one.narrow(Filter())
    assert listed(one) == [2, 4, 5, 0, 1, 3, 6]


def test_a_row_is_found_in_the_list() -> None:
    listing = small()
    listing.narrow(parse_query("rejected"))
    assert (listing.place(4), listing.place(0)) == (1, None)


@pytest.mark.parametrize("width", [20, 40, 60, 75, 79, 100, 140])
def test_names_and_rows_fill_the_same_cells_at_any_width(width: int) -> None:
    cells = layout(width)
    rows = small().rows
    total = sum(cell.width for cell in cells) + len(cells) - 1
    lines = [head_line(cells, column, True) for column in COLUMNS]
    lines += [row_line(rows, row, cells, several=True) for row in range(len(rows))]
    assert {sum(cell_len(text) for text, _ in line) for line in lines} == {total}
    assert total <= width or width < 40


def test_a_narrow_table_gives_columns_up_and_a_wide_one_has_all() -> None:
    assert [cell.column for cell in layout(75)] == list(COLUMNS)
    assert "draft_gap" not in [cell.column for cell in layout(60)]
    assert {"step", "draft", "target", "ratio", "accepted"} <= {cell.column for cell in layout(40)}


def test_a_row_is_marked_by_more_than_colour() -> None:
    rows = small().rows
    texts = ["".join(text for text, _ in row_line(rows, row, layout(79), False)) for row in (0, 2, 5)]
    assert [next(mark for mark in "✓✗≈" if mark in text) for text in texts] == ["✓", "✗", "≈"]


# -- what many rows cost

COSTS = {
    "sort": lambda explorer, number: explorer.table.sort(
        ("gap", "draft_gap", "draft_prob")[number % 3], number < 3
    ),
    "filter": lambda explorer, number: explorer.table.narrow(parse_query(f'ratio<0.{9 - number} "the"')),
    "scroll": lambda explorer, number: explorer.table.action_page(1),
}


async def costs(rows: int) -> dict[str, float]:
    """For each of COSTS, the least processor time of six to do it and to draw the frame. Every sort is by
    another column or the other way round, so that none is remembered."""
    app = Stage(lambda: source(many_rows(rows)))
    async with app.run_test(size=(140, 45)) as pilot:
        await settled(pilot)
        table = app.explorer.table
        height = table.scrollable_content_region.height
        assert height > 30

        def once(name: str, number: int) -> float:
            began = thread_time()
            COSTS[name](app.explorer, number)
            strips = [table.render_line(y) for y in range(height)]
            took = thread_time() - began
            assert all(strip.cell_length for strip in strips)
            return took

        return {name: min(once(name, number) for number in range(6)) for name in COSTS}


async def test_a_frame_of_200_000_rows_costs_little_more_than_one_of_2_000() -> None:
    """A hundred times the rows: sorting by a new column may cost its share of it, filtering a part of that,
    drawing and scrolling nothing."""
    few, many = await costs(2_000), await costs(200_000)
    assert many["sort"] < 100 * few["sort"]
    assert many["filter"] < 25 * few["filter"]
    assert many["scroll"] < 5 * few["scroll"]


def test_sorting_200_000_rows_is_right() -> None:
    listing = Listing(many_rows(200_000))
    listing.narrow(parse_query("rejected"))
    listing.sort("gap", descending=True)
    gaps = listing.rows.gap[listing.shown]
    assert np.all(gaps[:-1] >= gaps[1:])
    assert len(listing) == int((~listing.rows.accepted).sum())
