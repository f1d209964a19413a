"""The token card's lines: their columns, also in long replies."""

from __future__ import annotations

from dataclasses import replace

from kits.chat import PIECES, steps_of

from ds4chat.tui.chat.token_card import card_lines
from ds4chat.tui.conversation import Reply


def lines(reply: Reply, token: int, width: int = 78) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in card_lines(reply, token, width)]


def long_reply(steps: int) -> Reply:
    """Two tokens a step: an accepted draft and a bonus."""
    reply = Reply(1, "tiny")
    (step,) = steps_of(1, [("a", "accepted"), ("b", "bonus")])
    for index in range(steps):
        reply.add_step(replace(step, index=index))
    return reply


def test_a_label_never_touches_what_it_labels() -> None:
    """Token 3,001 of 4,000 in step 1500: both labels have nine characters."""
    shown = lines(long_reply(2000), 3000)
    assert shown[0].startswith(" 3001/4000  ‘a’  id 0  accepted  a draft that the target accepted")
    assert shown[1].startswith(" draft 1    ‘a’")
    assert next(line for line in shown if "step" in line).startswith(" step 1500  all drafts accepted")


def test_the_column_stays_where_it_is_while_the_cursor_moves() -> None:
    reply = long_reply(2000)
    assert {line.index("‘") for token in (0, 10, 999, 3999) for line in lines(reply, token)[:1]} == {12}
    assert lines(reply, 9)[0].startswith("   10/4000  ‘b’")


def test_a_short_reply_has_a_short_column() -> None:
    reply = Reply(1, "tiny")
    for step in steps_of(1, PIECES):
        reply.add_step(step)
    assert lines(reply, 1)[0].startswith("  2/22    ‘ulative’")
