"""The chat screen: it draws what the controller says, and turns keys into what the controller does."""

from __future__ import annotations

import os
from dataclasses import replace
from time import monotonic
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer

from ds4chat.engine.events import Load
from ds4chat.engine.stats import Stats
from ds4chat.settings.schema import Settings
from ds4chat.tui.chat.banner import Banner
from ds4chat.tui.chat.command_table import is_command
from ds4chat.tui.chat.find_bar import FindBar
from ds4chat.tui.chat.legend import FollowChip
from ds4chat.tui.chat.outbox import Outbox
from ds4chat.tui.chat.pace import APART, Pace
from ds4chat.tui.chat.piece_bar import PieceBar
from ds4chat.tui.chat.reading import ReadingScreen
from ds4chat.tui.chat.slash_commands import ChatCommands
from ds4chat.tui.chat.status_line import STATES, Status, StatusLine
from ds4chat.tui.chat.token_card import TokenCard
from ds4chat.tui.chat.welcome import Welcome
from ds4chat.tui.controller import Chat, Frame
from ds4chat.tui.kit.lines import style_sheet
from ds4chat.tui.kit.slider import Control
from ds4chat.tui.kit.too_small import TooSmall, is_too_small
from ds4chat.tui.messages import PromptSubmitted, TokenPicked
from ds4chat.tui.panels.panel import PanelTitle
from ds4chat.tui.panels.tuning_steps import with_model
from ds4chat.tui.prompt import PromptArea
from ds4chat.tui.prompt.text import PromptText
from ds4chat.tui.transcript import Transcript

IDLE_SECONDS = 0.5
STATUS_SECONDS = 0.2
"""Least time between two status lines of a running reply: faster figures cannot be read."""
WIDE = 120
"""Columns from which the panels stand beside the transcript."""
HINT = "F1 help"


