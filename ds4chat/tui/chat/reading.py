"""The part of the chat screen for existing turns: versions, edits, continuing, finding, copying."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import on, work
from textual.app import SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.screen import Screen

from ds4chat.store import StoreError
from ds4chat.text import counted
from ds4chat.tui.chat.find_bar import FindBar
from ds4chat.tui.chat.legend import LegendRow
from ds4chat.tui.chat.piece_bar import PieceBar
from ds4chat.tui.chat.status_line import nearly_full
from ds4chat.tui.controller import Chat
from ds4chat.tui.conversation import Reply, Turn, UserTurn
from ds4chat.tui.prompt import PromptArea
from ds4chat.tui.transcript import Transcript
from ds4chat.tui.transcript.focus import bring_turn, turns_in_sight
from ds4chat.tui.transcript.pieces import Piece

LEAVES = "Ctrl+C again leaves"
"""Ctrl+C leaves the chat for as long as this is said."""
BUSY: dict[str, str] = {
    "loading": "A model is loading: Esc stops that.",
    "none": "No model is loaded: /model chooses one.",
    **dict.fromkeys(("saving", "reading", "writing"), "A reply is running: Esc stops it."),
    "checking": "A reply is being checked: Esc stops that.",
    "comparing": "A comparison is running: Esc stops it.",
    "stopping": "The reply is being stopped.",
    "died": "The engine stopped: F5 loads the model again.",
    "failed": "No model is loaded: F5 loads it again, and /model chooses another.",
}


class ReadingScreen(Screen[None]):
    """A screen that holds the transcript and the prompt."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "Copy, stop, or quit", id="chat.interrupt", priority=True),
        Binding("f5", "retry", "Answer again, or load the model again", id="chat.retry"),
        Binding("shift+f5,f17", "other_version", "The other reply to the prompt", id="chat.other_version"),
        Binding("ctrl+g", "go_on", "Go on with a reply that was cut or stopped", id="chat.go_on"),
        Binding("shift+f2,f14", "editor", "Write the prompt in $EDITOR", id="chat.editor"),
        Binding("ctrl+n", "pick", "Step through replies, code blocks and prompts", id="chat.pick"),
        Binding("ctrl+f", "find", "Find in the conversation", id="chat.find", priority=True),
    ]
    chat: Chat
    legend_row: LegendRow
    transcript: Transcript
    prompt: PromptArea
    find_bar: FindBar
    piece_bar: PieceBar
    _editing: UserTurn | None = None
    """The earlier prompt that the text in the prompt will replace."""
    _context_warned = False
    """The user was told that the context is nearly full, and it still is."""

    def draw_frame(self) -> None:
        """Process the engine's events, and draw them."""
        raise NotImplementedError

    def stop_reply(self) -> bool:
        """Stop the running reply, check or load; False if there is none."""
        raise NotImplementedError

    def show_conversation(self) -> None:
        """Redraw the conversation."""
        raise NotImplementedError

    def busy_with(self) -> str:
        """Why the conversation cannot be changed now, as a sentence; empty if it can."""
        return BUSY[self.chat.state] if self.chat.working else ""

    # -- answering again and continuing

    def action_retry(self) -> None:
        """Answer the last prompt again; without a loaded model, load it again."""
        chat = self.chat
        if chat.state in ("died", "failed"):
            chat.reload()
        elif chat.retry():
            self.show_conversation()
            if chat.conversation.key is not None:
                self.legend_row.say("the other reply is kept: Shift+F5 shows it")
        else:
            self.notify(BUSY.get(chat.state, "There is nothing to answer yet."))
        self.draw_frame()

    def action_go_on(self) -> None:
        """Continue the newest reply, which was cut or stopped."""
        if not self.chat.go_on():
            self.notify(
                BUSY.get(self.chat.state, "There is no answer that was cut or stopped: F5 answers again.")
            )
        self.draw_frame()

    def reply_ended(self, reply: Reply) -> None:
        """Say what can be done with the reply, and look up its versions."""
        server = self.chat.loaded.server if self.chat.loaded else None
        if reply.can_go_on and reply.state in ("stopped", "limited") and (server is None or server.goes_on):
            self.legend_row.say("Ctrl+G or /continue continues it")
        self.count_versions()
        self._warn_of_context(reply)

    def _warn_of_context(self, reply: Reply) -> None:
        """Warn once when the context is nearly full, and say what can be done."""
        loaded = self.chat.loaded
        full = nearly_full(loaded, reply.stats)
        if loaded is not None and full and not self._context_warned:
            used, room = reply.stats.context_used, loaded.n_ctx
            self.transcript.add_note(
                f"The context is nearly full: {used:,} of {room:,} tokens. /ctx {2 * room} loads the model "
                "again with more; /drop N leaves out the oldest N prompts and their replies.",
                "warning",
            )
        self._context_warned = full

    # -- versions

    @work(exclusive=True, group="versions", exit_on_error=False)
    async def count_versions(self) -> None:
        """Ask the store which turns have other versions, and show how many."""
        conversation = self.chat.conversation
        try:
            found = await asyncio.to_thread(self.chat.recorder.versions, conversation)
        except StoreError:
            return  # the recorder reports a failing store itself
        changed = False
        for turn in conversation.turns:
            versions = found.get(turn.key or 0, ())
            changed |= turn.versions != versions
            turn.versions = versions
        if changed and conversation is self.chat.conversation:
            self.transcript.measure()

    def action_other_version(self) -> None:
        """Show the previous version of a turn that has several; after the oldest, the newest."""
        turn = self._with_versions()
        if turn is not None:
            self.show_version(turn, -1 if turn.versions[:1] != (turn.key,) else len(turn.versions) - 1)

    def action_version(self, by: int) -> None:
        """Show the previous or the next version."""
        turn = self._with_versions()
        if turn is not None:
            self.show_version(turn, by)

    def _with_versions(self) -> Turn | None:
        """The lowest visible turn with other versions, or else the newest."""
        turns = [*self.chat.conversation.turns, *turns_in_sight(self.transcript)]
        found = next((turn for turn in reversed(turns) if turn.versions), None)
        if found is None:
            none = (
                "There is no other version: F5 answers again, /edit asks another prompt, beside the old one."
            )
            self.notify(self.busy_with() or none)
        return found

    @on(Transcript.VersionWanted)
    def version_clicked(self, event: Transcript.VersionWanted) -> None:
        event.stop()
        self.show_version(event.turn, event.by)

    def show_version(self, turn: Turn, by: int) -> None:
        """Go to the path through the version ``by`` places after the turn's."""
        if busy := self.busy_with():
            self.notify(busy)
            return
        at = turn.versions.index(turn.key) + by if turn.key in turn.versions else -1
        if not 0 <= at < len(turn.versions):
            self.legend_row.say("that is the oldest version" if by < 0 else "that is the newest version")
            return
        self._switch_to(turn.versions[at])

    @work(exclusive=True, group="versions", exit_on_error=False)
    async def _switch_to(self, key: int) -> None:
        """Show the path through the version with this number, unless a reply is started in the meantime."""
        chat = self.chat
        try:
            found = await asyncio.to_thread(chat.recorder.switch, chat.conversation, key, chat.next_number)
        except StoreError as error:
            self.notify(str(error), severity="error")
            return
        if chat.resume(found):
            self.leave_editing()
            self.show_conversation()
            self.piece_bar.display = False
            turn = next((turn for turn in found.turns if turn.key == key), None)
            if turn is not None:
                self.call_after_refresh(bring_turn, self.transcript, turn)

    # -- editing

    def action_editor(self) -> None:
        """Edit the prompt in the user's own editor, while the chat is suspended."""
        from ds4chat.tui.chat.editor import EditorError, edited

        try:
            with self.app.suspend():
                text = edited(self.prompt.text)
        except (EditorError, SuspendNotSupported) as error:
            self.notify(str(error) or "This terminal cannot be given to an editor.", severity="warning")
            return
        self.prompt.text_field.put(text)
        self.prompt.text_field.focus()

    def action_edit(self, back: int = 1) -> None:
        """Edit an earlier prompt: the ``back``-th from the last."""
        prompts = [turn for turn in self.chat.conversation.turns if isinstance(turn, UserTurn)]
        if busy := self.busy_with():
            self.notify(busy)
        elif not prompts:
            self.notify("There is no prompt to edit yet.")
        elif not 0 < back <= len(prompts):
            self.notify(f"This conversation has only {counted(len(prompts), 'prompt')}: 1 is the last.")
        else:
            self.edit(prompts[-back])

    def edit(self, turn: UserTurn) -> None:
        """Put an earlier prompt's text into the prompt, to be sent instead of it."""
        self.leave_editing()
        field = self.prompt.text_field
        self.prompt.remember(self.prompt.text)
        field.put(turn.text)
        field.border_title = "an earlier prompt · Enter sends it instead · Esc leaves it"
        field.focus()
        self._editing = turn
        bring_turn(self.transcript, turn)

    def leave_editing(self) -> UserTurn | None:
        """Stop editing; the turn that was being edited."""
        turn, self._editing = self._editing, None
        self.prompt.text_field.border_title = None
        return turn

    def cut_before(self, turn: UserTurn) -> bool:
        """Remove a prompt and what follows it from the path shown, to replace it; False, after saying why, if
        that is impossible."""
        chat = self.chat
        if busy := self.busy_with():
            self.notify(busy)
        elif not any(shown is turn for shown in chat.conversation.turns):
            self.notify("The prompt that you edit is no longer in this conversation.")
        else:
            chat.conversation.cut_before(turn)
            chat.recorder.path_changed(chat.conversation)
            return True
        return False

    # -- copying and finding

    def action_pick(self) -> None:
        """Pick the newest piece of the conversation and step from there."""
        if not self.piece_bar.open(self.chat.conversation.turns):
            self.notify("There is nothing to copy yet.")

    @on(PieceBar.Copied)
    def piece_copied(self, event: PieceBar.Copied) -> None:
        event.stop()
        self.copy_piece(event.piece)
        self.leave_reading()

    @on(PieceBar.Edited)
    def piece_edited(self, event: PieceBar.Edited) -> None:
        event.stop()
        if not isinstance(event.turn, UserTurn):
            self.notify("Only prompts can be edited.")
        elif busy := self.busy_with():
            self.notify(busy)
        else:
            self.edit(event.turn)

    def copy_piece(self, piece: Piece) -> None:
        """Copy a piece as it was written."""
        self.app.copy_to_clipboard(piece.text)
        self.notify(f"Copied {piece.what}.")

    def action_find(self, words: str = "") -> None:
        self.find_bar.open(words)

    # -- leaving

    def leave_reading(self) -> bool:
        """Leave editing, picking or finding; False if none is active."""
        if self.find_bar.display or self.piece_bar.display:
            # The match stays selected, so that it can be copied.
            self.find_bar.display = self.piece_bar.display = False
            self.prompt.text_field.focus()
            return True
        if self._editing is None:
            return False
        self.leave_editing()
        self.prompt.remember(self.prompt.text)
        self.prompt.text_field.put("")
        return True

    def action_interrupt(self) -> None:
        """Copy a selection; else stop the reply; else say that another press quits, or quit if that is
        said."""
        selected = self.prompt.text_field.selected_text or self.get_selected_text()
        if selected:
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
            self.notify("Copied.")
        elif self.chat.working:
            self.stop_reply()
        elif self.legend_row.said == LEAVES:
            self.app.exit()
        else:
            self.legend_row.say(LEAVES)
