"""Bringing a place of the transcript into sight, and marking it."""

from __future__ import annotations

from textual.geometry import Offset
from textual.selection import Selection

from ds4chat.tui.conversation import Reply, Turn
from ds4chat.tui.messages import TokenPicked
from ds4chat.tui.transcript.blocks import GUTTER, Block, ReplyBlock
from ds4chat.tui.transcript.pieces import Piece
from ds4chat.tui.transcript.view import Transcript


def show_turn(transcript: Transcript, turn: Turn, at: int) -> None:
    """Bring a turn into sight and mark it: in a reply, pick the token at character ``at`` of its text; else
    select all that the turn shows."""
    if isinstance(turn, Reply) and (token := turn.token_at(at)) is not None:
        place = turn.place(token)
        if place is not None:
            transcript.post_message(TokenPicked(turn.number, place.step.index, place.index))
            return
    block = _block(transcript, turn)
    if block is not None:
        # The last row of a block is empty.
        _mark(transcript, block, 0, block.height - 2)


def focus_piece(transcript: Transcript, piece: Piece) -> None:
    """Scroll to a piece of a turn and select what it shows."""
    block = _block(transcript, piece.turn)
    if block is None:
        return
    rows = block.code_rows(piece.code) if piece.code is not None and isinstance(block, ReplyBlock) else None
    _mark(transcript, block, *(rows or (0, block.height - 2)))


def turns_in_sight(transcript: Transcript) -> list[Turn]:
    """The turns that are at least partly on the screen, from top to bottom."""
    stack = transcript._stack
    if not len(stack):
        return []
    first, _ = stack.at(transcript.scroll_offset.y)
    last, _ = stack.at(transcript.scroll_offset.y + transcript.size.height - 1)
    turns = (stack[index].turn for index in range(first, last + 1))
    return [turn for turn in turns if turn is not None]


def bring_turn(transcript: Transcript, turn: Turn) -> None:
    """Bring the end of a turn into sight."""
    block = _block(transcript, turn)
    if block is not None:
        bottom = transcript._stack.top(transcript._stack.index(block)) + block.height - 1
        top = transcript.scroll_offset.y
        if not top < bottom <= top + transcript.size.height:
            transcript.scroll_to(y=bottom - transcript.size.height // 2, animate=False, immediate=True)


def _block(transcript: Transcript, turn: Turn) -> Block | None:
    return next((block for block in transcript._stack if block.turn is turn), None)


def _mark(transcript: Transcript, block: Block, first: int, last: int) -> None:
    """Select these rows of a block, the first of them at the top of the screen unless all are in sight."""
    stack = transcript._stack
    index = stack.index(block)
    top, bottom = stack.top(index) + first, stack.top(index) + max(first, last)
    seen = transcript.scroll_offset.y
    if not seen <= top <= bottom < seen + transcript.size.height:
        transcript.scroll_to(y=top, animate=False, immediate=True)
    end = GUTTER + stack.text_length(index, max(first, last))
    transcript.screen.selections = {transcript: Selection(Offset(GUTTER, top), Offset(end, bottom))}
