"""The bar for stepping through replies, prompts and code blocks, to copy or edit them."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from ds4chat.tui.kit.lines import LinesView


class PieceBar(LinesView, can_focus=True):
    """Shown while a piece of the conversation is picked. Posts the user's actions on it."""

    HELP_GROUP = "Picked reply or code block"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,ctrl+n", "step(-1)", "The one above", id="piece.above"),
        Binding("down", "step(1)", "The one below", id="piece.below"),
        Binding("left", "version(-1)", "The version before", id="piece.version_before"),
        Binding("right", "version(1)", "The version after", id="piece.version_after"),
        Binding("enter", "copy", "Copy it as it was written", id="piece.copy"),
        Binding("ctrl+e", "edit", "Edit the prompt in its place", id="piece.edit"),
    ]

    class Stepped(Message):
        """To the piece above (-1) or below (1)."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class Exchanged(Message):
        """To an older version (-1) or a newer one (1)."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class Copied(Message):
        """Copy the piece."""

    class Edited(Message):
        """Edit the prompt."""

    class Left(Message):
        """Something else got the focus."""

    def show(self, what: str, *, prompt: bool, versions: bool) -> None:
        """Say what is picked and what can be done with it."""
        keys = ["↑ ↓ move", *(["← → versions"] if versions else []), "Enter copies"]
        keys += [*(["Ctrl+E edits"] if prompt else []), "Esc leaves"]
        self.set_lines([(("   ", ""), (what, "strong"), (f"  {' · '.join(keys)}", "muted"))])

    def on_blur(self) -> None:
        self.post_message(self.Left())

    def action_step(self, by: int) -> None:
        """Go to another piece."""
        self.post_message(self.Stepped(by))

    def action_version(self, by: int) -> None:
        """Show another version."""
        self.post_message(self.Exchanged(by))

    def action_copy(self) -> None:
        """Copy the piece."""
        self.post_message(self.Copied())

    def action_edit(self) -> None:
        """Edit the prompt."""
        self.post_message(self.Edited())
