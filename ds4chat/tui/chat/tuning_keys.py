"""The part of the chat screen that has to do with tuning: the keys, the panel, and what either changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.binding import Binding, BindingType
from textual.screen import Screen

from ds4chat.engine.events import MAX_DEPTH, Depth, Tuning
from ds4chat.settings.schema import Settings
from ds4chat.tui.chat.legend import LegendRow
from ds4chat.tui.controller import Chat
from ds4chat.tui.kit.charts import changes
from ds4chat.tui.messages import TuningChanged
from ds4chat.tui.panels import PanelDock
from ds4chat.tui.panels.tuning_steps import deeper, looser, paused, taken

if TYPE_CHECKING:
    from ds4chat.tui.app import ChatApp


class TuningScreen(Screen[None]):
    """A screen that holds the chat, its panels and the line in which a change is said."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f7", "depth(-1)", "Draft one token less", id="chat.shallower", priority=True),
        Binding("f8", "depth(1)", "Draft one token more", id="chat.deeper"),
        Binding("f9", "margin(1)", "Loosen the margin", id="chat.looser"),
        Binding("f10", "margin(-1)", "Tighten the margin", id="chat.tighter"),
        Binding("ctrl+t", "toggle_mtp", "Pause or resume speculation", id="chat.mtp"),
        Binding("ctrl+r", "undo_tuning", "Undo the last change of a setting", id="chat.undo_tuning"),
    ]

    def __init__(self, chat: Chat, settings: Settings) -> None:
        super().__init__()
        self.chat = chat
        self.dock_view = PanelDock(settings.panels, id="dock")
        self.legend_row = LegendRow(id="legend-row")
        self._resume_at: Depth = chat.tuning.depth or settings.mtp_draft

    @property
    def chat_app(self) -> ChatApp:
        """The app, as the type that it is."""
        return cast("ChatApp", self.app)

    def show_status(self) -> None:
        """Draw the status line."""
        raise NotImplementedError

    def show_legend(self) -> None:
        """Draw the legend."""
        raise NotImplementedError

    @on(TuningChanged)
    def tuning_changed(self, event: TuningChanged) -> None:
        """The panel changed it."""
        event.stop()
        self._take_tuning(event.tuning)

    def retune(self, tuning: Tuning) -> None:
        """A key or a command changed it."""
        if tuning != self.chat.tuning:
            self.dock_view.show_tuning(tuning)
            self._take_tuning(tuning)

    def _take_tuning(self, wanted: Tuning) -> None:
        before = self.chat.tuning
        server = self.chat.loaded.server if self.chat.loaded else None
        tuning, refused = taken(before, wanted, server)
        if refused:
            self.dock_view.show_tuning(tuning)
            self.notify(refused, severity="warning", markup=False)
            if tuning == before:
                return
        if before.depth != 0:
            self._resume_at = before.depth
        self.chat.retune(tuning)
        self.chat_app.keep_tuning(tuning)
        self.show_status()
        self.show_legend()
        if changed := changes(before, tuning):
            self.legend_row.say(changed)
        if tuning.depth != before.depth:
            self.say_depth_bound()

    def say_depth_bound(self) -> bool:
        """Say why drafts do not become as deep as is set; False where they do."""
        drafter, depth = self.chat.loaded.drafter if self.chat.loaded else None, self.chat.tuning.depth
        if drafter is None or not isinstance(depth, int) or depth <= drafter.max_depth:
            return False
        self.legend_row.say(f"at most {drafter.max_depth} tokens are drafted, {drafter.note}")
        return True

    def say_tuning(self) -> None:
        """Say what is in force."""
        tuning = self.chat.tuning
        self.legend_row.say(
            f"depth {tuning.depth}, margin {tuning.margin:.2f}, gate {tuning.gate:g}, {tuning.mode}"
        )

    def action_depth(self, by: int) -> None:
        """Draft more or fewer tokens a step."""
        drafter = self.chat.loaded.drafter if self.chat.loaded else None
        most = min(MAX_DEPTH, drafter.max_depth) if drafter else MAX_DEPTH
        end = "auto is the end: F7 goes back" if by > 0 else "depth 1 is the least: Ctrl+T pauses drafting"
        self._retune_or_say(deeper(self.chat.tuning, by, max(1, most)), end)

    def action_margin(self, by: int) -> None:
        """Accept less likely drafts too, or fewer of them."""
        end = "margin 0 is the loosest" if by > 0 else "margin 1.00 is exact, the tightest"
        self._retune_or_say(looser(self.chat.tuning, by), end)

    def action_toggle_mtp(self) -> None:
        """Pause speculation, or go on with it."""
        self.retune(paused(self.chat.tuning, self._resume_at))

    def action_undo_tuning(self) -> None:
        """Undo the last change of a setting."""
        if self.dock_view.tuning.can_undo:
            self.dock_view.tuning.action_undo()
        else:
            self.legend_row.say("no change of a setting to undo")

    def _retune_or_say(self, tuning: Tuning, end: str) -> None:
        """Change it, or say why the key does nothing: it is at the end of its range."""
        if tuning == self.chat.tuning:
            self.legend_row.say(end)
        else:
            self.retune(tuning)
