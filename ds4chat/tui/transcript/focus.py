"""A turn of the transcript, brought to the top of the screen and marked."""

from __future__ import annotations

from textual.geometry import Offset
from textual.selection import Selection

from ds4chat.tui.conversation import Turn
from ds4chat.tui.transcript.blocks import GUTTER, Block, UserBlock
from ds4chat.tui.transcript.view import Transcript


def focus_turn(transcript: Transcript, turn: Turn) -> bool:
    """Scroll to a turn and select what it shows; False where the turn is not in the transcript."""
    stack = transcript._stack
    index = next((i for i, block in enumerate(stack) if _turn_of(block) is turn), None)
    if index is None:
        return False
    top = stack.top(index)
    transcript.scroll_to(y=top, animate=False, immediate=True)
    # The last row of a block is empty.
    last = max(top, top + stack[index].height - 2)
    end = GUTTER + stack.text_length(index, last - top)
    transcript.screen.selections = {transcript: Selection(Offset(GUTTER, top), Offset(end, last))}
    return True


def _turn_of(block: Block) -> Turn | None:
    return block.turn if isinstance(block, UserBlock) else block.reply
