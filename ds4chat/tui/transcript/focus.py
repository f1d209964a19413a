"""Bringing a place of the transcript into sight, and marking it."""

from __future__ import annotations

from textual.geometry import Offset
from textual.selection import Selection

from ds4chat.tui.conversation import Reply, Turn
from ds4chat.tui.messages import TokenPicked
from ds4chat.tui.transcript.blocks import GUTTER, Block, Place, ReplyBlock
from ds4chat.tui.transcript.pieces import Piece
from ds4chat.tui.transcript.view import Transcript


def in_sight(transcript: Transcript, block: Block, first: int, last: int) -> bool:
    """All of these rows of a block are on the screen."""
    top, seen = transcript.stack.top_of(block), transcript.scroll_offset.y
    return seen <= top + first and top + last < seen + transcript.size.height


def mark(transcript: Transcript, block: Block, start: Place, end: Place, *, above: int = 0) -> None:
    """Select a part of a block. Unless all of it is in sight, scroll to it, with ``above`` rows over it."""
    top = transcript.stack.top_of(block)
    if not in_sight(transcript, block, start[0], end[0]):
        transcript.scroll_to(y=top + start[0] - above, animate=False, immediate=True)
    ends = (Offset(GUTTER + column, top + row) for row, column in (start, end))
    transcript.screen.selections = {transcript: Selection(*ends)}


def show_turn(transcript: Transcript, turn: Turn, at: int) -> None:
    """Bring a turn into sight and mark it: in a reply, pick the token at character ``at`` of its text; else
    select all that the turn shows."""
    if isinstance(turn, Reply) and (token := turn.token_at(at)) is not None:
        place = turn.place(token)
        if place is not None:
            transcript.post_message(TokenPicked(turn.number, place.step.index, place.index))
            return
    block = transcript.stack.find(turn)
    if block is not None:
        _mark_rows(transcript, block)


def focus_piece(transcript: Transcript, piece: Piece) -> None:
    """Scroll to a piece of a turn and select what it shows."""
    block = transcript.stack.find(piece.turn)
    if block is not None:
        code = piece.code
        rows = block.code_rows(code) if code is not None and isinstance(block, ReplyBlock) else None
        _mark_rows(transcript, block, rows)


def turns_in_sight(transcript: Transcript) -> list[Turn]:
    """The turns that are at least partly on the screen, from top to bottom."""
    return [block.turn for block in transcript.blocks_in_sight() if block.turn is not None]


def bring_turn(transcript: Transcript, turn: Turn) -> None:
    """Bring the end of a turn into sight."""
    block = transcript.stack.find(turn)
    if block is not None and not in_sight(transcript, block, last := block.height - 2, last):
        bottom = transcript.stack.top_of(block) + block.height - 1
        transcript.scroll_to(y=bottom - transcript.size.height // 2, animate=False, immediate=True)


def _mark_rows(transcript: Transcript, block: Block, rows: tuple[int, int] | None = None) -> None:
    """Select the first to the last of these rows, or all of the block but the blank row at its end."""
    first, last = rows or (0, block.height - 2)
    mark(transcript, block, (first, 0), (last, max(0, len(block.text(last)) - GUTTER)))
