"""One control of the Tuning panel: a label, a value between − and +, and a line that says what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from ds4chat.tui.kit.drawn import DrawnLines

LABEL_WIDTH = 7
VALUE_WIDTH = 8
MINUS_AT = LABEL_WIDTH
VALUE_AT = MINUS_AT + 2
PLUS_AT = VALUE_AT + VALUE_WIDTH
SAYS_AT = PLUS_AT + 3
NUMBER = frozenset("0123456789.-")
"""Characters of numbers."""


def filled_cells(share: float) -> int:
    """Filled cells of a value field for this share of its range: none only at the low end, all only at the
    high end, so that a margin of 0.99 does not look like the exact mode's 1."""
    if not 0 < share < 1:
        return VALUE_WIDTH if share >= 1 else 0
    return min(VALUE_WIDTH - 1, max(1, round(VALUE_WIDTH * share)))


class Control(DrawnLines, can_focus=True):
    """Shows a value and reports what the user does; it does not change the value itself.

    Left and right, − and +, or a click on those signs step; page keys take five steps; what is typed is sent
    with Enter and dropped with Esc. A number is a slider too: its field is filled up to the value's place in
    its range, and changes by dragging, one cell a step, or by the wheel. The wheel only counts after the
    pointer was moved onto the field, so that scrolling past it changes nothing.
    """

    STYLES = "control"
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "control--label",
        "control--button",
        "control--value",
        "control--filled",
        "control--says",
        "control--error",
        "control--edit",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,minus", "step(-1)", "Less", id="tuning.less"),
        Binding("right,plus,equals_sign", "step(1)", "More", id="tuning.more"),
        Binding("pagedown", "step(-5)", "Much less", show=False, id="tuning.much_less"),
        Binding("pageup", "step(5)", "Much more", show=False, id="tuning.much_more"),
        Binding("enter,space", "press", "Change or apply", show=False, id="tuning.press"),
        Binding("up", "app.focus_previous", "Control above", show=False, id="tuning.up"),
        Binding("down", "app.focus_next", "Control below", show=False, id="tuning.down"),
    ]
    HELP_GROUP = "Tuning"

    @dataclass
    class Stepped(Message):
        """The value should move by ``by`` steps."""

        source: Control
        by: int
        joins: bool = False
        """It continues the previous step of the wheel."""

    @dataclass
    class Dragged(Message):
        """The value should be ``by`` steps from where it was when the drag began."""

        source: Control
        by: int
        begins: bool
        """The first step of its drag."""

    @dataclass
    class Pressed(Message):
        """Enter, or a click on the value."""

        source: Control

    @dataclass
    class Typed(Message):
        """A value was typed and sent."""

        source: Control
        text: str

    _edit: reactive[str | None] = reactive(None)
    """The text that is being typed."""

    def __init__(self, name: str, label: str, help: str, editable: bool, words: tuple[str, ...] = ()) -> None:
        """``editable``: the value is a number, which can be typed, dragged or changed with the wheel, and
        ``words`` can be typed instead of one."""
        super().__init__(id=f"control-{name}", name=name)
        self._label = label
        self._editable = editable
        self._words = words
        self.value = ""
        """The value as shown."""
        self.filled = 0
        """Cells of the value field that are filled, of VALUE_WIDTH."""
        self._says = ""
        self._error = ""
        self._grip: int | None = None
        """Screen column at which the drag began; None without a drag."""
        self._moved: int | None = None
        """Steps of the drag so far; None before its first."""
        self._wheel_ready = False
        """The pointer was moved onto the value, so that the wheel changes it."""
        self._wheel_turned = False
        self._help = f"{help} Drag the value or turn the wheel on it." if editable else help
        self.tooltip = self._help

    @property
    def says(self) -> str:
        """The line beside the value: its meaning, or what was wrong with the last typed one."""
        return self._error or self._says

    @property
    def editing(self) -> bool:
        """A value is being typed."""
        return self._edit is not None

    def show(self, value: str, says: str, share: float | None = None) -> None:
        """Show a value, its meaning, and its place in its range (0..1), instead of any error."""
        filled = filled_cells(share) if share is not None else 0
        if (value, says, filled, "") != (self.value, self._says, self.filled, self._error):
            self.value, self._says, self.filled, self._error = value, says, filled, ""
            self.tooltip = self._help
            self.refresh()

    def show_error(self, sentence: str) -> None:
        """Say what was wrong with the typed value, until one is shown; a notice has the whole sentence."""
        self._error = sentence
        self.tooltip = Content(sentence)
        self.notify(sentence, severity="warning", markup=False)
        self.refresh()

    def begin_edit(self, text: str = "") -> None:
        """Begin typing, with this text."""
        self._edit = text

    def end_edit(self) -> str | None:
        """End typing; the typed text, or None if nothing was being typed."""
        text, self._edit = self._edit, None
        return text

    # -- keys and mouse

    def action_step(self, by: int) -> None:
        """Move the value."""
        self.post_message(self.Stepped(self, by))

    def action_press(self) -> None:
        """Press the control, as Enter does."""
        self.post_message(self.Pressed(self))

    def on_key(self, event: events.Key) -> None:
        if self._edit is None:
            if not self._may_become_value(event.character) or event.key == "minus":
                return
            self._edit = event.character
        elif event.key == "enter":
            self.post_message(self.Typed(self, self.end_edit() or ""))
        elif event.key == "escape":
            self._edit = None
        elif event.key == "backspace":
            self._edit = self._edit[:-1]
        elif event.is_printable and event.character:
            text = self._edit + event.character
            if self._editable and not self._may_become_value(text):
                return
            self._edit = text
        elif event.key in ("tab", "shift+tab", "up", "down"):
            self._edit = None
            return
        event.stop()
        event.prevent_default()

    def _may_become_value(self, text: str | None) -> bool:
        """A value that can be typed here may begin with this. Other keys are passed on."""
        if not text or not self._editable:
            return False
        return NUMBER.issuperset(text) or any(word.startswith(text) for word in self._words)

    def on_blur(self) -> None:
        self._edit = None

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        event.stop()
        if self._moved is not None:
            self._moved = None
            return
        if MINUS_AT <= offset.x < VALUE_AT:
            self.action_step(-1)
        elif PLUS_AT <= offset.x < PLUS_AT + 2:
            self.action_step(1)
        elif VALUE_AT <= offset.x < PLUS_AT:
            self.action_press()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._moved = None
        if self._editable and self._edit is None and self._on_value(event):
            self._grip = event.screen_x
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._grip is None:
            self._wheel_ready = self._on_value(event)
            return
        by = event.screen_x - self._grip
        if by != (self._moved or 0):
            self.post_message(self.Dragged(self, by, begins=self._moved is None))
            self._moved = by

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()

    def on_mouse_release(self, event: events.MouseRelease) -> None:
        """The drag is over, wherever the pointer is."""
        self._grip = None

    def on_leave(self, event: events.Leave) -> None:
        self._wheel_ready = self._wheel_turned = False

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._turn(event, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._turn(event, -1)

    def _turn(self, event: events.MouseEvent, by: int) -> None:
        if not self._editable or not self._wheel_ready or not self._on_value(event):
            return  # the dock scrolls
        event.stop()
        event.prevent_default()
        self._edit = None
        self.post_message(self.Stepped(self, by, joins=self._wheel_turned))
        self._wheel_turned = True

    def _on_value(self, event: events.MouseEvent) -> bool:
        offset = event.get_content_offset(self)
        return offset is not None and VALUE_AT <= offset.x < PLUS_AT

    # -- drawing

    @property
    def allow_select(self) -> bool:
        """A selection may extend over it, but not begin here, where dragging changes the value."""
        return super().allow_select and bool(self.screen._selecting)

    def lines_drawn(self) -> range:
        return range(1)

    def draw_line(self, y: int) -> Strip:
        if self._edit is None:
            value, look, filled = self.value[-VALUE_WIDTH:].center(VALUE_WIDTH), "value", self.filled
            says, says_look = self.says, "error" if self._error else "says"
        else:
            value = set_cell_size(f"{self._edit[-(VALUE_WIDTH - 1) :]}▏", VALUE_WIDTH)
            look, filled, says, says_look = "edit", 0, "Enter sets it, Esc drops", "says"
        room = self.size.width - SAYS_AT
        if cell_len(says) > room:
            says = f"{set_cell_size(says, max(0, room - 1)).rstrip()}…"
        spans = [
            (set_cell_size(self._label, LABEL_WIDTH), "label"),
            ("− ", "button"),
            (value[:filled], "filled"),
            (value[filled:], look),
            (" +", "button"),
            (" ", ""),
            (says, says_look),
        ]
        return self.strip_of(spans, self.size.width)
