"""Dates and branches as the history shows them, worked out by hand."""

from __future__ import annotations

from datetime import datetime

from rich.style import Style

from ds4chat.store import Hit, Node
from ds4chat.store.entities import Role
from ds4chat.tui.history.rows import Looks, branch_row, branches, hit_rows, when

LOOKS = Looks(Style(dim=True), Style(bold=True), Style(color="blue"))


def ms(*parts: int) -> int:
    return int(datetime(*parts).timestamp() * 1000)  # type: ignore[arg-type]


def test_today_has_a_clock_this_year_a_day_and_earlier_a_date() -> None:
    now = ms(2026, 11, 29, 12, 0)
    assert when(ms(2026, 11, 29, 9, 5), now) == "09:05"
    assert when(ms(2026, 11, 28, 23, 59), now) == "28 Nov"
    assert when(ms(2026, 1, 2, 3, 4), now) == "2 Jan"
    assert when(ms(2025, 12, 31, 23, 59), now) == "2025-12-31"


def test_a_chain_stays_on_one_level_and_a_fork_goes_in_by_one() -> None:
    """1 - 2 - 3 - 4, with 5 beside 2 and 6 below 5, and a second root 7."""
    parents = {1: None, 2: 1, 3: 2, 4: 3, 5: 1, 6: 5, 7: None}
    nodes = [Node(i, parent, "user", "complete", 0, f"m{i}") for i, parent in parents.items()]
    found = branches(nodes, 4)
    assert [(b.node.id, b.level, b.forks, b.shown) for b in found] == [
        (1, 1, True, True),
        (2, 2, True, True),
        (3, 2, False, True),
        (4, 2, False, True),
        (5, 2, True, False),
        (6, 2, False, False),
        (7, 1, True, False),
    ]
    assert [branch_row(b, 40, LOOKS).plain for b in found[:3]] == [
        "● ├ You: m1",
        "●   ├ You: m2",
        "●     You: m3",
    ]


def test_what_was_asked_under_another_system_prompt_stands_beside_the_first_reply() -> None:
    """The question 1 was answered by 2; under the system prompts 3 and 6 by 4, 5 and 7. Nothing was asked
    under 8, which /system wrote below 2."""
    rows: list[tuple[int, int | None, Role, str]] = [
        (1, None, "user", "why?"),
        (2, 1, "assistant", "long"),
        (8, 2, "system", "Be brief."),
        (3, 1, "system", "Be brief, please, as brief as it gets."),
        (4, 3, "assistant", "short"),
        (5, 3, "assistant", "shorter"),
        (6, 1, "system", ""),
        (7, 6, "assistant", "long again"),
    ]
    nodes = [Node(i, parent, role, "complete", 0, text) for i, parent, role, text in rows]
    found = branches(nodes, 5)
    assert [(b.node.id, b.level, b.forks, b.shown) for b in found] == [
        (1, 0, False, True),
        (2, 1, True, False),
        (4, 1, True, False),
        (5, 1, True, True),
        (7, 1, True, False),
    ]
    assert [branch_row(b, 60, LOOKS).plain for b in found] == [
        "● You: why?",
        "  ├ Model: long",
        "  ├ Model (system: Be brief, please, as br…): short",
        "● ├ Model (system: Be brief, please, as br…): shorter",
        "  ├ Model (system: none): long again",
    ]
    waiting = branches(nodes, 8)
    assert [(b.node.id, b.shown) for b in waiting][:3] == [(1, True), (2, True), (8, True)]


def test_a_system_prompt_that_everything_stands_under_has_its_row() -> None:
    texts: list[tuple[Role, str]] = [("system", "Be brief."), ("user", "why?"), ("assistant", "so")]
    nodes = [Node(i, i - 1 or None, role, "complete", 0, text) for i, (role, text) in enumerate(texts, 1)]
    assert [branch_row(b, 60, LOOKS).plain for b in branches(nodes, 3)] == [
        "● System: Be brief.",
        "● You: why?",
        "● Model: so",
    ]


def test_a_long_row_is_cut_and_an_empty_message_says_so() -> None:
    (branch,) = branches([Node(1, None, "assistant", "crashed", 0, "")], 1)
    assert branch_row(branch, 60, LOOKS).plain == "● Model: (empty) (crashed)"
    assert branch_row(branch, 12, LOOKS).plain == "● Model: (e…"


def test_matches_are_marked_where_escapes_made_the_text_longer() -> None:
    hit = Hit(1, "title", 2, "assistant", 0, "a\x1bfox ran", ((2, 5),))
    said = hit_rows(hit, 60, 0, LOOKS)[1]
    assert said.plain == "  Model: a\\x1bfox ran"
    assert [said.plain[s.start : s.end] for s in said.spans if s.style == LOOKS.hit] == ["fox"]


def test_a_match_far_to_the_right_is_in_sight_on_a_narrow_screen() -> None:
    snippet = "word " * 24 + "fox ran"
    hit = Hit(1, "title", 2, "assistant", 0, snippet, ((120, 123),))
    said = hit_rows(hit, 60, 0, LOOKS)[1]
    assert said.plain.startswith("  Model: …") and "fox ran" in said.plain and said.cell_len <= 60
    assert [said.plain[span.start : span.end] for span in said.spans if span.style == LOOKS.hit] == ["fox"]
    assert hit_rows(hit, 140, 0, LOOKS)[1].plain == f"  Model: {snippet}", "it fits as it is"
