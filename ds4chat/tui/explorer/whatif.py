"""The what-if panel: controls, and the figures of the recorded replies under other settings."""

from __future__ import annotations

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Button
from textual.worker import Worker, WorkerState

from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.analysis.times import StepTimes
from ds4chat.analysis.whatif import WhatIf, what_if
from ds4chat.settings.validate import SettingError
from ds4chat.tui.explorer.scenario import HANDLES, Handle, Recorded, Scenario, recorded, result_lines
from ds4chat.tui.kit.lines import LinesView, style_sheet
from ds4chat.tui.kit.slider import Control

DEBOUNCE_SECONDS = 0.15
"""A key held down asks once, when it is let go."""


class WhatIfPanel(Vertical):
    """Asks what the record tells of another depth, margin or gate; always over all rows, not the filtered
    ones, since a step is walked as a whole."""

    DEFAULT_CSS = style_sheet(__package__, "whatif.tcss")
    HELP_GROUP = "What-if"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("backspace,delete", "as_recorded", "The value as recorded", id="explorer.as_recorded"),
    ]

    class Applied(Message):
        """The user wants these settings in the chat."""

        def __init__(self, scenario: Scenario) -> None:
            super().__init__()
            self.scenario = scenario

    def __init__(self) -> None:
        super().__init__(id="what-if")
        self.scenario = Scenario()
        self._drag_from = self.scenario
        self.result: WhatIf | None = None
        """The figures of ``scenario``; None while they are worked out, or where nothing is asked."""
        self._rows: JudgedRows | None = None
        self._times = StepTimes(rows_from_steps([]))
        self._base = Recorded(1, 1.0, 0.0, None, None, None, None)
        self._handles: dict[str, Handle] = {handle.name: handle for handle in HANDLES}
        self._controls = {
            handle.name: Control(f"whatif-{handle.name}", handle.name, handle.option.help, editable=True)
            for handle in HANDLES
        }
        self._title = LinesView(id="whatif-title")
        self.figures = LinesView(id="whatif-figures")
        self._due: Timer | None = None
        self._asked: Scenario | None = None
        """What a thread works on now."""

    def compose(self) -> ComposeResult:
        yield self._title
        yield from self._controls.values()
        yield self.figures
        with Horizontal(id="whatif-buttons"):
            yield Button("Apply to the chat", id="whatif-apply", compact=True, disabled=True)
            yield Button("As recorded", id="whatif-reset", compact=True, disabled=True)

    def on_mount(self) -> None:
        self._title.set_lines([(("What if", "strong"),)])
        self._draw()

    @property
    def pending(self) -> bool:
        """A figure is still to come."""
        return self._due is not None or self._asked is not None

    def show(self, rows: JudgedRows, times: StepTimes) -> None:
        """Ask about these rows from now on, whose steps take these times."""
        self._rows, self._times = rows, times
        self._base = recorded(rows, times)
        self._title.set_lines([(("What if", "strong"), (f"  over all {rows.steps:,} steps", "muted"))])
        self._ask(self.scenario)

    # -- controls

    def on_control_stepped(self, event: Control.Stepped) -> None:
        event.stop()
        handle = self._handles[_name(event.source)]
        self._ask(handle.moved(self.scenario, event.by, self._base))

    def on_control_dragged(self, event: Control.Dragged) -> None:
        """The value follows the pointer; the figures are worked out when it rests."""
        event.stop()
        if event.begins:
            self._drag_from = self.scenario
        handle = self._handles[_name(event.source)]
        start = self._drag_from
        self._ask(handle.moved(start, event.by, self._base) if event.by else start)

    def on_control_pressed(self, event: Control.Pressed) -> None:
        event.stop()
        event.source.focus()
        event.source.begin_edit()

    def on_control_typed(self, event: Control.Typed) -> None:
        event.stop()
        self._take_typed(event.source, event.text)

    def _take_typed(self, control: Control, text: str) -> bool:
        """Ask with what was typed; False where it is no value, which was then said."""
        try:
            scenario = self._handles[_name(control)].typed(self.scenario, text)
        except SettingError as error:
            control.show_error(str(error))
            return False
        self._ask(scenario)
        return True

    def action_as_recorded(self) -> None:
        """The control in focus back to the recorded value."""
        for name, control in self._controls.items():
            if control.has_focus:
                self._ask(self._handles[name].put(self.scenario, None))

    @on(Button.Pressed, "#whatif-reset")
    def reset(self, event: Button.Pressed) -> None:
        """Every value as recorded."""
        event.stop()
        self._ask(Scenario())

    @on(Button.Pressed, "#whatif-apply")
    def apply_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.apply()

    def apply(self) -> None:
        """Hand the values to the chat, one that is still being typed too."""
        for control in self._controls.values():
            text = control.end_edit()
            if text is not None and not self._take_typed(control, text):
                return
        self.post_message(self.Applied(self.scenario))

    # -- figures

    def _ask(self, scenario: Scenario) -> None:
        self.scenario, self.result = scenario, None
        self._draw()
        if self._due is not None:
            self._due.stop()
            self._due = None
        if self._rows is not None and scenario != Scenario():
            self._due = self.set_timer(DEBOUNCE_SECONDS, self._start)

    def _start(self) -> None:
        """Work out what is asked now; one thread at a time, since Python's threads share one interpreter."""
        self._due = None
        if self._asked is None and self._rows is not None:
            self._asked = self.scenario
            self._walk(self._rows, self._times, self.scenario)

    @work(thread=True, exit_on_error=False, group="what-if")
    def _walk(self, rows: JudgedRows, times: StepTimes, scenario: Scenario) -> WhatIf:
        return what_if(rows, depth=scenario.depth, margin=scenario.margin, gate=scenario.gate, times=times)

    @on(Worker.StateChanged)
    def walked(self, event: Worker.StateChanged) -> None:
        """Show the figures, unless something else was asked meanwhile."""
        if event.worker.group != "what-if" or not event.worker.is_finished:
            return
        event.stop()
        asked, self._asked = self._asked, None
        if event.state is WorkerState.ERROR:
            self.figures.set_lines([((f"No figures: {event.worker.error}", "bad"),)])
        elif asked == self.scenario and event.worker.result is not None:
            self.result = event.worker.result
            self._draw()
        elif self._due is None and self.scenario != Scenario():
            self._start()

    def _draw(self) -> None:
        for name, control in self._controls.items():
            handle = self._handles[name]
            control.show(
                handle.text(self.scenario),
                handle.explained(self.scenario, self._base),
                handle.share(self.scenario, self._base),
            )
        self.figures.set_lines(result_lines(self._base, self.result, self.scenario, self._times))
        if self.is_mounted:
            for button in self.query(Button):
                button.disabled = self.scenario == Scenario()


def _name(control: Control) -> str:
    return (control.name or "").removeprefix("whatif-")
