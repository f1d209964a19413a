"""What a search in the history found, shown in its conversation on the chat screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4chat.tui.conversation import Reply
from ds4chat.tui.messages import TokenPicked
from ds4chat.tui.transcript.focus import focus_turn

if TYPE_CHECKING:
    from ds4chat.tui.chat.screen import ChatScreen


def show_message(screen: ChatScreen, message: int, at: int) -> bool:
    """Bring a stored message into sight and mark it: in a reply, the token at character ``at`` of its text;
    else the whole message. False where it is not on the screen's path."""
    turn = next((turn for turn in screen.chat.conversation.turns if turn.key == message), None)
    if turn is None:
        return False
    if isinstance(turn, Reply) and (token := token_at(turn, at)) is not None:
        place = turn.place(token)
        if place is not None:
            screen.post_message(TokenPicked(turn.number, place.step.index, place.index))
            return True
    return focus_turn(screen.transcript, turn)


def token_at(reply: Reply, at: int) -> int | None:
    """Index of the token that holds character ``at`` of the reply, its thinking counted first; None where
    none does."""
    for thinking in (True, False):
        tokens = [(index, token) for index, token in enumerate(reply.tokens) if token.thinking is thinking]
        for index, token in tokens:
            if at < len(token.text):
                return index
            at -= len(token.text)
        if thinking and at < len(reply.thinking_tail):
            return tokens[-1][0] if tokens else None
        at -= len(reply.thinking_tail) if thinking else 0
    return None
