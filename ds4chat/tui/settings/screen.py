"""The settings screen, made from the option table: every setting with its value, where that came from, its
default and what it does; changes are checked as they are made and saved together."""

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
        self._wanted = wanted
        self._file = file
        self._saved = settings
        self._draft = settings
        self._keys: list[str] = []
        self._editing = ""
        self._asked_to_leave = False
        self._refused = False
        """The file has problems and was not written over; only then does S do so."""

    def compose_sheet(self) -> ComposeResult:
        yield Input(self._wanted, placeholder="filter", id="settings-filter")
        yield OptionList(id="settings-list")
        with Horizontal(id="settings-edit"):
            yield Static(id="settings-key", markup=False)
            yield Input(id="settings-value", select_on_focus=True)
        yield Static(id="settings-help", markup=False)
        yield Static(id="settings-message", markup=False)

    def on_mount(self) -> None:
        self.retitle(f"Settings  {self._file.path}")
        self.query_one("#settings-filter").display = bool(self._wanted)
        self.query_one("#settings-edit").display = False
        self._show_rows()
        self.query_one(OptionList).focus()

    @property
    def draft(self) -> Settings:
        """The settings as they stand on the screen, saved or not."""
        return self._draft

    # -- the list

    def _show_rows(self) -> None:
        words = self.query_one("#settings-filter", Input).value.lower().split()
        options = self.query_one(OptionList)
        kept = self._current_key()
        width = max(40, options.scrollable_content_region.width or self.size.width - 6)
        self._keys = []
        rows: list[ListOption] = []
        for group, title in GROUPS.items():
            members = [
                option
                for option in OPTIONS
                if option.group == group
                and all(word in f"{option.key} {option.help}".lower() for word in words)
            ]
            if members:
                self._keys += ["", *(option.key for option in members)]
                rows.append(ListOption(Text(title, style="bold", end=""), disabled=True))
                rows += [ListOption(self._row(option, width), id=option.key) for option in members]
        options.set_options(rows)
        usable = [i for i, key in enumerate(self._keys) if key]
        if usable:
            at = self._keys.index(kept) if kept in self._keys and kept else usable[0]
            options.highlighted = at
        self._show_detail()

    def _row(self, option: Option, width: int) -> Text:
        value = getattr(self._draft, option.attribute)
        changed = value != getattr(self._saved, option.attribute)
        source = self._source(option)
        room = max(8, width - KEY_WIDTH - SOURCE_WIDTH - 5)
        text = shown_value(value)
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1) + "…"
        row = Text(f"{'*' if changed else ' '} {option.key:<{KEY_WIDTH}} ", end="", no_wrap=True)
        row.append(set_cell_size(text, room), "" if value == option.default else "bold")
        row.append(f" {source:>{SOURCE_WIDTH}}")
        return row

    def _source(self, option: Option) -> str:
        value = getattr(self._draft, option.attribute)
        if value != getattr(self._saved, option.attribute):
            return "not saved"
        return self._file.source(option, value)

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

    def _current_key(self) -> str:
        at = self.query_one(OptionList).highlighted
        return self._keys[at] if at is not None and at < len(self._keys) else ""

    def _show_detail(self) -> None:
        option = BY_KEY.get(self._current_key())
        if option is None:
            self.query_one("#settings-help", Static).update("Nothing has these words.")
            return
        env = f" · {option.env}" + (" wins over all" if option.env_wins else "") if option.env else ""
        live = " · holds at once" if option.live else ""
        head = f"{accepted_values(option)} · default {shown_value(option.default)}{env}{live}"
        self.query_one("#settings-help", Static).update(f"{head}\n{self._what_wins(option)}{option.help}")

    def _say(self, message: str, error: bool = False) -> None:
        line = self.query_one("#settings-message", Static)
        line.set_class(error, "-error")
        line.update(message)

    # -- changing a value

    def _checked(self, option: Option, raw: Any) -> Any:
        """The value of ``raw``. Raises SettingError, also for a theme that no file has."""
        value = check(option, raw)
        if option.key == "theme" and value not in self.app.available_themes:
            raise SettingError(unknown_theme(value, self.app.available_themes))
        return value

    def _set(self, option: Option, raw: Any) -> bool:
        try:
            value = self._checked(option, raw)
        except SettingError as error:
            self._say(str(error), error=True)
            return False
        changes: dict[str, Any] = {option.attribute: value}
        self._draft = dataclasses.replace(self._draft, **changes)
        self._asked_to_leave = False
        self._say_unsaved()
        self._show_rows()
        return True

    def _say_unsaved(self) -> None:
        unsaved = len(self._changed())
        self._say(f"{unsaved} not saved yet: s saves." if unsaved else "")

    def _changed(self) -> list[str]:
        return [
            option.key
            for option in OPTIONS
            if getattr(self._draft, option.attribute) != getattr(self._saved, option.attribute)
        ]

    @on(OptionList.OptionHighlighted)
    def show_help(self) -> None:
        """What the highlighted setting does."""
        self._show_detail()

    @on(OptionList.OptionSelected)
    def edit(self) -> None:
        """Enter: open the field, or take the next of a few values."""
        option = BY_KEY.get(self._current_key())
        if option is None:
            return
        if option.kind == "table":
            self._say(f"[{option.key}] is edited in {self._file.path}.")
        elif next_value(option, getattr(self._draft, option.attribute)) is not None:
            self.action_cycle(1)
        else:
            self._editing = option.key
            self.query_one("#settings-key", Static).update(f"{option.key} ")
            value = getattr(self._draft, option.attribute)
            field = self.query_one("#settings-value", Input)
            field.value = f"{value:g}" if isinstance(value, float) else str(value)
            self.query_one("#settings-edit").display = True
            self.set_focus(field)
            self.show_hint(EDIT_HINT)

    @on(Input.Changed, "#settings-value")
    def check_as_typed(self, event: Input.Changed) -> None:
        """Say what is wrong with the value while it is typed."""
        if not self._editing:
            return
        try:
            self._checked(BY_KEY[self._editing], event.value)
        except SettingError as error:
            self._say(str(error), error=True)
        else:
            self._say("")

    @on(Input.Submitted, "#settings-value")
    def use_value(self, event: Input.Submitted) -> None:
        """Set the typed value; a wrong one stays in the field with its sentence."""
        if self._editing and self._set(BY_KEY[self._editing], event.value):
            self._leave_field()

    def _leave_field(self) -> None:
        self._editing = ""
        self.query_one("#settings-edit").display = False
        self.query_one(OptionList).focus()
        self.show_hint(LIST_HINT)

    def action_cycle(self, by: int) -> None:
        """The next or previous of a few values."""
        option = BY_KEY.get(self._current_key())
        if option is not None:
            value = next_value(option, getattr(self._draft, option.attribute), by)
            if value is not None:
                self._set(option, value)

    def action_default(self) -> None:
        """Back to the built-in value."""
        option = BY_KEY.get(self._current_key())
        if option is not None:
            default = dict(option.default) if isinstance(option.default, dict) else option.default
            changes: dict[str, Any] = {option.attribute: default}
            self._draft = dataclasses.replace(self._draft, **changes)
            self._show_rows()

    # -- filter, save, leave

    def action_filter(self) -> None:
        """Open the filter."""
        field = self.query_one("#settings-filter", Input)
        field.display = True
        self.set_focus(field)
        self.show_hint(FILTER_HINT)

    @on(Input.Changed, "#settings-filter")
    def filter_rows(self) -> None:
        """Show the settings whose name or help has every word."""
        self._show_rows()

    @on(Input.Submitted, "#settings-filter")
    def leave_filter(self) -> None:
        """Back to the list, with the filter in force."""
        self.query_one(OptionList).focus()
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
        self.app.run_worker(self._write(self._draft, force))

    async def _write(self, settings: Settings, force: bool) -> None:
        try:
            await self._file.save(settings, force=force)
        except SaveError as error:
            self._refused = self._file.path.is_file() and not force
            if self.is_current:
                self._say(f"{error} S writes over it." if self._refused else str(error), error=True)
            else:
                self.notify(str(error), severity="error")
            return
        self.app.post_message(SettingsSaved(settings))
        self._saved = settings
        if self.is_current and not self._changed():
            self.dismiss(settings)
        elif self.is_current:
            self._say_unsaved()
            self._show_rows()

    def action_close(self) -> None:
        """Leave the field or the filter; else the screen, after asking once if something is not saved."""
        if self._editing:
            self._say("")
            self._leave_field()
            return
        field = self.query_one("#settings-filter", Input)
        if field.display:
            field.value = ""
            field.display = False
            self.query_one(OptionList).focus()
            self.show_hint(LIST_HINT)
            return
        unsaved = self._changed()
        if unsaved and not self._asked_to_leave:
            self._asked_to_leave = True
            self._say(f"Not saved: {', '.join(unsaved)}. s saves, Esc drops the changes.", error=True)
            return
        self.dismiss(None)

    def on_resize(self, event: events.Resize) -> None:
        """The rows fill the width."""
        self._show_rows()
