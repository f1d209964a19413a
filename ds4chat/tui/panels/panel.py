"""A panel: a title with a headline figure, and a body that folds away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ds4chat.engine.events import Loaded, Step
from ds4chat.engine.stats import Stats
from ds4chat.tui.glossary import explain
from ds4chat.tui.kit.drawn import DrawnLines
from ds4chat.tui.kit.lines import LinesView, style_sheet
from ds4chat.tui.kit.slider import Control
from ds4chat.tui.messages import CommandRequested


class PanelTitle(DrawnLines, can_focus=True):
    """One line: a fold mark, the title, and at the right the figure that stays visible when the panel is
    folded."""

    STYLES = "panel-title"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"panel-title--headline"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "fold", "Fold or open", id="panel.fold"),
        Binding("up", "app.focus_previous", "Previous panel or control", show=False, id="panel.up"),
        Binding("down", "app.focus_next", "Next panel or control", show=False, id="panel.down"),
    ]

    class Pressed(Message):
        """The title was clicked or its key pressed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self._headline = ""
        self._open = True

    @property
    def headline(self) -> str:
        """The figure at the right."""
        return self._headline

    def show(self, *, headline: str | None = None, is_open: bool | None = None) -> None:
        """Set the given values; redraw only if they changed."""
        before = (self._headline, self._open)
        self._headline = self._headline if headline is None else headline
        self._open = self._open if is_open is None else is_open
        if before != (self._headline, self._open):
            self.refresh()

    def action_fold(self) -> None:
        """Fold or open the panel."""
        self.post_message(self.Pressed())

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Pressed())

    def lines_drawn(self) -> range:
        return range(1)

    def draw_line(self, y: int) -> Strip:
        width = self.size.width
        left = f"{'▾' if self._open else '▸'} {self._text}"
        room = width - cell_len(left) - 1
        right = self._headline if cell_len(self._headline) <= room else ""
        gap = " " * max(0, width - cell_len(left) - cell_len(right))
        return self.strip_of([(left, ""), (gap, ""), (right, "headline")], width)


class Panel(Vertical):
    """Base of the panels. A subclass composes its body in ``compose_body``."""

    DEFAULT_CSS = style_sheet(__package__, "panel.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "explain", "What the words mean", id="panel.explain")
    ]
    NAME: ClassVar[str]
    """Its name in the setting ``panels``."""
    TITLE: ClassVar[str]

    class FoldChanged(Message):
        """The user folded or opened this panel."""

        def __init__(self, panel: Panel) -> None:
            super().__init__()
            self.panel = panel

    def __init__(self) -> None:
        super().__init__(id=f"panel-{self.NAME}")
        self.title_bar = PanelTitle(self.TITLE)
        self.body = Vertical(classes="panel-body")
        self.compact = False
        """On a low screen charts are lower and there are no empty lines. The dock sets it."""

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show the meaning of the word under the pointer. Controls explain themselves."""
        widget, region = self.screen.get_widget_at(event.screen_x, event.screen_y)
        text = self.words_at(widget, event.screen_y - region.y)
        if text:
            widget.tooltip = explain(self.TITLE, text, event.screen_x - region.x) or None

    def words_at(self, widget: Widget, row: int) -> str:
        """The row of a widget with the words that name what the pointer is on; empty for none."""
        if isinstance(widget, LinesView) and row < len(widget.lines):
            return "".join(text for text, _ in widget.lines[row])
        return ""

    def action_explain(self) -> None:
        """Explain the words of the panel, or that of the focused control."""
        focused = self.screen.focused
        word = focused.name if isinstance(focused, Control) and focused.name else self.TITLE
        self.post_message(CommandRequested(f"/help {word}"))

    def compose(self) -> ComposeResult:
        yield self.title_bar
        with self.body:
            yield from self.compose_body()

    def compose_body(self) -> ComposeResult:
        """The widgets under the title."""
        raise NotImplementedError

    # -- called by the dock

    def set_engine(self, loaded: Loaded | None, state: str) -> None:
        """What is loaded (None: nothing), and the engine's state in words."""

    def add_steps(self, steps: Sequence[Step], stats: Stats, session: Stats) -> None:
        """Add new steps, with the reply's and the session's totals; ``draw`` shows them."""

    def end(self, stats: Stats) -> None:
        """A reply is over, with these totals."""

    def reset(self) -> None:
        """A new reply begins."""

    def draw(self) -> None:
        """Redraw."""

    def on_mount(self) -> None:
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    @property
    def folded(self) -> bool:
        """Only the title is shown."""
        return self.has_class("-folded")

    def fold(self, folded: bool) -> None:
        """Fold or open without posting a message."""
        self.set_class(folded, "-folded")
        self.title_bar.show(is_open=not folded)

    def on_panel_title_pressed(self, event: PanelTitle.Pressed) -> None:
        event.stop()
        self.fold(not self.folded)
        self.post_message(self.FoldChanged(self))
