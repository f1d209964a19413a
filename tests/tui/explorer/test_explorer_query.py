"""The filter line: terms, their combinations, errors as sentences, completion."""

from __future__ import annotations

import math

import pytest

from ds4chat.analysis.filters import Filter
from ds4chat.tui.explorer.query import QueryError, complete, parse_query

BELOW_HALF = math.nextafter(0.5, 0)
ABOVE_TWO = math.nextafter(2.0, 3)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", Filter()),
        ("   ", Filter()),
        ("miss", Filter(outcomes=frozenset({"miss"}))),
        ("miss PARTIAL", Filter(outcomes=frozenset({"miss", "partial"}))),
        ("accepted", Filter(accepted=True)),
        ("rejected", Filter(accepted=False)),
        ("lossy", Filter(lossy=True)),
        ("pos=2", Filter(positions=frozenset({2}))),
        ("pos=1,3", Filter(positions=frozenset({1, 3}))),
        ("pos=2..4", Filter(positions=frozenset({2, 3, 4}))),
        ("pos>14", Filter(positions=frozenset({15, 16}))),
        ("pos<3 pos>=2", Filter(positions=frozenset({2}))),
        ("ratio<0.5", Filter(ratio=(-math.inf, BELOW_HALF))),
        ("ratio<=0.5", Filter(ratio=(-math.inf, 0.5))),
        ("gap>2", Filter(gap=(ABOVE_TWO, math.inf))),
        ("dgap=0.5..2", Filter(draft_gap=(0.5, 2.0))),
        ("prob>=0.2 prob<=0.9", Filter(draft_prob=(0.2, 0.9))),
        ('"the"', Filter(text="the")),
        ('" the"', Filter(text=" the")),
        ('"still ty', Filter(text="still ty")),
        ('""', Filter()),
        (
            'miss ratio<0.5 pos=2 "the"',
            Filter(
                outcomes=frozenset({"miss"}),
                ratio=(-math.inf, BELOW_HALF),
                positions=frozenset({2}),
                text="the",
            ),
        ),
    ],
)
def test_a_line_means_this_filter(line: str, wanted: Filter) -> None:
    assert parse_query(line) == wanted


def test_equals_finds_what_the_table_shows_as_that_number() -> None:
    """0.125 means 0.1245 to 0.1255; a gap of 2 means 1.995 to 2.005."""
    assert parse_query("ratio=0.125").ratio == pytest.approx((0.1245, 0.1255))
    assert parse_query("gap=2").gap == pytest.approx((1.995, 2.005))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("mis", "There is no filter mis. Did you mean miss?"),
        ("hello", 'There is no filter hello. Put a text in quotes: "hello".'),
        ("ratio", "ratio takes a comparison, as in ratio<0.5 or ratio=0.2..0.8."),
        ("ratio<", "ratio takes a number, as in ratio<0.5 or ratio=0.2..0.8."),
        ("ratio<x", "ratio takes a number, not x, as in ratio<0.5 or ratio=0.2..0.8."),
        ("gap>nan", "gap takes a number, not nan, as in gap>1 or gap=0..2."),
        ("ratio=0.8..0.2", "ratio=0.8..0.2 is empty: the smaller end comes first."),
        ("rato<1", "There is no column rato. Did you mean ratio?"),
        ("zzz<1", "There is no column zzz. There are ratio, gap, dgap, prob and pos."),
        ("pos=0", "pos takes a position from 1 to 16, not 0, as in pos=2 or pos=1,3."),
        ("pos=", "pos takes a position from 1 to 16, as in pos=2 or pos=1,3."),
        (
            "pos=" + "9" * 5000,
            f"pos takes a position from 1 to 16, not {'9' * 5000}, as in pos=2 or pos=1,3.",
        ),
        ("pos>16", "pos>16 is empty: positions run from 1 to 16."),
        ("pos=1 pos=2", "No position is in all of these ranges: leave one of them out."),
        ("accepted rejected", "No draft is both accepted and rejected: leave one of them out."),
        ('"a" "b"', 'One text at a time: it is either "a" or "b".'),
    ],
)
def test_what_is_no_filter_is_said_in_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(line)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("ra", "ratio<"),
        ("miss re", "miss rejected"),
        ("MI", "MIss"),
        ("p", "partial"),
        ("po", "pos="),
        ("miss", None),
        ("miss ", None),
        ("", None),
        ('"re', None),
        ('"a" re', '"a" rejected'),
        ("ratio<0", None),
    ],
)
def test_the_last_word_is_completed(line: str, completed: str | None) -> None:
    assert complete(line) == completed
