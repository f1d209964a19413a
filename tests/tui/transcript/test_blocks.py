"""Replies and prompts as rows: what stands where, how tokens look, and what a selection copies."""

from __future__ import annotations

import dataclasses

import pytest
from kits.chat import PIECES, ended, steps_of
from rich.cells import cell_len
from rich.style import Style
from textual.geometry import Offset
from textual.selection import Selection

from ds4chat.engine.events import EngineDied, Origin, Tuning
from ds4chat.tui.conversation import Reply, UserTurn
from ds4chat.tui.kit.drawn import overlay
from ds4chat.tui.transcript.blocks import GUTTER, NoteBlock, ReplyBlock, UserBlock, text_width
from ds4chat.tui.transcript.cursor import Cursor, by_rows, by_tokens, last_between
from ds4chat.tui.transcript.markdown import markdown_page
from ds4chat.tui.transcript.page import Row
from ds4chat.tui.transcript.stack import Stack
from ds4chat.tui.transcript.view import MD_ROLES


def text_of(row: Row) -> str:
    return "".join(text for text, _ in row)


def rows_of(block: ReplyBlock | UserBlock | NoteBlock) -> list[str]:
    return [text_of(block.row(index)) for index in range(block.height)]


def reply_of(*pieces: tuple[str, Origin], **more: object) -> Reply:
    reply = Reply(1, "Tiny")
    for step in steps_of(1, pieces or PIECES, **more):  # type: ignore[arg-type]
        reply.add_step(step)
    return reply


def test_each_origin_has_a_look_and_a_ratio_acceptance_its_own() -> None:
    reply = reply_of(
        ("a", "plain"), ("b", "accepted"), ("c", "accepted"), ("d", "corrected"), ("e", "bonus"), by_ratio=[2]
    )
    block = ReplyBlock(reply, 80)
    assert block.row(1)[1:] == (
        ("a", "plain"),
        ("b", "accepted"),
        ("c", "approximate"),
        ("d", "corrected"),
        ("e", "bonus"),
    )
    block.colour(True)
    assert [role for _, role in block.row(1)[1:]] == [
        "corrected",
        "accepted",
        "approximate",
        "corrected",
        "corrected",
    ]


def test_thinking_is_coloured_by_origin_too() -> None:
    reply = reply_of(("", "plain"), ("so", "plain"), (" hm", "accepted"), (" no", "corrected"), thinking=True)
    reply.add_step(steps_of(1, [("Yes", "bonus")], first=4)[0])
    block = ReplyBlock(reply, 80)
    assert rows_of(block)[1:3] == ["   ▸ thinking · 4 tokens", "   Yes"]
    assert block.toggle()
    assert block.row(2) == (
        (" ┊ ", "thinking-bar"),
        ("so", "plain"),
        (" hm", "accepted"),
        (" no", "corrected"),
    )
    assert block.hit(2, 3).token == 2


def test_what_came_after_the_last_token_is_shown_on_its_side() -> None:
    reply = reply_of(("", "plain"), ("so", "plain"), thinking=True)
    assert not ReplyBlock(reply_of(("", "plain"), thinking=True), 80).toggle()  # no text to open
    reply.end(dataclasses.replace(ended(1), tail="Yes", thinking_tail=" hm"))
    block = ReplyBlock(reply, 80)
    block.toggle()
    assert rows_of(block)[1:4] == ["   ▾ thinking · 2 tokens", " ┊ so hm", "   Yes"]
    assert block.hit(3, 0).what == ""  # it is no token's
    assert (reply.answer, reply.thinking) == ("Yes", "so hm")


def test_growing_step_by_step_shows_what_opening_at_once_shows() -> None:
    grown = Reply(1, "Tiny")
    block = ReplyBlock(grown, 40)
    for step in steps_of(1, PIECES, by_ratio=[7]):
        grown.add_step(step)
        block.grow()
    grown.end(ended(1))
    block.grow()
    opened = reply_of(*PIECES, by_ratio=[7])
    opened.end(ended(1))
    again = ReplyBlock(opened, 40)
    assert [block.row(i) for i in range(block.height)] == [again.row(i) for i in range(again.height)]


def test_only_the_last_row_is_reported_as_changed_while_text_grows() -> None:
    reply = Reply(1, "Tiny")
    block = ReplyBlock(reply, GUTTER + 1 + 10)
    steps = steps_of(1, [(f" word{n}", "plain") for n in range(6)])
    reply.add_step(steps[0])
    block.grow()
    for step in steps[1:4]:
        reply.add_step(step)
    block.grow()
    rows = block.height
    reply.add_step(steps[4])
    assert block.grow() == rows - 2


