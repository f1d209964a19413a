"""The pieces of a conversation that can be copied: prompts, replies and the code blocks in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ds4chat.tui.conversation import Reply, Turn, UserTurn


class Code(NamedTuple):
    """A code block of a Markdown text."""

    language: str
    """The language that the fence names; may be empty."""
    text: str
    """Without the fence."""
    first: int
    """Index of its first line in the text, the fence included."""
    stop: int
    """Index of the line after its last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A prompt, a reply or a code block."""

    turn: Turn
    what: str
    """Its name for the user, such as ``prompt 2``."""
    text: str
    """As it was written."""
    code: int | None = None
    """Index among the turn's code blocks; None for the whole turn."""


def code_blocks(text: str) -> list[Code]:
    """The code blocks of a Markdown text, in order, those in lists and quotes included."""
    from ds4chat.tui.transcript.markdown import parsed

    return [
        Code(
            token.info.split()[0] if token.info.split() else "", token.content.removesuffix("\n"), *token.map
        )
        for token in parsed(text)
        if token.type in ("fence", "code_block") and token.map
    ]


def pieces(turns: Sequence[Turn]) -> list[Piece]:
    """Every piece of a conversation, in order, a reply after its code blocks."""
    found: list[Piece] = []
    prompts = replies = 0
    for turn in turns:
        if isinstance(turn, UserTurn):
            prompts += 1
            found.append(Piece(turn, f"prompt {prompts}", turn.text))
            continue
        replies += 1
        if turn.answer:
            blocks = code_blocks(turn.answer)
            for index, code in enumerate(blocks):
                which = f"code block {index + 1} of {len(blocks)} in reply {replies}"
                what = f"{which} ({code.language})" if code.language else which
                found.append(Piece(turn, what, code.text, index))
            found.append(Piece(turn, f"reply {replies}", turn.answer))
    return found


def from_last(turns: Sequence[Turn], number: int, *, code: bool) -> Piece | None:
    """The ``number``-th reply or code block, counted from the last, which is 1; None where there is none. A
    reply and the one that continues it count as one."""
    found = pieces(turns)
    if code:
        found = [piece for piece in found if piece.code is not None]
    else:
        continued = {id(turn.before) for turn in turns if isinstance(turn, Reply)}
        found = [
            replace(piece, text=piece.turn.whole_answer)
            for piece in found
            if piece.code is None and isinstance(piece.turn, Reply) and id(piece.turn) not in continued
        ]
    return found[-number] if 0 < number <= len(found) else None
