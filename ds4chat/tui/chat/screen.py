"""The chat screen: draws the controller's state, and turns keys into calls of the controller."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, ClassVar, Protocol

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from ds4chat.engine.events import Tuning
from ds4chat.engine.machine import cores
from ds4chat.engine.stats import Stats
from ds4chat.settings.schema import Settings
from ds4chat.tui.chat.banner import Banner
from ds4chat.tui.chat.find_bar import FindBar
from ds4chat.tui.chat.first_run import FirstRun
from ds4chat.tui.chat.legend import LegendRow, legend_words
from ds4chat.tui.chat.outbox import Outbox
from ds4chat.tui.chat.piece_bar import PieceBar
from ds4chat.tui.chat.reading import LEAVES, ReadingScreen
from ds4chat.tui.chat.status_line import STATES, StatusLine
from ds4chat.tui.chat.token_card import TokenCard
from ds4chat.tui.chat.welcome import STARTERS, Welcome
from ds4chat.tui.command_table import is_command
from ds4chat.tui.controller import Chat, Frame
from ds4chat.tui.conversation import UserTurn
from ds4chat.tui.kit.charts import changes
from ds4chat.tui.kit.compositor import FrugalCompositor
from ds4chat.tui.kit.garbage import collect_if_due
from ds4chat.tui.kit.lines import style_sheet
from ds4chat.tui.kit.pace import Pace
from ds4chat.tui.kit.too_small import TooSmall, is_too_small
from ds4chat.tui.messages import PromptSubmitted, TokenPicked, TuningChanged
from ds4chat.tui.panels.dock import DRAW_SECONDS, PanelDock
from ds4chat.tui.panels.knobs import KNOBS, depth_bound, without_fixed
from ds4chat.tui.prompt import PromptArea
from ds4chat.tui.prompt.text import PromptText
from ds4chat.tui.transcript import Transcript
from ds4chat.tui.transcript.focus import show_turn

IDLE_SECONDS = 0.5
ENDS: dict[tuple[str, int], str] = {
    ("depth", -1): "depth 1 is the lowest: Ctrl+T pauses drafting, or resumes it",
    ("depth", 1): "auto is the last: F7 goes back",
    ("margin", -1): "margin 0 is the loosest",
    ("margin", 1): "margin 1.00 is exact, the tightest",
}
"""What to say when a key of a live setting is at the end of its range."""


class Host(Protocol):
    """What the chat screen and its commands call on the app, instead of posting a message, because keys typed
    ahead depend on the result."""

    @property
    def settings(self) -> Settings:
        """All settings as they are now."""

    @property
    def theme_names(self) -> list[str]:
        """Names of the themes."""

    def change(self, **changes: Any) -> None:
        """Change these fields of the settings, until the user saves them."""

    def load(self, **changes: Any) -> None:
        """Load models with these fields of the settings changed."""

    def run_command(self, text: str) -> bool:
        """Run a slash command; False if it failed, which was then reported."""

    def load_stopped(self) -> None:
        """A load was stopped or failed: restore the settings of the model that a reload loads."""


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
        Binding("f7", "step('depth', -1)", "Draft one token less", id="chat.shallower", priority=True),
        Binding("f8", "step('depth', 1)", "Draft one token more", id="chat.deeper"),
        Binding("f9", "step('margin', -1)", "Loosen the margin", id="chat.looser"),
        Binding("f10", "step('margin', 1)", "Tighten the margin", id="chat.tighter"),
        Binding("ctrl+t", "step('pause', 1)", "Pause or resume speculation", id="chat.mtp"),
        Binding("ctrl+r", "undo_tuning", "Undo the last change of a setting", id="chat.undo_tuning"),
        Binding("ctrl+o", "toggle_thinking", "Open or fold the thinking", id="chat.thinking"),
        Binding("ctrl+end", "follow", "Follow the end", id="chat.follow", priority=True),
    ]

    def __init__(self, chat: Chat, settings: Settings, host: Host) -> None:
        super().__init__()
        self._compositor = FrugalCompositor()
        self.chat = chat
        self._host = host
        self.dock_view = PanelDock(settings.panels, id="dock")
        self.dock_view.tuning.begin_with(chat.tuning)
        self.dock_view.tuning.show_presets(settings.presets)
        self.legend_row = LegendRow(id="legend-row")
        self.transcript = Transcript(markdown=settings.view == "markdown", id="transcript")
        self.prompt = PromptArea(chat.recorder.prompts, id="prompt-area")
        self.find_bar = FindBar(self.transcript, id="find")
        self.piece_bar = PieceBar(self.transcript, id="piece")
        self._status = StatusLine(id="status")
        self._card = TokenCard(id="token-card")
        self._banner = Banner(id="banner")
        self._welcome = Welcome(id="welcome")
        self._first_run = FirstRun(id="first-run")
        self._waiting: asyncio.TimerHandle | None = None
        """For the next frame."""
        self._pace = Pace()
        self._looks: set[str] = set()
        """Looks of tokens that are explained after one of them was seen."""
        self._status_at = 0.0
        self._outbox = Outbox(self, self._send, self.prompt.refuse)

    def compose(self) -> ComposeResult:
        with Horizontal(id="main"):
            with Vertical(id="left"):
                yield self._welcome
                yield self._first_run
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
        if draft := self.chat.recorder.draft:
            self.prompt.put_back([draft])
        self.prompt.themes = lambda: self._host.theme_names
        self.set_interval(IDLE_SECONDS, self._look)
        self.screen_layout_refresh_signal.subscribe(self, self._place_notices)
        self.show_welcome()
        self.draw_frame()

    @property
    def stats(self) -> Stats:
        """Counters of the running reply, or of the last one."""
        reply = self.chat.reply or self.chat.conversation.last_reply
        return reply.stats if reply is not None else Stats()

    # -- frames

    def _look(self) -> None:
        """Process events that come between replies: a notice, or the engine's death."""
        if not self.chat.busy:
            self.draw_frame()
            collect_if_due()

    def draw_frame(self) -> None:
        """Process the engine's events, and redraw what they changed."""
        frame = self.chat.frame()
        self._next_frame()
        if not frame.empty:
            self._draw(frame)
        self.dock_view.draw_if_due()

    def _draw(self, frame: Frame) -> None:
        self._draw_turns(frame)
        if frame.engine:
            self.dock_view.show_engine(self.chat.loaded, STATES[self.chat.state][0][2:])
            self._banner.show_engine(self.chat)
            self.show_queue()
            self.show_welcome()
            if self.chat.working and self.legend_row.said == LEAVES:
                self.legend_row.unsay()
        if frame.failed:
            self._host.load_stopped()
        for replayed in frame.replayed:
            result = f"{replayed.detail} {replayed.plain_speed}".rstrip()
            self.transcript.add_note(result, "warning" if replayed.equal is False else "info")
        for notice in frame.notices:
            if notice.level == "info":
                self.notify(notice.message)
            else:
                self.transcript.add_note(notice.message, notice.level)
        if frame.replayed or frame.notices:
            self.show_welcome()
        if frame.engine or monotonic() - self._status_at >= DRAW_SECONDS:
            self.show_status()

    def _next_frame(self) -> None:
        """Draw again soon while events are expected."""
        if self._waiting is None and self.chat.busy:
            loaded = self.chat.loaded
            self._pace.crowded = loaded is None or loaded.threads >= cores()
            # set_timer makes two callables for every call and inspects their signatures: a tenth of a frame's
            # time.
            due = events.Callback(callback=self._frame_due)
            loop = asyncio.get_running_loop()
            self._waiting = loop.call_later(self._pace.wait(), self.post_message, due)

    def _frame_due(self) -> None:
        self._waiting = None
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
        if frame.grown is not None:
            self.transcript.grow(frame.grown)
        if not frame.looks <= self._looks:
            self._looks |= frame.looks
            self.show_legend()
        self.dock_view.show_frame(frame, self.chat.session)
        if frame.ended is not None:
            self.reply_ended(frame.ended)

    def show_status(self) -> None:
        self._status_at = monotonic()
        self._status.show_chat(self.chat, self.stats)
        self.prompt.set_class(self.chat.tuning.mode == "approximate", "-approximate")

    def show_queue(self) -> None:
        """Draw the queued prompts."""
        what = "the reply ends" if self.chat.reply else "the check ends"
        what = what if self.chat.working else "a model is loaded"
        self.prompt.show_queue(tuple(self.chat.queue), f"sent when {what}")

    def show_conversation(self) -> None:
        """Redraw the conversation: it was replaced, or turns were removed."""
        self._card.hide()
        running = self.chat.reply
        self.transcript.show_turns(turn for turn in self.chat.conversation.turns if turn is not running)
        if running is None:
            self.dock_view.show_reply(self.chat.conversation.last_reply, self.chat.session)
        self.show_welcome()
        self.show_status()

    def show_welcome(self) -> None:
        """Show the welcome while there is nothing else to show."""
        first_run = self._first_run.wanted_by(self._host.settings, self.chat.state)
        self._first_run.display = self.transcript.is_empty and first_run
        self._welcome.display = self.transcript.is_empty and not first_run
        self._welcome.offer_starters(self._host.settings.demo)
        self.transcript.display = not self.transcript.is_empty
        self.show_legend()

    def action_try_starter(self, number: int) -> None:
        """Send one of the welcome's prompts as if it had been typed."""
        self.post_message(PromptSubmitted(STARTERS[number - 1][0]))

    def show_legend(self) -> None:
        self.legend_row.legend.show(
            legend_words(
                two_colours=self.transcript.two_colours,
                approximate="approximate" in self._looks or self.chat.tuning.mode == "approximate",
                unknown="unknown" in self._looks,
                markdown=self.transcript.markdown,
            )
        )

    # -- layout

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < 14 or event.size.width < 40, "-small")
        self.set_class(event.size.height < 10, "-tiny")
        self.set_class(is_too_small(event.size), "-too-small")
        self.set_class(not self.dock_view.place(event.size.width), "-narrow")

    def _place_notices(self, _: object) -> None:
        """Put notices above the legend, or above the prompt where that is hidden: they cover nothing that is
        typed or chosen from."""
        lowest = self.legend_row if self.legend_row.display else self.prompt
        # There is none before the first layout.
        for rack in self.query_children("ToastRack"):
            rack.styles.margin = (0, 0, self.size.height - lowest.region.y, 0)

    def action_toggle_panels(self) -> None:
        self.dock_view.toggle()
        if self.dock_view.covers:
            # Focus the uppermost visible title, from which Down and Tab move on.
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
        self.prompt.remember(text)
        self._outbox.put(text, self.leave_editing())

    def run_command(self, text: str, *, typed: bool = False) -> None:
        """Run a slash command. A typed one that fails is put back into the prompt."""
        if typed:
            self.prompt.remember(text)
        if not self._host.run_command(text) and typed:
            self.prompt.put_back([text])
        self.draw_frame()
        self.show_status()

    def _send(self, text: str, place: UserTurn | None) -> None:
        if place is not None and not self.cut_before(place):
            self.prompt.put_back([text])
            return
        self.chat.submit(text.strip("\n"))
        if place is not None:
            self.show_conversation()
        self.show_queue()
        self.show_status()
        self.draw_frame()

    @on(PromptText.QueueRecalled)
    def recall_queued(self, event: PromptText.QueueRecalled) -> None:
        """Bring the newest queued prompt back for editing."""
        event.stop()
        if self.chat.queue:
            self.prompt.put_back([self.chat.queue.pop()])
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
        """While nothing has the focus, keys and pastes go to the prompt, even before it is on the screen."""
        if isinstance(event, events.Key | events.Paste) and self.focused is None:
            if self.is_mounted:
                self.set_focus(self.prompt.text_field)
            self.prompt.text_field._forward_event(event)
        else:
            super()._forward_event(event)

    def on_key(self, event: events.Key) -> None:
        """Typed text goes to the prompt wherever the focus is, except for keys of the focused widget and of
        those around it."""
        active = self.active_bindings.get(event.key)
        taken = active is not None and active.node not in (self, self.app)
        if event.is_printable and not taken:
            event.stop()
            self.set_focus(self.prompt.text_field)
            self.prompt.text_field._forward_event(event.copy())

    def on_paste(self, event: events.Paste) -> None:
        """Pasted text goes to the prompt, too."""
        self.prompt.text_field.paste(event.text)

    # -- the engine

    def say_error(self, text: str) -> None:
        """Add sentences about failures to the transcript."""
        self.transcript.add_note(text, "error")
        self.show_welcome()

    def stop_reply(self) -> bool:
        """Stop the running reply, check or load; prompts queued behind a reply return to the prompt. False if
        nothing runs."""
        loading, replying = self.chat.state == "loading", self.chat.reply is not None
        if not self.chat.stop():
            return False
        if loading:
            self._host.load_stopped()
            self.show_status()
        elif replying and self.chat.queue:
            self.prompt.put_back(tuple(self.chat.queue))
            self.chat.queue.clear()
        self.draw_frame()
        self.show_queue()
        return True

    @on(PromptText.SentBlank)
    def use_first_offer(self, event: PromptText.SentBlank) -> None:
        """Enter on the card shown without a model loads the demo."""
        event.stop()
        if self._first_run.display:
            self.run_command("/model demo")

    # -- tuning

    @on(TuningChanged)
    def tuning_changed(self, event: TuningChanged) -> None:
        """The panel changed the tuning."""
        event.stop()
        self._apply_tuning(event.tuning)

    def retune(self, tuning: Tuning) -> None:
        """Use this tuning, which a key or a command set."""
        if tuning != self.chat.tuning:
            self.dock_view.tuning.show_tuning(tuning)
            self._apply_tuning(tuning)

    def _apply_tuning(self, wanted: Tuning) -> None:
        before = self.chat.tuning
        tuning, refused = without_fixed(before, wanted, self.chat.loaded.server if self.chat.loaded else None)
        if refused:
            self.dock_view.tuning.show_tuning(tuning)
            self.notify(refused, severity="warning")
            if tuning == before:
                return
        self.chat.retune(tuning)
        self.show_status()
        self.show_legend()
        if changed := changes(before, tuning):
            self.legend_row.say(changed)
        if tuning.depth != before.depth and (bound := depth_bound(tuning, self.chat.loaded)):
            self.legend_row.say(bound)

    def action_step(self, name: str, by: int) -> None:
        """Step a live setting, or say that it is at the end of its range."""
        tuning = KNOBS[name].step(self.chat.tuning, by, self.dock_view.tuning.memory)
        if tuning == self.chat.tuning:
            self.legend_row.say(ENDS[name, by])
        else:
            self.retune(tuning)

    def action_undo_tuning(self) -> None:
        if self.dock_view.tuning.can_undo:
            self.dock_view.tuning.action_undo()
        else:
            self.legend_row.say("no change of a setting to undo")

    # -- views

    def action_toggle_view(self) -> None:
        """Finished replies as tokens or as Markdown."""
        self.transcript.show_markdown(not self.transcript.markdown)
        view = "markdown" if self.transcript.markdown else "tokens"
        self._host.change(view=view)
        self.legend_row.unsay()
        self.show_legend()

    def action_toggle_colours(self) -> None:
        """All four origins, or accepted drafts against the rest."""
        self.transcript.show_two_colours(not self.transcript.two_colours)
        self.show_legend()
        if self.transcript.markdown:
            self.legend_row.say("Markdown has no origins: F3 shows them")

    def action_toggle_thinking(self) -> None:
        if not self.transcript.toggle_thinking():
            self.notify("No reply has thinking.")

    def action_follow(self) -> None:
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
        """Show the token's row in the panel, and the token in the text."""
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

    def show_message(self, message: int, at: int) -> None:
        """Scroll to a stored message and mark it, in a reply at character ``at`` of its text."""
        for turn in self.chat.conversation.turns:
            if turn.key == message:
                show_turn(self.transcript, turn, at)

    @on(Transcript.CursorLeft)
    def cursor_left(self, event: Transcript.CursorLeft) -> None:
        event.stop()
        self._card.hide()

    # -- leaving

    def action_back(self) -> None:
        """Close the innermost thing that is open; else stop the reply."""
        if self.prompt.close_menu() or self.leave_reading():
            return
        if self.transcript.cursor is not None:
            self._leave_cursor()
        elif self.dock_view.covers:
            self.action_toggle_panels()
        elif not self.stop_reply():
            self.clear_selection()
            self.prompt.text_field.focus()
