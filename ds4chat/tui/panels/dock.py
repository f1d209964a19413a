"""The dock: the four panels on top of each other, fed with events and drawn a few times per second."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ds4chat.engine.events import Loaded, Step
from ds4chat.engine.stats import Stats
from ds4chat.settings.schema import PANELS
from ds4chat.tui.controller import Frame
from ds4chat.tui.conversation import Reply
from ds4chat.tui.kit.lines import style_sheet
from ds4chat.tui.messages import SettingsChanged
from ds4chat.tui.panels.acceptance import AcceptancePanel
from ds4chat.tui.panels.confidence import ConfidencePanel
from ds4chat.tui.panels.panel import Panel, PanelTitle
from ds4chat.tui.panels.timings import TimingsPanel
from ds4chat.tui.panels.tuning import TuningPanel

WIDE = 120
"""Columns of the screen from which the panels are beside the transcript; below that they cover it."""
ROOMY_HEIGHT = 60
"""Rows from which all four panels have space between them."""
DRAW_SECONDS = 0.6
"""Least time between two drawings of a reply's figures: those that change faster cannot be read."""


def open_panels(setting: str) -> list[str]:
    """The names in the setting ``panels`` that are panels, in its order, each once."""
    return [name for name in dict.fromkeys(setting.split()) if name in PANELS]


class PanelDock(VerticalScroll):
    """Acceptance, Timings, Confidence and Tuning.

    ``draw_if_due``, which every frame of the screen calls, draws what arrived. Posts TuningChanged,
    TokenPicked and TuningPanel.PresetSaved, and SettingsChanged to the app.
    """

    DEFAULT_CSS = style_sheet(__package__, "dock.tcss")

    def __init__(self, panels: str = " ".join(PANELS), *, id: str | None = None) -> None:
        """``panels`` is the value of the setting: which are open, and the order."""
        super().__init__(id=id, can_focus=False)
        self.acceptance = AcceptancePanel()
        self.timings = TimingsPanel()
        self.confidence = ConfidencePanel()
        self.tuning = TuningPanel()
        every = {panel.NAME: panel for panel in (self.acceptance, self.timings, self.confidence, self.tuning)}
        opened = open_panels(panels)
        self._panels: list[Panel] = [every[name] for name in dict.fromkeys([*opened, *PANELS])]
        """From top to bottom."""
        for panel in self._panels:
            panel.fold(panel.NAME not in opened)
        self._wide = True
        self._open_beside = True
        self._open_over = False
        self._drawn_at = 0.0
        self._outdated = False

    def compose(self) -> ComposeResult:
        yield from self._panels

    @property
    def first_title(self) -> PanelTitle:
        """The title of the uppermost panel."""
        return self._panels[0].title_bar

    # -- place

    def place(self, width: int) -> bool:
        """Move beside the transcript on a screen of this width, or over it; whether it is beside."""
        self._wide = width >= WIDE
        self.display = self._open_beside if self._wide else self._open_over
        return self._wide

    def toggle(self) -> None:
        """Open or close the whole dock."""
        if self._wide:
            self._open_beside = self.display = not self._open_beside
        else:
            self._open_over = self.display = not self._open_over

    @property
    def covers(self) -> bool:
        """The panels are open and over the transcript."""
        return self._open_over and not self._wide

    # -- what arrives

    def show_engine(self, loaded: Loaded | None, state: str) -> None:
        """What is loaded (None: nothing), and the engine's state in words."""
        for panel in self._panels:
            panel.set_engine(loaded, state)
        self._outdated = True

    def show_step_batch(self, steps: Sequence[Step], stats: Stats, session: Stats) -> None:
        """Add steps since the last call, with the reply's and the session's totals, which include these
        steps."""
        for panel in self._panels:
            panel.add_steps(steps, stats, session)
        self._outdated = True

    def show_frame(self, frame: Frame, session: Stats) -> None:
        """Show a frame's events of the running reply; ``session``: the totals including it."""
        if frame.revised is not None:
            self.show_reply(frame.revised, session)
        if frame.steps and frame.grown is not None:
            self.timings.prefill = frame.grown.prefill
            self.show_step_batch(frame.steps, frame.grown.stats, session)
        if frame.ended is not None and frame.ended.ended is not None:
            self.show_end(frame.ended.stats)

    def show_end(self, stats: Stats) -> None:
        """A reply is over; its totals now have the prefill and the time to the first token."""
        for panel in self._panels:
            panel.end(stats)
        self._outdated = True

    def reset_reply(self) -> None:
        """A new reply begins: counters and curves are reset, the confidence log continues."""
        for panel in self._panels:
            panel.reset()
        self._outdated = True

    def show_reply(self, reply: Reply | None, session: Stats) -> None:
        """The figures of the reply that another conversation ends with, or nothing; the confidence log goes
        on with its rows if it has none of them."""
        self.reset_reply()
        if reply is None:
            return
        for panel in self._panels:
            if panel is not self.confidence or not self.confidence.has(reply.number):
                panel.add_steps(reply.steps, reply.stats, session)
        if reply.ended is not None:
            self.show_end(reply.stats)

    # -- folding

    @property
    def open(self) -> str:
        """The value of the setting ``panels``: the open ones from top to bottom."""
        return " ".join(panel.NAME for panel in self._panels if not panel.folded)

    def on_panel_fold_changed(self, event: Panel.FoldChanged) -> None:
        event.stop()
        self._draw()
        self.app.post_message(SettingsChanged(panels=self.open))

    # -- drawing

    @property
    def drawing_due(self) -> bool:
        """Something arrived that is not drawn yet."""
        return self._outdated and self.is_mounted and self.is_on_screen

    def draw_if_due(self) -> None:
        """Draw what arrived, if the last drawing is long enough ago."""
        if self.drawing_due and monotonic() - self._drawn_at >= DRAW_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._outdated = False
        self._drawn_at = monotonic()
        self.acceptance.depth = self.tuning.tuning.depth
        for panel in self._panels:
            panel.draw()

    def on_mount(self) -> None:
        self._draw()

    def on_show(self) -> None:
        """Draw what arrived while the dock was hidden."""
        self._draw()

    def on_resize(self) -> None:
        """On a low screen, use less space between panels and lower charts."""
        compact = self.size.height < ROOMY_HEIGHT
        if compact != self.has_class("-compact"):
            self.set_class(compact, "-compact")
            for panel in self._panels:
                panel.compact = compact
            self._draw()