def test_a_crashed_reply_is_labelled_and_keeps_its_text() -> None:
    reply = reply_of(*PIECES[:4])
    reply.crash(EngineDied(1, None, "SIGSEGV", "The engine stopped.", ()))
    rows = rows_of(ReplyBlock(reply, 80))
    assert rows[1] == "   Speculative decoding lets"
    assert "cut off: the engine died" in rows[2]


def test_a_limit_says_why() -> None:
    reply = reply_of()
    reply.end(ended(1, reason="context", detail="The context of 64 tokens is full."))
    assert "   The context of 64 tokens is full." in rows_of(ReplyBlock(reply, 100))


def test_an_approximate_reply_says_so_in_its_header() -> None:
    reply = reply_of(*PIECES, tuning=Tuning(depth=2, margin=0.5))
    assert text_of(ReplyBlock(reply, 80).row(0)) == "   Tiny · approximate"


def test_a_long_prompt_is_folded_and_opens() -> None:
    block = UserBlock(UserTurn("\n".join(str(n) for n in range(100))), 40)
    assert block.height == 8 + 1 + 1
    assert rows_of(block)[8] == "▌  ▸ 92 more lines"
    assert block.toggle()
    assert block.height == 102


def test_hostile_text_is_harmless_in_every_block() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\u202e\x9b31m\r"
    reply = reply_of((evil, "plain"))
    reply.end(ended(1))
    blocks = [UserBlock(UserTurn(evil), 80), NoteBlock(evil, "info", 80), ReplyBlock(reply, 80)]
    for block in blocks:
        shown = "".join(rows_of(block))
        assert shown and not set(shown) & {"\x1b", "\x07", "\u202e", "\x9b", "\r"}


@pytest.mark.parametrize("width", [1, 2, 5, 20, 79])
def test_no_row_is_wider_than_the_screen_beside_the_gutter(width: int) -> None:
    reply = reply_of(*PIECES, ("漢字かな交じり文と👍絵文字", "accepted"))
    reply.end(ended(1))
    block = ReplyBlock(reply, width)
    for index in range(1, block.height):
        text = text_of(block.row(index))
        assert cell_len(text.rstrip()) <= max(width, GUTTER + 2) or "tokens" in text


def stack_of(width: int = 40) -> tuple[Stack, ReplyBlock]:
    reply = reply_of()
    reply.end(ended(1))
    block = ReplyBlock(reply, width)
    return Stack([UserBlock(UserTurn("one"), width), block]), block


def test_a_height_is_found_in_its_block() -> None:
    stack, _ = stack_of()
    assert stack.at(0) == (0, 0)
    assert stack.at(1) == (0, 1)
    assert stack.at(2) == (1, 0)
    assert stack.at(10_000) == (1, stack[1].height - 1)


def test_a_selection_leaves_gutters_out_and_joins_wrapped_rows() -> None:
    stack, _ = stack_of()
    # Rows: prompt, blank, header, "Speculative decoding lets a small ", "model guess a few …".
    picked = stack.selected(Selection(Offset(0, 3), Offset(3 + 5, 4)))
    assert picked == "Speculative decoding lets a small model"
    everything = stack.selected(Selection(None, None))
    assert everything.startswith("one\n\nTiny\nSpeculative decoding lets a small model guess")


def test_the_cursor_goes_by_tokens_and_by_rows() -> None:
    stack, block = stack_of()
    last = last_between(stack, 0, stack.height)
    assert last == Cursor(block, 21)
    assert by_tokens(stack, last, 1) is None
    assert by_tokens(stack, last, -1) == Cursor(block, 20)
    up = by_rows(stack, last, -1)
    assert up is not None and up.token < 20


def test_an_overlay_changes_only_its_characters() -> None:
    plain, bold = Style(), Style(bold=True)
    parts = overlay([("abc", plain), ("def", plain)], 2, 4, bold)
    assert [(text, bool(style.bold)) for text, style in parts] == [
        ("ab", False),
        ("c", True),
        ("d", True),
        ("ef", False),
    ]


STYLES = dict.fromkeys(MD_ROLES, Style())


def markdown(text: str, width: int = 40) -> list[str]:
    return [text_of(row).rstrip() for row in markdown_page(text, width, STYLES).rows]


def test_markdown_shows_headings_lists_code_and_addresses() -> None:
    shown = markdown("# Title\n\n- a *b*\n\n```py\nx = 1\n```\n\n[here](http://x.y)")
    assert shown[0] == "# Title"
    assert any("• a b" in line for line in shown)
    assert any("x = 1" in line for line in shown)
    assert shown[-1] == "here (http://x.y)"


def test_html_in_markdown_is_shown_not_lost() -> None:
    assert "<b>bold</b>" in "\n".join(markdown("some <b>bold</b> text\n\n<div>block</div>"))
    assert "<div>block</div>" in "\n".join(markdown("<div>block</div>"))


