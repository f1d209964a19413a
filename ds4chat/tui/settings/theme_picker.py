"""The theme picker: the list of themes, each drawn on the whole screen as soon as the cursor is on it."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ds4chat.text import one_line
from ds4chat.tui.glossary import LEGEND
from ds4chat.tui.kit.sheet import Sheet, StyleSheets
from ds4chat.tui.messages import SettingsChanged

SAMPLE = {
    **{f"token-{name}": f"{name:<12}{means}" for name, means in LEGEND.items()},
    "thinking": "thinking    let me see, the user asks…",
}
"""A line for each look of a text, by its CSS variable."""
CHART = (
    ("chart-draft", 4),
    ("chart-verify", 14),
    ("chart-accept", 3),
    ("chart-rollback", 2),
    ("chart-other", 3),
)


class ThemePicker(Sheet[str | None]):
    """Dismisses with the chosen name, or with None after putting the old theme back."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "theme_picker.tcss"]
    TITLE_TEXT = "Theme"
    HINT = "[b]↑ ↓[/b] try · [b]Enter[/b] keeps · [b]Esc[/b] puts the old one back"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Put the old theme back")]

    def __init__(self, names: list[str]) -> None:
        """``names`` are registered themes, in the order of the list."""
        super().__init__()
        self._names = names
        self._before = ""

    def compose_sheet(self) -> ComposeResult:
        with Horizontal():
            names = (Option(Content(one_line(name)), id=name) for name in self._names)
            yield OptionList(*names, id="theme-list")
            with Vertical(id="theme-sample"):
                for variable, text in SAMPLE.items():
                    yield Static(text, classes=variable)
                yield Static("".join(f"[${v}]{'█' * n}[/]" for v, n in CHART), id="theme-chart")

    def on_mount(self) -> None:
        self._before = self.app.theme
        options = self.query_one(OptionList)
        if self._before in self._names:
            options.highlighted = self._names.index(self._before)
        options.focus()

    @on(OptionList.OptionHighlighted)
    def preview(self, event: OptionList.OptionHighlighted) -> None:
        """Draw everything in the theme under the cursor."""
        if event.option_id:
            self.app.theme = event.option_id

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        """Keep the theme."""
        name = event.option_id or self._before
        self.app.theme = name
        self.app.post_message(SettingsChanged(theme=name))
        self.dismiss(name)

    def action_close(self) -> None:
        """Put the theme back that was in force before."""
        self.app.theme = self._before
        self.dismiss(None)
