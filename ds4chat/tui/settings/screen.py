"""The settings screen, made from the option table: every setting with its value and where that came from, its
default and its help. Changes are checked as they are made and saved together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option as ListOption

from ds4chat.settings.save import SaveError
from ds4chat.settings.schema import BY_KEY, GROUPS, OPTIONS, Option, Settings
from ds4chat.settings.validate import SettingError, check, range_of
from ds4chat.text import one_line
from ds4chat.tui.kit.sheet import Sheet, StyleSheets
from ds4chat.tui.messages import SettingsSaved
from ds4chat.tui.settings.file import SettingsFile
from ds4chat.tui.themes import unknown_theme

LIST_HINT = (
    "[b]Enter[/b] edits · [b]Space[/b] next value · [b]d[/b] default · [b]/[/b] filter · "
    "[b]s[/b] saves · [b]Esc[/b] closes"
)
EDIT_HINT = "[b]Enter[/b] sets the value · [b]Esc[/b] keeps the old one"
FILTER_HINT = "Type words to filter by · [b]Enter[/b] or [b]Esc[/b] back to the list"
KEY_WIDTH = 18
SOURCE_WIDTH = 12
LEAST_VALUE = 8
"""Least cells for a value beside its source; with fewer, the source is left out."""


def shown_value(value: Any) -> str:
    """A value as the screen shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(value) if value else "none"
    if isinstance(value, float):
        return f"{value:g}"
    return one_line(value) or "–"


def accepted_values(option: Option) -> str:
    """The values of an option in words: its range, choices or kind."""
    if option.kind == "table":
        return "edited in the settings file"
    if option.kind == "path":
        return "a file, or a name" if option.names else "a file"
    return f"{range_of(option)} {option.unit}".strip()


def next_value(option: Option, value: Any, by: int = 1) -> Any:
    """The value after ``value``, for options that have only a few; None for the others."""
    if option.kind == "bool":
        return not value
    if option.kind == "choice":
        at = option.choices.index(value) if value in option.choices else -1
        return option.choices[(at + by) % len(option.choices)]
    return None


