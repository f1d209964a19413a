"""The Tuning panel: the settings that may change while a reply runs, each with a line that explains its
value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from ds4chat.engine.events import MAX_DEPTH, Loaded, ServerInfo, Tuning
from ds4chat.engine.from_settings import changed, preset_of
from ds4chat.settings.validate import SettingError
from ds4chat.tui.kit.charts import changes
from ds4chat.tui.kit.lines import LinesView, style_sheet
from ds4chat.tui.kit.slider import Control
from ds4chat.tui.messages import TuningChanged
from ds4chat.tui.panels.knobs import KNOBS, Memory, fixed_by
from ds4chat.tui.panels.panel import Panel, PanelTitle

UNDO_DEPTH = 50


class UndoLine(LinesView):
    """Shows what undo would revert; a click does it."""

    class Pressed(Message):
        """The line was clicked."""

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Pressed())


class TuningPanel(Panel):
    """Controls for a Tuning. Every change is posted as TuningChanged and applies from the next step on."""

    DEFAULT_CSS = style_sheet(__package__, "tuning.tcss")
    NAME = "tuning"
    TITLE = "Tuning"
    HELP_GROUP = "Tuning"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("u,ctrl+z", "undo", "Undo the last change", id="tuning.undo"),
        Binding("s", "save_preset", "Save as a preset", id="tuning.save_preset"),
    ]

    class PresetSaved(Message):
        """The user named the current tuning."""

        def __init__(self, name: str, values: dict[str, Any]) -> None:
            super().__init__()
            self.name = name
            self.values = values
            """Option keys and values, as a preset's table has them."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Letters are keys of the controls only: typed on the panel's title, they go to the prompt."""
        return action not in ("undo", "save_preset") or not isinstance(self.app.focused, PanelTitle)

    def __init__(self) -> None:
        super().__init__()
        self._tuning = Tuning()
        self.memory = Memory()
        self._undo: list[Tuning] = []
        self._drag_from = self._tuning
        self._presets: dict[str, Mapping[str, Any]] = {}
        self._preset = ""
        self._server: ServerInfo | None = None
        self._controls = {
            knob.name: Control(
                knob.name,
                knob.label,
                knob.option.help,
                editable=knob.share is not None,
                words=("auto",) if knob.option.kind == "depth" else (),
            )
            for knob in KNOBS.values()
        }
        self._preset_control = Control(
            "preset", "preset", "A named set of these values. s saves the current ones.", editable=False
        )
        self._undo_line = UndoLine(id="tuning-undo")

    def compose_body(self) -> ComposeResult:
        yield from self._controls.values()
        yield self._preset_control
        yield self._undo_line

    def on_mount(self) -> None:
        self._draw_controls()

    @property
    def tuning(self) -> Tuning:
        """What the controls show."""
        return self._tuning

    def unpaused(self, tuning: Tuning) -> Tuning:
        """The tuning without a pause: with the depth before it."""
        return KNOBS["pause"].step(tuning, 1, self.memory) if tuning.depth == 0 else tuning

    def show_tuning(self, tuning: Tuning) -> None:
        """Show a tuning that was changed elsewhere; undo can revert that too."""
        if tuning != self._tuning:
            self._remember()
            self._show(tuning)

    def begin_with(self, tuning: Tuning) -> None:
        """Show the tuning of the settings; there is nothing before it to undo."""
        self._undo.clear()
        self._show(tuning)

    def show_presets(self, presets: Mapping[str, Mapping[str, Any]]) -> None:
        """Offer these presets: tables of option keys by name."""
        self._presets = dict(sorted(presets.items()))
        if self._preset not in self._presets:
            self._preset = next(iter(self._presets), "")
        self._draw_controls()

    def set_engine(self, loaded: Loaded | None, state: str) -> None:
        """The depth goes as far as the drafter drafts, and a server fixes some of the values."""
        drafter = loaded.drafter if loaded else None
        deepest = max(1, min(MAX_DEPTH, drafter.max_depth)) if drafter else MAX_DEPTH
        server = loaded.server if loaded else None
        if (deepest, server) != (self.memory.deepest, self._server):
            self.memory.deepest, self._server = deepest, server
            self._draw_controls()

    # -- what the user does

    def on_control_stepped(self, event: Control.Stepped) -> None:
        event.stop()
        if event.source is self._preset_control:
            self._choose_preset(event.by)
        else:
            knob = KNOBS[event.source.name or ""]
            self._change(knob.step(self._tuning, event.by, self.memory), joins=event.joins)

    def on_control_dragged(self, event: Control.Dragged) -> None:
        """A drag applies immediately, and undo reverts it as a whole. One that returns to its start is
        dropped."""
        event.stop()
        if event.begins:
            self._drag_from = self._tuning
        knob = KNOBS[event.source.name or ""]
        tuning = knob.step(self._drag_from, event.by, self.memory) if event.by else self._drag_from
        if tuning == self._drag_from and tuning != self._tuning:
            del self._undo[-1:]
            self._set(tuning)
        else:
            self._change(tuning, joins=self._tuning != self._drag_from)

    def on_control_pressed(self, event: Control.Pressed) -> None:
        event.stop()
        control = event.source
        if control is self._preset_control:
            self._apply_preset()
        elif KNOBS[control.name or ""].share is None:
            control.action_step(1)
        else:
            control.focus()
            control.begin_edit()

    def on_control_typed(self, event: Control.Typed) -> None:
        event.stop()
        if event.source is self._preset_control:
            self._save_preset(event.text.strip())
            return
        try:
            option = KNOBS[event.source.name or ""].option
            tuning = changed(self._tuning, {option.key: event.text.strip()})
        except SettingError as error:
            event.source.show_error(str(error))
            return
        if tuning == self._tuning:
            self._draw_controls()
        self._change(tuning)

    def on_undo_line_pressed(self, event: UndoLine.Pressed) -> None:
        event.stop()
        self.action_undo()

    @property
    def can_undo(self) -> bool:
        """There is a change to undo."""
        return bool(self._undo)

    def action_undo(self) -> None:
        """Undo the last change."""
        if self._undo:
            self._set(self._undo.pop())

    def action_save_preset(self) -> None:
        """Ask for a name and save the current values under it."""
        self._preset_control.focus()
        self._preset_control.begin_edit(self._preset)

    # -- state

    def _remember(self) -> None:
        self._undo.append(self._tuning)
        del self._undo[:-UNDO_DEPTH]

    def _change(self, tuning: Tuning, joins: bool = False) -> None:
        """Set this. ``joins``: undo reverts it together with the change before it."""
        if tuning != self._tuning:
            if not (joins and self._undo):
                self._remember()
            self._set(tuning)

    def _set(self, tuning: Tuning) -> None:
        self._show(tuning)
        self.post_message(TuningChanged(tuning))

    def _show(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self.memory.note(tuning)
        self._draw_controls()

    def _choose_preset(self, by: int) -> None:
        names = list(self._presets)
        if names:
            self._preset = names[(names.index(self._preset) + by) % len(names)]
            self._draw_controls()

    def _apply_preset(self) -> None:
        preset = self._presets.get(self._preset)
        if preset is None:
            self._preset_control.show_error("none yet: s saves one")
            return
        try:
            self._change(changed(self._tuning, preset))
        except SettingError as error:
            self._preset_control.show_error(str(error))

    def _save_preset(self, name: str) -> None:
        if not name:
            self._preset_control.show_error("a preset needs a name")
            return
        values = preset_of(self._tuning)
        self._preset = name
        self.show_presets({**self._presets, name: values})
        self.post_message(self.PresetSaved(name, values))

    def _draw_controls(self) -> None:
        for name, control in self._controls.items():
            knob = KNOBS[name]
            share = knob.share(self._tuning, self.memory) if knob.share is not None else None
            field = knob.option.tuning
            is_default = getattr(self._tuning, field) == getattr(Tuning(), field)
            if field in fixed_by(self._server):
                control.show("–", "the server's own")
            elif self._server and field not in self._server.chosen and is_default:
                control.show("–", "the server's default")
            else:
                control.show(knob.shown(self._tuning), knob.says(self._tuning), share)
        says = "Enter applies, s saves" if self._presets else "s saves these values"
        self._preset_control.show(self._preset or "–", says)
        if self._undo:
            last = changes(self._tuning, self._undo[-1]) or "no change"
            self._undo_line.set_lines([(("u ", "mark"), (f"undo: {last}", "muted"))])
        else:
            when = "step" if self._server is None else "reply"
            self._undo_line.set_lines([((f"changes apply from the next {when}", "muted"),)])
        mode = self._tuning.mode
        lossy = f"approx ≥{self._tuning.margin:.2f}" if mode == "approximate" else mode
        depth = "paused" if self._tuning.depth == 0 else f"depth {self._tuning.depth}"
        self.title_bar.show(headline=f"{depth} · {lossy}" if self._server is None else self._server.kind)
        self.set_class(mode == "approximate", "-lossy")