def test_no_style_of_rendered_markdown_is_a_link() -> None:
    rows = markdown_page("[a](http://x.y) ![i](http://x.y/i.png) <http://auto.link>", 60, STYLES).rows
    assert all(style.link is None for row in rows for _, style in row if isinstance(style, Style))


@pytest.mark.parametrize(
    "text", ["> " * 200 + "deep", "- " * 200 + "deep", "|a|\n|-|\n" * 50, "`" * 999, "\\" * 99]
)
def test_odd_markdown_is_rows_of_the_width(text: str) -> None:
    rows = [text_of(row) for row in markdown_page(text, 20, STYLES).rows]
    assert any(row.strip() for row in rows) and max(map(cell_len, rows)) <= 20


@pytest.mark.parametrize("mark", ["> ", "- ", "10. "])
@pytest.mark.parametrize("width", [20, 80, 300])
def test_nothing_is_lost_however_deep_it_is_nested(mark: str, width: int) -> None:
    for deep in range(1, 60):
        shown = "".join(text_of(row) for row in markdown_page(mark * deep + "deep", width, STYLES).rows)
        assert "deep" in shown, deep


WIDE_CODE = "x = [" + ", ".join(str(number) for number in range(40)) + "]"
ANSWER = f"Some **bold** words.\n\n```python\n{WIDE_CODE}\nif x:\n    y = 1\n```\n\nThe end."


def rendered(text: str, width: int = 44) -> ReplyBlock:
    block = ReplyBlock(reply_of((text, "plain")), width)
    block.show_markdown(True)
    block.render_with(lambda answer, cells: markdown_page(answer, cells, STYLES))
    return block


def test_wide_code_goes_on_in_the_next_row_and_is_copied_as_one_line() -> None:
    block = rendered(ANSWER)
    stack = Stack([block])
    first, last = block.code_rows(0) or (0, 0)
    rows = rows_of(block)[first : last + 1]
    assert all(cell_len(row) <= 44 for row in rows)
    assert (
        "".join(row[GUTTER + 2 :].rstrip(" ") for row in rows)
        .replace(" ", "")
        .startswith(WIDE_CODE.replace(" ", ""))
    )
    # A part of the block: its code without the bar, whatever the rows.
    assert stack.selected(Selection(Offset(GUTTER, first), Offset(44, last - 1))) == f"{WIDE_CODE}\nif x:"


def test_rendered_markdown_is_copied_as_it_was_written() -> None:
    block = rendered(ANSWER)
    stack = Stack([block])
    body = Selection(Offset(GUTTER, 1), Offset(44, (block.code_rows(0) or (0, 0))[1] + 2))
    assert stack.selected(body) == ANSWER
    # A part of a line is what is shown of it.
    assert stack.selected(Selection(Offset(GUTTER + 5, 1), Offset(GUTTER + 9, 1))) == "bold"


@pytest.mark.parametrize(
    "text",
    [
        r"Take \(a_1 * b_2 * c\) twice.",
        r"Then \[x^2 + \frac{a}{b}\] holds.",
        r"A space \, and \; in the open, and \) alone.",
        r"An open \(a, b",
    ],
)
def test_mathematics_is_left_as_the_model_wrote_it(text: str) -> None:
    assert markdown(text, 80) == [text]


def test_markdown_escapes_still_hold() -> None:
    assert markdown(r"\*not emphasis\* and \# no heading") == ["*not emphasis* and # no heading"]


def test_code_is_found_in_tokens_and_in_markdown() -> None:
    tokens = ReplyBlock(reply_of((f"\n{ANSWER}", "plain")), 200)
    for block in (tokens, rendered(ANSWER, 200)):
        first, last = block.code_rows(0) or (0, 0)
        shown = "\n".join(rows_of(block)[first : last + 1])
        assert WIDE_CODE in shown and "y = 1" in shown
        assert "bold" not in shown and "The end" not in shown


def test_a_prompt_is_found_where_it_is_folded() -> None:
    import re

    block = UserBlock(UserTurn("\n".join(f"line {number}" for number in range(40))), 80)
    (spot,) = block.find(re.compile("line 37"))
    assert block.hides(spot)
    block.toggle()
    assert not block.hides(spot)
    (row, column), end = block.place_of(spot)
    assert rows_of(block)[row][GUTTER + column : GUTTER + end[1]] == "line 37"


def test_a_note_whose_line_is_just_full_goes_on_below_its_first_letter() -> None:
    room = text_width(40)
    note = NoteBlock(f"{'x' * room} second  {'y' * (room - 8)} third", "info", 40)
    assert rows_of(note) == [f"·  {'x' * room}", f"   second  {'y' * (room - 8)}", "   third", ""]
