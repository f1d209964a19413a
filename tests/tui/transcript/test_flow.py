"""Tokens flowing into rows: where rows break, which token stands where, growing against wrapping anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ds4chat.tui.transcript.flow import Flow, expand_tabs


def rows(flow: Flow) -> list[str]:
    return [flow.row_text(i) for i in range(flow.height)]


def flow_of(width: int, *pieces: str) -> Flow:
    flow = Flow(width)
    for number, piece in enumerate(pieces):
        flow.append((piece, number % 3))
    return flow


def test_rows_break_at_blanks_and_keep_the_blank() -> None:
    assert rows(flow_of(10, "Hello", " wor", "ld and more")) == ["Hello ", "world and ", "more"]


def test_a_word_longer_than_the_row_is_cut() -> None:
    assert rows(flow_of(4, "abcdefghij")) == ["abcd", "efgh", "ij"]


def test_an_indent_does_not_stand_alone() -> None:
    assert rows(flow_of(8, "    abcdefgh")) == ["    abcd", "efgh"]


def test_wide_characters_count_two_cells_and_closing_marks_stay_with_them() -> None:
    assert rows(flow_of(6, "漢字漢字")) == ["漢字漢", "字"]
    assert rows(flow_of(6, "漢字漢。字")) == ["漢字", "漢。字"]


def test_leading_and_trailing_newlines_take_no_rows() -> None:
    assert rows(flow_of(10, "\n\n", "a", "\n", "\nb\n\n")) == ["a", "", "b"]


def test_spans_join_neighbours_of_one_kind() -> None:
    flow = Flow(20)
    for text, kind in (("ab", 1), ("cd", 1), ("ef", 2), ("", 2), ("gh", 1)):
        flow.append((text, kind))
    assert flow.spans(0) == [("abcd", 1), ("ef", 2), ("gh", 1)]


def test_a_token_is_found_by_its_place_and_its_place_by_the_token() -> None:
    flow = flow_of(5, "one ", "two ", "three")
    assert rows(flow) == ["one ", "two ", "three"]
    assert flow.token_at(0, 0) == 0
    assert flow.token_at(1, 0) == 1
    assert flow.token_at(2, 4) == 2
    assert flow.token_at(2, 5) is None
    assert flow.token_range(1) == (4, 8)
    assert flow.places(1) == [(1, 0, 4)]
    assert [flow.row_of(at) for at in (0, 4, 8)] == [0, 1, 2]


def test_only_the_last_row_changes_while_text_grows() -> None:
    flow = flow_of(10, "one two three four")
    before = rows(flow)
    flow.append((" five", 0))
    assert rows(flow)[: len(before) - 1] == before[:-1]


def test_continued_rows_are_told_from_ended_lines() -> None:
    flow = flow_of(4, "abcdef\ngh")
    assert [flow.continues(i) for i in range(flow.height)] == [True, False, False]


texts = st.text(alphabet="ab \n\t漢é👍\u0301,。x", max_size=12)


@given(st.lists(texts, max_size=30), st.integers(1, 12))
def test_growing_token_by_token_equals_opening_at_once(pieces: list[str], width: int) -> None:
    grown = flow_of(width, *pieces)
    opened = Flow(width)
    opened.append(*((piece, number % 3) for number, piece in enumerate(pieces)))
    resized = flow_of(width + 7, *pieces)
    resized.resize(width)
    assert rows(grown) == rows(opened) == rows(resized)
    for number in range(grown.tokens):
        assert grown.token_range(number) == opened.token_range(number)


@given(st.lists(texts, max_size=30), st.integers(2, 12))
def test_no_character_is_lost_and_no_row_is_too_wide(pieces: list[str], width: int) -> None:
    flow = flow_of(width, *pieces)
    joined = "".join(flow.row_text(i) + ("" if flow.continues(i) else "\n") for i in range(flow.height))
    assert joined.rstrip("\n") == flow.text.rstrip("\n")
    for index in range(flow.height):
        assert cell_len(flow.row_text(index).rstrip(" ")) <= width
        assert "".join(text for text, _ in flow.spans(index)) == flow.row_text(index)


def test_tabs_go_to_the_next_stop_of_their_line() -> None:
    assert expand_tabs("a\tb\n\tc", 0) == "a   b\n    c"
    assert expand_tabs("\tx", 3) == " x"
