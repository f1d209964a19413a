"""The what-if panel: controls, and the figures of the recorded replies under other settings."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button

from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.analysis.times import StepTimes
from ds4chat.analysis.whatif import WhatIf, what_if
from ds4chat.settings.validate import SettingError
from ds4chat.tui.explorer.scenario import HANDLES, Handle, Scenario, recorded, result_lines
from ds4chat.tui.kit.lines import LinesView, style_sheet
from ds4chat.tui.kit.slider import Control

DEBOUNCE_SECONDS = 0.15
"""The figures follow the last change after this time, so that a key held down asks once."""


class WhatIfPanel(Vertical):
    """Shows the figures at another depth, margin or gate, for all rows: the walk needs whole steps, which a
    filter would cut."""

    DEFAULT_CSS = style_sheet(__package__, "whatif.tcss")
    HELP_GROUP = "What-if"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("backspace,delete", "as_recorded", "The value as recorded", id="explorer.as_recorded"),
    ]

    class Applied(Message):
        """The chat should use these settings."""

        def __init__(self, scenario: Scenario) -> None:
            super().__init__()
            self.scenario = scenario

    def __init__(self) -> None:
        super().__init__(id="what-if")
        self.scenario = Scenario()
        self._drag_from = self.scenario
        self.result: WhatIf | None = None
        """The figures of ``scenario``; None while they are worked out, or if nothing is asked."""
        self._rows = rows_from_steps([])
        self._times = StepTimes(self._rows)
        self._base = recorded(self._rows, self._times)
        self._controls = [
            Control(f"whatif-{name}", name, handle.option.help, editable=True)
            for name, handle in HANDLES.items()
        ]
        self._title = LinesView(id="whatif-title")
        self.figures = LinesView(id="whatif-figures")
        self._walk: asyncio.Future[WhatIf] | None = None
        """The last walk, which goes on in its thread when another scenario is asked about."""

    def compose(self) -> ComposeResult:
        yield self._title
        yield from self._controls
        yield self.figures
        with Horizontal(id="whatif-buttons"):
            yield Button("Apply to the chat", id="whatif-apply", compact=True, disabled=True)
            yield Button("As recorded", id="whatif-reset", compact=True, disabled=True)

    def on_mount(self) -> None:
        self._title.set_lines([(("What if", "strong"),)])
        self._draw()

    def show(self, rows: JudgedRows, times: StepTimes) -> None:
        """Ask about these rows from now on, with these step times."""
        self._rows, self._times = rows, times
        self._base = recorded(rows, times)
        self._title.set_lines([(("What if", "strong"), (f"  over all {rows.steps:,} steps", "muted"))])
        self._ask(self.scenario)

    # -- controls

    def on_control_stepped(self, event: Control.Stepped) -> None:
        event.stop()
        self._ask(_handle(event.source).moved(self.scenario, event.by, self._base))

    def on_control_dragged(self, event: Control.Dragged) -> None:
        """Move the value with the pointer."""
        event.stop()
        if event.begins:
            self._drag_from = self.scenario
        start = self._drag_from
        self._ask(_handle(event.source).moved(start, event.by, self._base) if event.by else start)

    def on_control_pressed(self, event: Control.Pressed) -> None:
        event.stop()
        event.source.focus()
        event.source.begin_edit()

    def on_control_typed(self, event: Control.Typed) -> None:
        event.stop()
        self._ask_typed(event.source, event.text)

    def _ask_typed(self, control: Control, text: str) -> bool:
        """Ask about the typed value; False after an error beside the control if it is not one."""
        try:
            scenario = _handle(control).typed(self.scenario, text)
        except SettingError as error:
            control.show_error(str(error))
            return False
        self._ask(scenario)
        return True

    def action_as_recorded(self) -> None:
        """Set the focused control back to the recorded value."""
        for control in self._controls:
            if control.has_focus:
                self._ask(_handle(control).put(self.scenario, None))

    @on(Button.Pressed, "#whatif-reset")
    def reset(self, event: Button.Pressed) -> None:
        """Set every value back to the recorded one."""
        event.stop()
        self._ask(Scenario())

    @on(Button.Pressed, "#whatif-apply")
    def apply_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.apply()

    def apply(self) -> None:
        """Apply the values to the chat, including one that is still being typed."""
        for control in self._controls:
            text = control.end_edit()
            if text is not None and not self._ask_typed(control, text):
                return
        self.post_message(self.Applied(self.scenario))

    # -- figures

    def _ask(self, scenario: Scenario) -> None:
        self.scenario, self.result = scenario, None
        self._draw()
        if scenario == Scenario():
            self.workers.cancel_group(self, "what-if")
        else:
            self._work_out()

    @work(exclusive=True, group="what-if", exit_on_error=False)
    async def _work_out(self) -> None:
        await asyncio.sleep(DEBOUNCE_SECONDS)
        if self._walk is not None:
            # One thread at a time, since Python's threads share one interpreter.
            await asyncio.wait([self._walk])
        values: dict[str, Any] = asdict(self.scenario)
        self._walk = asyncio.ensure_future(
            asyncio.to_thread(what_if, self._rows, **values, times=self._times)
        )
        try:
            self.result = await asyncio.shield(self._walk)
        except ValueError as error:
            self.figures.set_lines([((f"No figures: {error}", "bad"),)])
        else:
            self._draw()

    def _draw(self) -> None:
        for control in self._controls:
            handle = _handle(control)
            control.show(
                handle.text(self.scenario),
                handle.explained(self.scenario, self._base),
                handle.share(self.scenario, self._base),
            )
        self.figures.set_lines(result_lines(self._base, self.result, self.scenario, self._times))
        if self.is_mounted:
            for button in self.query(Button):
                button.disabled = self.scenario == Scenario()


def _handle(control: Control) -> Handle:
    return HANDLES[(control.name or "").removeprefix("whatif-")]