class ChatScreen(ReadingScreen):
    """Transcript, prompt, status line, and the panels beside or over them."""

    DEFAULT_CSS = style_sheet(__package__, "screen.tcss")
    AUTO_FOCUS = "#prompt"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape",
            "back",
            "Close what is open; stop a reply, check or load",
            id="chat.back",
            priority=True,
        ),
        Binding("f2", "toggle_panels", "Panels", id="chat.panels"),
        Binding("f3", "toggle_view", "Tokens or Markdown", id="chat.view"),
        Binding("f4", "toggle_cursor", "Token cursor", id="chat.cursor"),
        Binding(
            "f6", "toggle_colours", "All origins, or accepted and fallback", id="chat.colours", priority=True
        ),
        Binding("ctrl+o", "toggle_thinking", "Open or fold the thinking", id="chat.thinking"),
        Binding("ctrl+end", "follow", "Follow the end", id="chat.follow", priority=True),
    ]

    def __init__(self, chat: Chat, settings: Settings) -> None:
        super().__init__(chat, settings)
        self.transcript = Transcript(id="transcript")
        self.prompt = PromptArea(chat.recorder.prompts(), id="prompt-area")
        self.find_bar = FindBar(id="find")
        self.piece_bar = PieceBar(id="piece")
        self.piece_bar.display = False
        self._status = StatusLine(id="status")
        self._card = TokenCard(id="token-card")
        self._banner = Banner(id="banner")
        self._welcome = Welcome(id="welcome")
        self._commands = ChatCommands(self)
        self._timer: Timer | None = None
        self._pace = Pace()
        self._panels_wide = True
        self._panels_narrow = False
        self._markdown = settings.view == "markdown"
        self._status_at = 0.0
        self._outbox = Outbox(self)
        self._settings_of: dict[Load, Settings] = {}
        """The settings that each load was asked for with."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="main"):
            with Vertical(id="left"):
                yield self._welcome
                yield self.transcript
                yield self._card
                yield self._banner
                yield self.find_bar
                yield self.piece_bar
                yield self.legend_row
                yield self.prompt
            yield self.dock_view
        yield self._status
        yield TooSmall(id="too-small")

    def on_mount(self) -> None:
        self.transcript.show_markdown(self._markdown)
        self.dock_view.begin_with(self.chat.tuning)
        self.dock_view.show_presets(self.chat_app.settings.presets)
        if draft := self.chat.recorder.draft():
            self.prompt.put_back([draft])
        self.prompt.themes = lambda: self.chat_app.theme_names
        self.set_interval(IDLE_SECONDS, self._look)
        self.show_welcome()
        self.wake()

    @property
    def stats(self) -> Stats:
        """Counters of the running reply, or of the last one."""
        reply = self.chat.reply or self.chat.conversation.last_reply
        return reply.stats if reply is not None else Stats()

    # -- frames

    def wake(self) -> None:
        """Look for events at once, and go on looking while any are to be expected."""
        self.draw_frame()

    def _look(self) -> None:
        """Between replies: a notice, or the engine's death."""
        if not self.chat.busy:
            self.draw_frame()

    def draw_frame(self) -> None:
        """Take in what the engine sent, and draw what that changed."""
        frame = self.chat.frame()
        self._next_frame()
        if frame.empty:
            return
        self._draw_turns(frame)
        self._draw_engine(frame)
        for replayed in frame.replayed:
            self.transcript.add_note(replayed.detail, "warning" if replayed.equal is False else "info")
        for notice in frame.notices:
            if notice.level == "info":
                self.notify(notice.message, markup=False)
            else:
                self.transcript.add_note(notice.message, notice.level)
        if frame.replayed or frame.notices:
            self.show_welcome()
        if frame.engine:
            self.show_status()
        elif monotonic() - self._status_at >= STATUS_SECONDS:
            self._status_at = monotonic()
            self.set_timer(APART, self.show_status)

    def _next_frame(self) -> None:
        """Look again soon while events are to be expected."""
        if self._timer is None and self.chat.busy:
            loaded = self.chat.loaded
            self._pace.crowded = loaded is None or loaded.threads >= (os.cpu_count() or 1)
            self._timer = self.set_timer(self._pace.wait(), self._frame_due)

    def _frame_due(self) -> None:
        self._timer = None
        self.draw_frame()

    def _draw_turns(self, frame: Frame) -> None:
        for reply in frame.started:
            turns = self.chat.conversation.turns
            asked = turns[next(i for i, turn in enumerate(turns) if turn is reply) - 1]
            if not self.transcript.shows(asked):
                self.transcript.add_turn(asked)
            self.transcript.add_turn(reply)
            self.dock_view.reset_reply()
            self.show_welcome()
            self.show_queue()
        if frame.revised is not None:
            self.transcript.recolour(frame.revised)
            self.dock_view.show_reply(frame.revised, self.chat.session)
        if frame.grown is not None:
            self.transcript.grow(frame.grown)
        if frame.steps and frame.grown is not None:
            self.dock_view.show_prefill(frame.grown.prefill)
            self.dock_view.show_step_batch(frame.steps, frame.grown.stats, self.chat.session)
            if self.legend_row.legend.learn(frame.looks):
                self.show_legend()
        if frame.ended is not None and frame.ended.ended is not None:
            self.dock_view.show_end(frame.ended.ended, frame.ended.stats)
        if frame.ended is not None:
            self.reply_ended(frame.ended)

    def _draw_engine(self, frame: Frame) -> None:
        if not frame.engine:
            return
        chat = self.chat
        self.dock_view.show_engine(chat.loaded, STATES[chat.state][0][2:])
        if chat.state in ("died", "failed"):
            model = "the model again" if chat.state == "died" else chat.model_name
            keys = f"F5 loads {model} · /model chooses another · /log shows the log"
            self._banner.show(chat.trouble, keys)
        elif chat.state == "none":
            self._banner.show(
                "No model is loaded.", "/model chooses one · ds4chat --demo has one", error=False
            )
        elif chat.warning:
            self._banner.show(chat.warning)
        else:
            self._banner.clear()
        self.show_queue()

    def show_status(self) -> None:
        """Draw the status line."""
        chat = self.chat
        self._status_at = monotonic()
        model, loaded, tuning = chat.model_name, chat.loaded, chat.tuning
        self._status.show(
            Status(chat.state, chat.progress, model, loaded, tuning, self.stats, len(chat.queue))
        )
        self.prompt.set_class(chat.tuning.mode == "approximate", "-approximate")

    def show_queue(self) -> None:
        """Draw the prompts that wait."""
        what = "the reply ends" if self.chat.reply else "the check ends"
        what = what if self.chat.working else "a model is loaded"
        self.prompt.show_queue(tuple(self.chat.queue), f"sent when {what}")

    def show_conversation(self) -> None:
        """Draw the conversation anew: it is another one, or turns were taken off."""
        self._card.hide()
        running = self.chat.reply
        self.transcript.show_turns(turn for turn in self.chat.conversation.turns if turn is not running)
        if running is None:
            self.dock_view.show_reply(self.chat.conversation.last_reply, self.chat.session)
        self.show_welcome()
        self.show_status()

    def show_welcome(self) -> None:
        """A few words while there is nothing else to show."""
        self._welcome.display = self.transcript.is_empty
        self.transcript.display = not self.transcript.is_empty
        self.show_legend()

    def show_legend(self) -> None:
        legend, shown = self.legend_row.legend, self.transcript
        lossy = self.chat.tuning.mode == "approximate"
        legend.show(two_colours=shown.two_colours, approximate=lossy, markdown=shown.markdown, hint=HINT)

    # -- layout

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < 14 or event.size.width < 40, "-small")
        self.set_class(event.size.height < 10, "-tiny")
        self.set_class(is_too_small(event.size), "-too-small")
        self._place_panels(event.size.width)

    def _place_panels(self, width: int) -> None:
        wide = width >= WIDE
        self.set_class(not wide, "-narrow")
        self.dock_view.display = self._panels_wide if wide else self._panels_narrow

    def action_toggle_panels(self) -> None:
        """Open or close the panels."""
        if wide := self.size.width >= WIDE:
            self._panels_wide = not self._panels_wide
        else:
            self._panels_narrow = not self._panels_narrow
        self._place_panels(self.size.width)
        if not wide and self._panels_narrow:
            # What is in sight takes the keys: from the uppermost title on, down and Tab walk.
            self.dock_view.scroll_home(animate=False)
            self.set_focus(self.dock_view.first_title)
        elif self.focused is None or self.dock_view in self.focused.ancestors:
            self.prompt.text_field.focus()

    # -- prompts and commands

    @on(PromptSubmitted)
    def prompt_submitted(self, event: PromptSubmitted) -> None:
        """Run a command, or send the prompt."""
        event.stop()
        if is_command(text := event.text):
            self.run_command(text, typed=True)
            return
        self.prompt.taken(text)
        self._outbox.put(text, self.leave_editing())

    def run_command(self, text: str, *, typed: bool = False) -> None:
        """Run a slash command. One that was typed and cannot be done stands in the prompt again."""
        if typed:
            self.prompt.taken(text)
        if not self._commands.run(text) and typed:
            self.prompt.put_back([text])
        self.wake()
        self.show_status()

    def begin_command(self, name: str) -> None:
        """Begin a slash command in the prompt, for the user to end; a draft there goes into the history."""
        self.prompt.taken(self.prompt.text_field.text)
        self.prompt.text_field.put(f"/{name} ")
        self.prompt.text_field.focus()

    @on(PromptArea.QueueRecalled)
    def recall_queued(self, event: PromptArea.QueueRecalled) -> None:
        """Bring the newest queued prompt back for editing."""
        event.stop()
        text = self.chat.unqueue()
        if text is not None:
            self.prompt.put_back([text])
        self.show_queue()

    @on(PromptText.ScrollRequested)
    def scroll_transcript(self, event: PromptText.ScrollRequested) -> None:
        """Page keys of the prompt scroll the transcript; End at the end of a line follows it."""
        event.stop()
        if event.by:
            self.transcript.action_page(event.by)
        else:
            self.transcript.action_follow()

    def _forward_event(self, event: events.Event) -> None:
        """While nothing has the focus, keys and pastes are the prompt's, also before it is on the screen."""
        if isinstance(event, events.Key | events.Paste) and self.focused is None:
            if self.is_mounted:
                self.set_focus(self.prompt.text_field)
            self.prompt.text_field._forward_event(event)
        else:
            super()._forward_event(event)

    def on_key(self, event: events.Key) -> None:
        """What is typed reaches the prompt wherever the focus is, except a key that a control there takes."""
        taken = isinstance(self.focused, Control | PanelTitle) and event.key in self.active_bindings
        if event.is_printable and not taken:
            event.stop()
            self.set_focus(self.prompt.text_field)
            self.prompt.text_field._forward_event(event.copy())

    def on_paste(self, event: events.Paste) -> None:
        """What is pasted does, too."""
        self.prompt.text_field.paste(event.text)

    # -- the engine

    def load(self, settings: Settings) -> None:
        """Load what the settings say."""
        from ds4chat.engine.from_settings import load_of
        from ds4chat.models.errors import ModelFileError

        try:
            command = load_of(settings, self.chat_app.chosen_sampling)
        except ModelFileError as error:
            self.transcript.add_note(str(error), "error")
            self.show_welcome()
            return
        self.chat_app.settings = self._settings_of[command] = settings
        self.chat.load(command)
        self.wake()

    def stop_reply(self) -> bool:
        """Stop the running reply, a check or a load; prompts that wait for a reply's end come back into the
        prompt. False when none runs."""
        loading, replying = self.chat.state == "loading", self.chat.reply is not None
        if not self.chat.stop():
            return False
        if loading:
            # The settings are again those of the model that a reload loads.
            if before := self.chat.load_command and self._settings_of.get(self.chat.load_command):
                self.chat_app.settings = with_model(self.chat_app.settings, before)
            self.show_status()
        elif replying and self.chat.queue:
            self.prompt.put_back(tuple(self.chat.queue))
            self.chat.queue.clear()
        self.wake()
        self.show_queue()
        return True

    def set_thinking(self, on: bool) -> None:
        """Let the model think from the next reply on, or not."""
        self.chat.think = on
        self.chat_app.settings = replace(self.chat_app.settings, think=on)
        self.notify("The model thinks first, if it can." if on else "The model answers at once.")

    # -- views

    def action_toggle_view(self) -> None:
        """Finished replies as tokens or as Markdown."""
        self.transcript.show_markdown(not self.transcript.markdown)
        view = "markdown" if self.transcript.markdown else "tokens"
        self.chat_app.settings = replace(self.chat_app.settings, view=view)
        self.show_legend()

    def action_toggle_colours(self) -> None:
        """All four origins, or accepted drafts against the rest."""
        self.transcript.show_two_colours(not self.transcript.two_colours)
        self.show_legend()

    def action_toggle_thinking(self) -> None:
        """Open all thinking, or fold it."""
        if not self.transcript.toggle_thinking():
            self.notify("No reply has thinking.")

    def action_follow(self) -> None:
        """Follow the end of the text."""
        self.transcript.action_follow()

    @on(FollowChip.Pressed)
    def chip_pressed(self, event: FollowChip.Pressed) -> None:
        """The chip does what it says."""
        event.stop()
        self.transcript.action_follow()

    @on(Transcript.FollowChanged)
    def follow_changed(self, event: Transcript.FollowChanged) -> None:
        """The chip shows while the text does not follow."""
        event.stop()
        self.legend_row.chip.display = not event.following

    # -- token cursor

    def action_toggle_cursor(self) -> None:
        """Enter the transcript with the token cursor, or leave it."""
        if self.transcript.cursor is not None:
            self._leave_cursor()
            return
        if self.transcript.markdown:
            self.action_toggle_view()
        if self.transcript.enter_cursor():
            self.transcript.focus()
            self.legend_row.say("← ↑ ↓ → move · Esc leaves")
        else:
            self.notify("No token is in sight: scroll to a reply, or send a prompt.")

    def _leave_cursor(self) -> None:
        self.transcript.leave_cursor()
        self.prompt.text_field.focus()

    @on(TokenPicked)
    def token_picked(self, event: TokenPicked) -> None:
        """Show the token's row, and where it stands in the text."""
        event.stop()
        reply = self.chat.conversation.reply(event.reply)
        token = reply.token_of(event.step, event.token) if reply is not None else None
        if reply is None or token is None:
            self.notify("That token is no longer in this conversation.")
            return
        if self.transcript.markdown:
            self.action_toggle_view()
        self.transcript.pick(reply, token)
        self._card.show(reply, token)

    @on(Transcript.CursorLeft)
    def cursor_left(self, event: Transcript.CursorLeft) -> None:
        """Nothing is picked any more."""
        event.stop()
        self._card.hide()

    # -- leaving

    def action_back(self) -> None:
        """Close what is open, from the innermost on; then stop the reply."""
        if self.prompt.close_menu() or self.leave_reading():
            return
        if self.transcript.cursor is not None:
            self._leave_cursor()
        elif self._panels_narrow and self.size.width < WIDE:
            self.action_toggle_panels()
        elif not self.stop_reply():
            self.clear_selection()
            self.prompt.text_field.focus()
