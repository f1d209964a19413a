"""The application: themes, keys, screens and shutdown. The chat screen does the rest."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console
from textual import events, work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.filter import LineFilter
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widgets import Input

from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Load, ModelInfo, Tuning
from ds4chat.engine.from_settings import chosen_sampling, load_of, tuning_of, with_tuning
from ds4chat.models.errors import ModelFileError
from ds4chat.settings import paths
from ds4chat.settings.load import DEMO_DEPTH, SettingSource
from ds4chat.settings.logfile import log_path, usable_log
from ds4chat.settings.schema import Settings
from ds4chat.store import FILE_NAME, Store, StoreError, open_or_in_memory
from ds4chat.text import printable
from ds4chat.tui.actions import unknown_actions
from ds4chat.tui.chat.reading import BUSY
from ds4chat.tui.chat.screen import ChatScreen
from ds4chat.tui.chat.slash_commands import ChatCommands
from ds4chat.tui.command_table import CommandError, usage_rows
from ds4chat.tui.controller import Chat
from ds4chat.tui.help.palette import PaletteCommands
from ds4chat.tui.kit import clipboard
from ds4chat.tui.kit.garbage import spare_replies
from ds4chat.tui.kit.keyboard import use_own_parser
from ds4chat.tui.kit.printable import PrintableFilter
from ds4chat.tui.kit.resume import redraw_when_continued
from ds4chat.tui.messages import (
    CommandRequested,
    DemoChosen,
    ModelChosen,
    SettingsChanged,
    SettingsSaved,
    TokenPicked,
    TuningChanged,
)
from ds4chat.tui.panels.tuning import TuningPanel
from ds4chat.tui.process_exit import ProcessExit
from ds4chat.tui.recorder import Recorder
from ds4chat.tui.settings.file import SettingsFile
from ds4chat.tui.themes import DEFAULT_THEME, ThemeFolder, unknown_theme, variable_defaults

if TYPE_CHECKING:
    from ds4chat.settings.load import LoadedSettings
    from ds4chat.tui.history.changes import Chosen

MODEL_SETTINGS = ("model", "mtp", "lookup", "demo", "ctx_size", "server")
"""Fields of Settings that a load from the chat may change."""
MOST_PROBLEMS = 5
"""Most problems shown at the start; more would cover the screen."""


class ChatApp(App[int]):
    """The chat. Without an engine it creates one, and without a recorder it stores nothing on disk."""

    TITLE = "ds4chat"
    # Notices of half the width, as in Textual, are high on a narrow screen. Their height is measured as if an
    # invisible scrollbar took no room.
    CSS = "Toast { max-width: 100%; } ToastRack { scrollbar-size-vertical: 0; }"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {PaletteCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", id="app.help", priority=True),
        Binding("ctrl+p", "command_palette", "Command palette", id="app.palette", priority=True),
        Binding("f11,ctrl+l", "explore", "Confidence explorer", id="app.explore"),
        Binding("ctrl+b", "history", "Stored conversations", id="app.history"),
        Binding("f12", "log", "Log", id="app.log"),
        Binding("ctrl+s", "save", "Save the settings", id="app.save"),
        Binding("ctrl+q", "quit", "Leave", id="app.quit", show=False, priority=True),
    ]

    def __init__(
        self,
        settings: Settings,
        engine: EngineClient | None = None,
        recorder: Recorder | None = None,
        *,
        config_path: Path | None = None,
        problems: Sequence[str] = (),
        sources: Mapping[str, SettingSource] | None = None,
    ) -> None:
        """``problems`` are sentences about the settings to be shown once; ``sources`` says where values came
        from, for the settings screen."""
        use_own_parser()
        super().__init__()
        self._printable = PrintableFilter()
        # The traceback of an uncaught exception quotes texts, which may contain colours: print it without
        # any.
        self.error_console = Console(stderr=True, color_system=None, markup=False, highlight=False)
        self._settings = settings
        self._asked_with: dict[Load, Settings] = {}
        """The settings of each requested load."""
        self.settings_file = SettingsFile(config_path or paths.config_file(), settings, sources or {})
        self.log_path = log_path(settings)
        self.first_conversation: int | None = None
        """The store's number of the conversation to open; None: a new one."""
        self.parting = ""
        """Printed after the screen is closed: a sentence about what could not be stored."""
        self._process_exit: ProcessExit | None = None
        """None while another program runs this app."""
        self._problems = list(problems)
        self._themes = ThemeFolder(self, paths.folder("config") / "themes", self._show_problems)
        if engine is None:
            log, problem = usable_log(self.log_path)
            self._problems += [problem] if problem else []
            engine = EngineClient(log)
        self.chat = Chat(
            engine,
            recorder or Recorder(Store.in_memory()),
            tuning_of(settings),
            lambda: self._settings,
            model_loaded=self._use_model_sampling,
        )
        self.chat_screen = ChatScreen(self.chat, settings, self)
        self._commands = ChatCommands(self.chat_screen, self)

    def on_key(self, event: events.Key) -> None:
        """Send a letter typed right after the key that opened a field to the field. It was sent to the widget
        that had the focus before, where it may be the key of a command: in the history, d deletes."""
        field = self.focused
        # A field keeps the letters that are sent to itself.
        if isinstance(field, Input) and event.is_printable and event.character:
            event.prevent_default()
            field.insert_text_at_cursor(event.character)

    # -- start

    def get_default_screen(self) -> Screen[Any]:
        return self.chat_screen

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), self._printable]

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a notice. Most quote a file, a path or an error: brackets in them are not markup."""
        super().notify(printable(message), title=title, severity=severity, timeout=timeout, markup=False)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return variable_defaults(self.current_theme.dark)

    def on_mount(self) -> None:
        self._themes.load()
        if self.get_theme(self.settings.theme) is not None:
            self.theme = self.settings.theme
        else:
            self.theme = DEFAULT_THEME
            self._problems.append(unknown_theme(self.settings.theme, [t.name for t in self._themes.themes]))
        self._themes.follow()
        self.set_keymap(self.settings.keys)
        self._show_problems(self._problems)
        if self.settings.keys:
            # After the first picture, in a thread: this imports every screen.
            self.call_after_refresh(self._check_keys)
        if self._process_exit is not None:
            self._process_exit.watch()
            redraw_when_continued(self)
        if self.first_conversation is not None:
            self._read_conversation(self.first_conversation)
        if self.settings.model or self.settings.demo or self.settings.server:
            # After the first picture: starting the engine's process takes a while.
            self.call_after_refresh(self.load)

    def run(self, *args: Any, **options: Any) -> int | None:
        """Run the chat as this process's only work: no thread that hangs keeps it from leaving."""
        self._process_exit = ProcessExit(self, self._store_rest)
        code = super().run(*args, **options)
        self._process_exit.cancel()
        return code

    @work(exit_on_error=False)
    async def _check_keys(self) -> None:
        self._show_problems(await asyncio.to_thread(unknown_actions, self.settings.keys))

    def _show_problems(self, problems: list[str]) -> None:
        shown = problems[:MOST_PROBLEMS]
        if more := len(problems) - len(shown):
            shown.append(f"And {more:,} more like these: ds4chat config check lists those of the settings.")
        for problem in shown:
            self.notify(problem, severity="warning", timeout=12)

    # -- settings

    @property
    def settings(self) -> Settings:
        """All settings as they are now; the live ones are those of the chat."""
        return with_tuning(self._settings, self.chat_screen.dock_view.tuning.unpaused(self.chat.tuning))

    def change(self, **changes: Any) -> None:
        """Change these fields of the settings, until the user saves them."""
        self._settings = replace(self._settings, **changes)

    def on_settings_changed(self, event: SettingsChanged) -> None:
        self.change(**event.changes)

    def load(self, **changes: Any) -> None:
        """Load models with these fields of the settings changed."""
        settings = replace(self.settings, **changes)
        try:
            command = load_of(settings, chosen_sampling(self.settings_file.sources))
        except ModelFileError as error:
            self.chat_screen.say_error(str(error))
            return
        self._settings = self._asked_with[command] = settings
        self.chat.load(command)
        self.chat_screen.draw_frame()

    def load_stopped(self) -> None:
        """A load was stopped: restore the settings of the model that a reload loads."""
        asked = self._asked_with.get(self.chat.load_command) if self.chat.load_command else None
        if asked is not None:
            changes: dict[str, Any] = {name: getattr(asked, name) for name in MODEL_SETTINGS}
            self._settings = replace(self._settings, **changes)

    def action_load_demo(self) -> None:
        """Load the demo, with its own depth if none is set."""
        unset = self.settings_file.sources.get("mtp-draft", "default") == "default"
        if unset and self.settings.mtp_draft == Settings().mtp_draft:
            self.chat_screen.retune(replace(self.chat.tuning, depth=DEMO_DEPTH))
        self.load(demo=True, model="", mtp="", server="")

    def _use_model_sampling(self, model: ModelInfo) -> None:
        """Use the model's own sampling where nothing else is set."""
        self._settings = self.settings_file.use_model_sampling(self.settings, dict(model.sampling))
        self.chat_screen.retune(replace(tuning_of(self._settings), depth=self.chat.tuning.depth))

    def action_save(self) -> None:
        """Save the settings, including every change made before this."""
        self.call_later(self._save)

    def _save(self) -> None:
        self._write(self.settings_file.save(self.settings), f"Saved to {self.settings_file.path}.")

    @work
    async def _write(self, saving: Awaitable[None], saved: str) -> None:
        """Wait for the settings file to be written, and report how it went."""
        from ds4chat.settings.save import SaveError

        try:
            await saving
        except SaveError as error:
            self.notify(str(error), severity="error")
        else:
            self.notify(saved)

    def on_ready(self) -> None:
        if self._process_exit is not None:
            spare_replies()

    def on_settings_saved(self, event: SettingsSaved) -> None:
        """The settings screen saved: apply what may change while the chat runs."""
        self._settings = event.settings
        self.chat_screen.retune(tuning_of(event.settings))
        self.set_keymap(event.settings.keys)
        if self.get_theme(event.settings.theme) is not None:
            self.theme = event.settings.theme
        self.notify(f"Saved to {self.settings_file.path}.")

    def on_tuning_panel_preset_saved(self, event: TuningPanel.PresetSaved) -> None:
        """Save a named preset at once, and no other settings."""
        presets = {**self._settings.presets, event.name: event.values}
        self._settings = replace(self._settings, presets=presets)
        self._write(
            self.settings_file.save_preset(event.name, event.values),
            f"Saved the preset {event.name} to {self.settings_file.path}.",
        )

    def on_model_chosen(self, event: ModelChosen) -> None:
        self.load(model=event.model, mtp=event.support, lookup=event.lookup, demo=False, server="")

    def on_demo_chosen(self, event: DemoChosen) -> None:
        self.action_load_demo()

    # -- slash commands

    def run_command(self, text: str) -> bool:
        """Run a slash command; False if it failed, which was then reported."""
        return self._commands.run(text)

    def on_command_requested(self, event: CommandRequested) -> None:
        """A click, a key of a panel, or the palette's choice."""
        self._commands.request(event.text)

    # -- screens

    def action_help(self, wanted: str = "") -> None:
        """Keys and commands, all of them or those that mention something."""
        from ds4chat.tui.help.screen import HelpScreen, collect_keys

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(collect_keys(self), usage_rows(), wanted))

    def action_models(self, get: str | None = None) -> None:
        """Choose a model; with ``get``, words or USER/REPO, start with the hub."""
        from ds4chat.tui.models.screen import ModelPicker

        command = self.chat.load_command
        current = command.model if command else self.settings.model
        recent = self.chat.recorder.recent_models
        self.push_screen(ModelPicker(self.settings.model_folders, current, recent, get=get))

    def action_history(self) -> None:
        from ds4chat.tui.history.screen import HistoryScreen

        if not isinstance(self.screen, HistoryScreen):
            current = self.chat.conversation.key
            writing = (current or 0) if self.chat.reply else None
            screen = HistoryScreen(self.chat.recorder.store, current, writing)
            self.push_screen(screen, self._history_closed)

    def _history_closed(self, chosen: Chosen | None) -> None:
        if chosen is None:
            self._read_conversation(None)
        else:
            self._read_conversation(chosen.conversation, chosen.message, chosen.at)

    @work(exclusive=True, group="conversation", exit_on_error=False)
    async def _read_conversation(self, key: int | None, message: int | None = None, at: int = 0) -> None:
        """Continue a stored conversation, or the current one after changes in the history, unless a reply is
        running. Show this message of it, at this character."""
        chat, found = self.chat, None
        if chat.reply is None:
            try:
                found = await asyncio.to_thread(
                    chat.recorder.after_history, chat.conversation, key, chat.next_number
                )
            except StoreError as error:
                self.notify(str(error), severity="error")
                return
        if found is not None and chat.resume(found):
            self.chat_screen.show_conversation()
        if message is not None:
            # Rows have positions only after the layout.
            self.call_after_refresh(self.chat_screen.show_message, message, at)

    def action_settings(self, wanted: str = "") -> None:
        """All settings, or those that mention something."""
        from ds4chat.tui.settings.screen import SettingsScreen

        self.push_screen(SettingsScreen(self.settings, self.settings_file, wanted))

    @property
    def theme_names(self) -> list[str]:
        """ds4chat's own themes and the user's, sorted."""
        return [theme.name for theme in self._themes.themes]

    def action_theme(self, name: str = "") -> None:
        """Open the theme picker, or use the theme of this name. Raises CommandError if there is none."""
        from ds4chat.tui.settings.theme_picker import ThemePicker

        if not name:
            self.push_screen(ThemePicker(self.theme_names))
        elif self.get_theme(name) is None:
            raise CommandError(unknown_theme(name, self.theme_names))
        else:
            self.theme = name
            self._settings = replace(self._settings, theme=name)
            self.notify(f"The theme is {name}. /save keeps it.")

    def action_log(self) -> None:
        from ds4chat.tui.log.screen import LogScreen

        if not isinstance(self.screen, LogScreen):
            self.push_screen(LogScreen(self.log_path))

    def action_compare(self, argument: str = "") -> None:
        from ds4chat.tui.compare.comparison import Comparison
        from ds4chat.tui.compare.screen import CompareScreen
        from ds4chat.tui.compare.sides import sides_of

        request, loaded = self.chat.last_request(), self.chat.loaded
        if request is None or loaded is None or self.chat.state != "ready":
            raise CommandError(BUSY.get(self.chat.state, "There is no prompt to compare settings with yet."))
        sides = sides_of(argument, self.chat.tuning, self.settings.presets, loaded)
        comparison = Comparison(request, *sides)
        self.chat.begin(comparison)
        self.push_screen(CompareScreen(comparison, self.chat_screen.stop_reply), self._keep_compared)

    def _keep_compared(self, tuning: Tuning | None) -> None:
        if tuning is not None:
            self.chat_screen.retune(tuning)

    def action_explore(self, source: str = "") -> None:
        """The judged drafts of this conversation, of a stored one (its number), or of a log file."""
        from ds4chat.tui.explorer.screen import ExplorerScreen
        from ds4chat.tui.explorer.source import opener

        if not isinstance(self.screen, ExplorerScreen):
            self.push_screen(ExplorerScreen(opener(self.chat, source), lambda: self.chat.tuning))

    def on_token_picked(self, event: TokenPicked) -> None:
        """Show the token that was picked in the explorer."""
        self.chat_screen.token_picked(event)

    def on_tuning_changed(self, event: TuningChanged) -> None:
        """Apply the explorer's what-if."""
        self.chat_screen.retune(event.tuning)

    def action_about(self) -> None:
        from ds4chat.tui.help.about import AboutScreen

        places = (
            ("Settings", self.settings_file.path),
            ("Data", paths.folder("data")),
            ("Log", self.log_path),
        )
        self.push_screen(AboutScreen(places, self.chat.loaded, self.settings.rpc))

    # -- leaving

    def copy_to_clipboard(self, text: str) -> None:
        """Copy through the terminal, and through the system's own tool if there is one."""
        super().copy_to_clipboard(text)
        self._copy_outside(text)

    @work(thread=True, exit_on_error=False)
    def _copy_outside(self, text: str) -> None:
        clipboard.copy(text)

    def on_unmount(self) -> None:
        self._themes.leave()
        self.chat.recorder.keep_draft(self.chat_screen.prompt.text)
        self.parting = self._store_rest()

    def _store_rest(self) -> str:
        """Store what is left, in any thread; a sentence about what could not be stored, or empty."""
        self.chat.abandon()
        return self.chat.recorder.close()

    async def _shutdown(self) -> None:
        await super()._shutdown()
        self.parting = "\n".join(filter(None, (self.parting, await self.settings_file.finish())))
        if self._process_exit is not None:
            self._process_exit.begin(self.return_code or 0, self.parting)


def run(loaded: LoadedSettings, *, go_on: bool = False) -> int:
    """Open the chat; the exit code. ``go_on``: open the most recent conversation."""
    recorder = Recorder(open_or_in_memory(paths.folder("data") / FILE_NAME))
    problems = [*map(str, loaded.problems), *loaded.warnings]
    latest: int | None = None
    if go_on:
        try:
            latest = recorder.store.conversations.latest()
            problems += [] if latest else ["There is no conversation to continue, so this is a new one."]
        except StoreError as error:
            problems.append(str(error))
    app = ChatApp(
        loaded.settings,
        recorder=recorder,
        config_path=loaded.config_path,
        problems=problems,
        sources=loaded.sources,
    )
    app.first_conversation = latest
    try:
        code = app.run()
    finally:
        app.chat.engine.close()
    if app.parting:
        print(app.parting, file=sys.stderr)
    return app.return_code or code or 0