class SettingsScreen(Sheet[Settings | None]):
    """Posts SettingsSaved to the app, and dismisses with the saved settings or with None."""

    AUTO_FOCUS = "#settings-list"
    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "Settings"
    HINT = LIST_HINT
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Leave the field, then the screen", id="settings.close"),
        Binding("slash", "filter", "Filter", id="settings.filter"),
        Binding("space", "cycle(1)", "Next value", id="settings.next"),
        Binding("left", "cycle(-1)", "Previous value", show=False, id="settings.previous"),
        Binding("right", "cycle(1)", "Next value", show=False, id="settings.next_right"),
        Binding("d", "default", "Back to the default", id="settings.default"),
        Binding("s", "save", "Save", id="settings.save"),
        Binding("S", "save_over", "Save over a file with problems", show=False, id="settings.save_over"),
    ]

    def __init__(self, settings: Settings, file: SettingsFile, wanted: str = "") -> None:
        """``wanted``: words to filter by."""
        super().__init__()
        self._file = file
        self._saved = settings
        self.draft = settings
        """The settings as the screen shows them, saved or not."""
        self._editing: Option | None = None
        """The option whose value is in the field."""
        self._asked_to_leave = False
        self._refused = False
        """The file has problems and was not written over; only then does S do so."""
        self._wanted = wanted
        self._filter = Input(placeholder="filter", id="settings-filter")
        self._list = OptionList(id="settings-list")
        self._key = Static(id="settings-key", markup=False)
        self._field = Input(id="settings-value", select_on_focus=True)
        self._field_row = Horizontal(self._key, self._field, id="settings-edit")
        self._field_row.display = False
        self._help = Static(id="settings-help", markup=False)
        self._message = Static(id="settings-message", markup=False)

    def compose_sheet(self) -> ComposeResult:
        yield from (self._filter, self._list, self._field_row, self._help, self._message)

    def on_mount(self) -> None:
        self.retitle(f"Settings  {self._file.path}")
        self._filter.value = self._wanted
        self._filter.display = bool(self._wanted)
        self._show_rows()

    # -- the list

    def _show_rows(self) -> None:
        words = self._filter.value.lower().split()
        before = self._highlighted
        width = max(24, self._list.scrollable_content_region.width or self.size.width - 6)
        shown: list[str] = []
        rows: list[ListOption] = []
        for group, title in GROUPS.items():
            members = [
                option
                for option in OPTIONS
                if option.group == group
                and all(word in f"{option.key} {option.help}".lower() for word in words)
            ]
            if members:
                shown += [option.key for option in members]
                rows.append(ListOption(Text(title, style="bold", end=""), disabled=True))
                rows += [ListOption(self._row(option, width), id=option.key) for option in members]
        self._list.set_options(rows)
        if shown:
            key = before.key if before is not None and before.key in shown else shown[0]
            self._list.highlighted = self._list.get_option_index(key)
        self._show_help()

    def _row(self, option: Option, width: int) -> Text:
        value = self._value(option)
        changed = value != getattr(self._saved, option.attribute)
        source = "not saved" if changed else self._file.source(option, value)
        place = f" {source:>{SOURCE_WIDTH}}"
        room = width - KEY_WIDTH - len(place) - 4
        if room < LEAST_VALUE:
            place, room = "", max(1, room + len(place))
        text = shown_value(value)
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1) + "…"
        row = Text(f"{'*' if changed else ' '} {option.key:<{KEY_WIDTH}} ", end="", no_wrap=True)
        row.append(set_cell_size(text, room), "" if value == option.default else "bold")
        row.append(place)
        return row

    def _value(self, option: Option) -> Any:
        return getattr(self.draft, option.attribute)

    def _what_wins(self, option: Option) -> str:
        """A sentence about a source that wins over the file; empty without one."""
        source = self._file.sources.get(option.key)
        if source == "environment":
            over = "the command line and the file" if option.env_wins else "the file"
            where = f"{option.env} is set in the environment and wins over {over}"
        elif source == "command line":
            where = "Given on the command line, which wins over the file"
        else:
            return ""
        return f"{where}: what you save here holds from the first start without it.\n"

    @property
    def _highlighted(self) -> Option | None:
        row = self._list.highlighted_option
        return BY_KEY[row.id] if row is not None and row.id else None

    @on(OptionList.OptionHighlighted)
    def _show_help(self) -> None:
        option = self._highlighted
        if option is None:
            self._help.update("No setting has these words.")
            return
        env = f" · {option.env}" + (" wins over all" if option.env_wins else "") if option.env else ""
        live = " · applies at once" if option.live else ""
        head = f"{accepted_values(option)} · default {shown_value(option.default)}{env}{live}"
        self._help.update(f"{head}\n{self._what_wins(option)}{option.help}")

    def _say(self, message: str, error: bool = False) -> None:
        self._message.set_class(error, "-error")
        self._message.update(message)

    # -- changing a value

    def _checked(self, option: Option, raw: Any) -> Any:
        """The value of ``raw``. Raises SettingError, also for a theme that no file has."""
        value = check(option, raw, "chat")
        if option.key == "theme" and value not in self.app.available_themes:
            raise SettingError(unknown_theme(value, self.app.available_themes))
        return value

    def _set(self, option: Option, raw: Any) -> bool:
        """Set a value; False, after saying why, if the option does not accept it."""
        try:
            value = self._checked(option, raw)
        except SettingError as error:
            self._say(str(error), error=True)
            return False
        changes: dict[str, Any] = {option.attribute: value}
        self.draft = dataclasses.replace(self.draft, **changes)
        self._asked_to_leave = False
        self._show_unsaved()
        return True

    def _show_unsaved(self) -> None:
        unsaved = len(self._unsaved())
        self._say(f"{unsaved} not saved yet: s saves." if unsaved else "")
        self._show_rows()

    def _unsaved(self) -> list[str]:
        return [o.key for o in OPTIONS if self._value(o) != getattr(self._saved, o.attribute)]

    @on(OptionList.OptionSelected)
    def edit(self) -> None:
        """Enter: open the field, or take the next of a few values."""
        option = self._highlighted
        if option is None:
            return
        value = self._value(option)
        if option.kind == "table":
            self._say(f"[{option.key}] is edited in {self._file.path}.")
        elif next_value(option, value) is not None:
            self.action_cycle(1)
        else:
            self._editing = option
            self._key.update(f"{option.key} ")
            self._field.value = f"{value:g}" if isinstance(value, float) else str(value)
            self._field_row.display = True
            self.set_focus(self._field)
            self.show_hint(EDIT_HINT)

    @on(Input.Changed, "#settings-value")
    def check_as_typed(self, event: Input.Changed) -> None:
        """Say what is wrong with the value while it is typed."""
        if self._editing is None:
            return
        try:
            self._checked(self._editing, event.value)
        except SettingError as error:
            self._say(str(error), error=True)
        else:
            self._say("")

    @on(Input.Submitted, "#settings-value")
    def use_value(self, event: Input.Submitted) -> None:
        """Set the typed value; a wrong one stays in the field with its sentence."""
        if self._editing is not None and self._set(self._editing, event.value):
            self._leave_field()

    def _leave_field(self) -> None:
        self._editing = None
        self._field_row.display = False
        self.leave_filter()

    def action_cycle(self, by: int) -> None:
        """The next or previous of a few values."""
        option = self._highlighted
        value = next_value(option, self._value(option), by) if option is not None else None
        if option is not None and value is not None:
            self._set(option, value)

    def action_default(self) -> None:
        if (option := self._highlighted) is not None:
            self._set(option, option.default)

    # -- filter, save, leave

    def action_filter(self) -> None:
        self._filter.display = True
        self.set_focus(self._filter)
        self.show_hint(FILTER_HINT)

    @on(Input.Changed, "#settings-filter")
    def filter_rows(self) -> None:
        """Show the settings whose name or help has every word."""
        self._show_rows()

    @on(Input.Submitted, "#settings-filter")
    def leave_filter(self) -> None:
        """Back to the list, which stays filtered."""
        self._list.focus()
        self.show_hint(LIST_HINT)

    def action_save(self) -> None:
        """Write all settings to the file and tell the app."""
        self._save(force=False)

    def action_save_over(self) -> None:
        """Write over a file with problems, once saving was refused for them."""
        if self._refused:
            self._save(force=True)

    def _save(self, force: bool) -> None:
        self._say("Saving…")
        # The app's worker: it goes on if this screen is closed while the disk is slow.
        self.app.run_worker(self._write(self.draft, force))

    async def _write(self, settings: Settings, force: bool) -> None:
        try:
            await self._file.save(settings, force=force)
        except SaveError as error:
            self._refused = self._file.path.is_file() and not force
            if self.is_current:
                self._say(str(error), error=True)
            else:
                self.notify(str(error), severity="error")
            return
        self.app.post_message(SettingsSaved(settings))
        self._saved = settings
        if self.is_current and self.draft == settings:
            self.dismiss(settings)
        elif self.is_current:
            self._show_unsaved()

    def action_close(self) -> None:
        """Leave the field or the filter; else the screen, after asking once if something is not saved."""
        unsaved = self._unsaved()
        if self._editing is not None:
            self._say("")
            self._leave_field()
        elif self._filter.display:
            self._filter.value = ""
            self._filter.display = False
            self.leave_filter()
        elif unsaved and not self._asked_to_leave:
            self._asked_to_leave = True
            self._say(f"Not saved: {', '.join(unsaved)}. s saves, Esc drops the changes.", error=True)
        else:
            self.dismiss(None)

    def on_resize(self, event: events.Resize) -> None:
        """The rows fill the width."""
        self._show_rows()
