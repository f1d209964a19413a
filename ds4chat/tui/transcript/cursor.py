"""Moving the token cursor through a stack of blocks. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ds4chat.tui.transcript.blocks import GUTTER, ReplyBlock
from ds4chat.tui.transcript.stack import Stack


class Cursor(NamedTuple):
    """A token of a reply that is shown."""

    block: ReplyBlock
    token: int


def last_between(stack: Stack, top: int, bottom: int) -> Cursor | None:
    """The last token shown in the rows from ``top`` up to ``bottom``, both included."""
    for y in range(min(bottom, stack.height - 1), top - 1, -1):
        found = at(stack, y, 1 << 30)
        if found is not None:
            return found
    return None


def at(stack: Stack, y: int, column: int) -> Cursor | None:
    """The token at a row and a character of it, or the row's last one where it is shorter."""
    index, row = stack.at(y)
    block = stack[index]
    if not isinstance(block, ReplyBlock):
        return None
    hit = block.hit(row, min(column, max(0, len(block.text(row)) - GUTTER - 1)))
    return Cursor(block, hit.token) if hit.what == "token" else None


def by_tokens(stack: Stack, cursor: Cursor, by: int) -> Cursor | None:
    """The next token shown in a direction (1 or -1), in another reply where this one ends."""
    replies = stack.replies
    place = replies.index(cursor.block)
    token = cursor.token + by
    while 0 <= place < len(replies):
        block = replies[place]
        while 0 <= token < len(block.reply.tokens):
            if block.shows(token):
                return Cursor(block, token)
            token += by
        place += by
        if 0 <= place < len(replies):
            token = 0 if by > 0 else len(replies[place].reply.tokens) - 1
    return None


def by_rows(stack: Stack, cursor: Cursor, by: int) -> Cursor | None:
    """The token above (-1) or below (1), at the same column or at the end of a shorter row."""
    places = cursor.block.locate(cursor.token)
    if not places:
        return None
    row, column, _ = places[0] if by < 0 else places[-1]
    y = stack.top_of(cursor.block) + row + by
    while 0 <= y < stack.height:
        found = at(stack, y, column)
        if found is not None and found != cursor:
            return found
        y += by
    return None
