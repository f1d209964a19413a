"""The bar for stepping through replies, prompts and code blocks, to copy or edit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from ds4chat.tui.conversation import Turn, UserTurn
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.transcript import Transcript
from ds4chat.tui.transcript.focus import focus_piece
from ds4chat.tui.transcript.pieces import Piece, pieces


class PieceBar(LinesView, can_focus=True):
    """Shown while a piece of the conversation is picked. Also posts Transcript.VersionWanted."""

    HELP_GROUP = "Picked reply or code block"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,ctrl+n", "step(-1)", "The one above", id="piece.above"),
        Binding("down", "step(1)", "The one below", id="piece.below"),
        Binding("left", "version(-1)", "The previous version", id="piece.version_before"),
        Binding("right", "version(1)", "The next version", id="piece.version_after"),
        Binding("enter", "copy", "Copy it as it was written", id="piece.copy"),
        Binding("ctrl+e", "edit", "Edit the prompt in its place", id="piece.edit"),
    ]

    @dataclass
    class Copied(Message):
        """The piece is to be copied."""

        piece: Piece

    @dataclass
    class Edited(Message):
        """The turn is to be edited."""

        turn: Turn

    def __init__(self, transcript: Transcript, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._transcript = transcript
        self._pieces: Sequence[Piece] = ()
        self._picked = 0
        """Index of the piece that is picked."""
        self.display = False

    def open(self, turns: Sequence[Turn]) -> bool:
        """Pick the newest piece of these turns; False if there is none."""
        self._pieces = pieces(turns)
        if self._pieces:
            self.display = True
            self.focus()
            self._pick(len(self._pieces) - 1)
        return bool(self._pieces)

    @property
    def _piece(self) -> Piece:
        return self._pieces[self._picked]

    def _pick(self, number: int) -> None:
        self._picked = min(max(0, number), len(self._pieces) - 1)
        piece = self._piece
        keys = ["↑ ↓ move", *(["← → versions"] if piece.turn.versions else []), "Enter copies"]
        keys += [*(["Ctrl+E edits"] if isinstance(piece.turn, UserTurn) else []), "Esc leaves"]
        self.set_lines([(("   ", ""), (piece.what, "strong"), (f"  {' · '.join(keys)}", "muted"))])
        focus_piece(self._transcript, piece)

    def on_blur(self) -> None:
        self.display = False
        self.screen.clear_selection()

    def action_step(self, by: int) -> None:
        self._pick(self._picked + by)

    def action_version(self, by: int) -> None:
        self.post_message(Transcript.VersionWanted(self._piece.turn, by))

    def action_copy(self) -> None:
        self.post_message(self.Copied(self._piece))

    def action_edit(self) -> None:
        self.post_message(self.Edited(self._piece.turn))
