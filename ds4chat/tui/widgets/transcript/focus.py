"""A turn of the transcript, brought to the top of the screen and marked."""

from __future__ import annotations

from textual.geometry import Offset
from textual.selection import Selection

from ds4chat.tui.conversation import Turn
from ds4chat.tui.widgets.transcript.blocks import GUTTER, UserBlock
from ds4chat.tui.widgets.transcript.view import Transcript


def focus_turn(transcript: Transcript, turn: Turn) -> bool:
    """Scroll to a turn and select what it shows; False where the turn is not in the transcript."""
    stack = transcript._stack
    for index, block in enumerate(stack):
        if turn is (block.turn if isinstance(block, UserBlock) else block.reply):
            break
    else:
        return False
    top = stack.top(index)
    transcript.scroll_to(y=top, animate=False, immediate=True)
    # The last row of a block is empty.
    last = max(top, top + block.height - 2)
    end = GUTTER + stack.text_length(index, last - top)
    transcript.screen.selections = {transcript: Selection(Offset(GUTTER, top), Offset(end, last))}
    return True
