"""The application: themes, keys, screens and shutdown. The chat screen does the rest."""

from __future__ import annotations

import asyncio
import difflib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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

from ds4chat.engine.events import Load, ModelInfo, Tuning
from ds4chat.engine.from_settings import chosen_sampling, ends_loops, load_of, tuning_of, with_tuning
from ds4chat.models.errors import ModelFileError
from ds4chat.settings import paths
from ds4chat.settings.load import DEMO_DEPTH, Origin
from ds4chat.settings.logfile import log_path, usable_log
from ds4chat.settings.model_sampling import apply_model_sampling, for_file
from ds4chat.settings.schema import OPTIONS, Settings
from ds4chat.text import printable
from ds4chat.tui.chat.screen import ChatScreen
from ds4chat.tui.chat.slash_commands import ChatCommands
from ds4chat.tui.command_table import CommandError, usage_rows
from ds4chat.tui.controller import Chat, Engine, last_request
from ds4chat.tui.conversation import Recorder
from ds4chat.tui.help.palette import PaletteCommands
from ds4chat.tui.kit import clipboard
from ds4chat.tui.kit.garbage import spare_replies
from ds4chat.tui.kit.keyboard import use_own_parser
from ds4chat.tui.kit.output import drain_after_the_terminal, give_terminal_back
from ds4chat.tui.kit.printable import PrintableFilter
from ds4chat.tui.messages import (
    CommandChosen,
    CommandRequested,
    ConversationRead,
    DemoChosen,
    ModelChosen,
    SettingsChanged,
    SettingsSaved,
    TokenPicked,
    TuningChanged,
)
from ds4chat.tui.panels.tuning import TuningPanel
from ds4chat.tui.recorder import NullRecorder, StoreRecorder
from ds4chat.tui.themes import DEFAULT_THEME, ThemeFolder, unknown_theme, variable_defaults

if TYPE_CHECKING:
    from ds4chat.settings.load import Loaded as LoadedSettings
    from ds4chat.tui.history.changes import Chosen

MODEL_SETTINGS = ("model", "mtp", "lookup", "demo", "ctx_size", "server")
"""Fields of Settings that a load from the chat may change."""
MOST_PROBLEMS = 5
"""Most problems shown at the start; more would cover the screen."""
LEAVE_SECONDS = 3.0
"""Seconds that leaving may take after a signal."""


class ChatApp(App[int]):
    """The chat. ``engine`` is an EngineClient or anything with its interface; None creates one."""

    TITLE = "ds4chat"
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
        engine: Engine | None = None,
        store: Recorder | None = None,
        *,
        config_path: Path | None = None,
        problems: Sequence[str] = (),
        sources: Mapping[str, Origin] | None = None,
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
        self.config_path = config_path or paths.config_file()
        self.log_path = log_path(settings)
        self.first_conversation: int | None = None
        """The store's number of the conversation to open; None: a new one."""
        self.parting = ""
        """Printed after the screen is closed: a sentence about what could not be stored."""
        self._owns_process = False
        self._by_force: threading.Timer | None = None
        self._left = False
        """The conversation is stored and the screen closed."""
        self._problems = list(problems)
        self._sources = dict(sources or {})
        self._from_sources = settings
        self._themes = ThemeFolder(self, paths.folder("config") / "themes", self._show_problems)
        if engine is None:
            from ds4chat.engine.client import EngineClient

            log, problem = usable_log(self.log_path)
            self._problems += [problem] if problem else []
            engine = EngineClient(log)
        self.chat = Chat(
            engine,
            store or NullRecorder(),
            tuning_of(settings),
            system=settings.system_prompt,
            think=settings.think,
            max_tokens=settings.predict,
            keep_accepted=settings.mtp_keep_accepted,
            end_loops=lambda: ends_loops(self.settings),
        )
        self.chat.took_model = self._take_sampling
        self.chat_screen = ChatScreen(self.chat, settings, self)
        self._commands = ChatCommands(self.chat_screen, self.load, lambda: self.settings)

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
        self._show_problems([*self._problems, *self._key_problems()])
        if self._owns_process:
            self._catch_signals()
            drain_after_the_terminal(self._driver)
        if self.first_conversation is not None:
            self._read_conversation(self.first_conversation)
        if self.settings.model or self.settings.demo or self.settings.server:
            # After the first picture: starting the engine's process takes a while.
            self.call_after_refresh(self.load)

    def _catch_signals(self) -> None:
        """Shut down regularly when the terminal closes or the process gets a signal.

        The handlers are Python's own, not the event loop's: the loop may be waiting for a terminal that is
        gone, and then only a handler of this kind still runs.
        """
        loop = asyncio.get_running_loop()

        def leave(number: int, _frame: object) -> None:
            code = 128 + number
            loop.call_soon_threadsafe(self.exit, code)
            self._leave_in_time(code)

        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            try:
                signal.signal(number, leave)
            except ValueError:  # not in the main thread: another program runs this app
                return

    def run(self, *args: Any, **options: Any) -> int | None:
        """Run the chat as this process's only work: no thread that hangs keeps it from leaving."""
        self._owns_process = True
        code = super().run(*args, **options)
        if self._by_force is not None:
            self._by_force.cancel()
        return code

    def _leave_in_time(self, code: int) -> None:
        """End the process by force after LEAVE_SECONDS."""
        if self._by_force is None and self._owns_process:
            self._by_force = threading.Timer(LEAVE_SECONDS, self._leave_by_force, (code,))
            self._by_force.daemon = True
            self._by_force.start()

    def _leave_by_force(self, code: int) -> None:
        """Leaving hangs, as it can when the terminal went away under a write, a disk does not answer or
        the machine is very busy: keep the reply and go. The engine leaves by itself when this process is
        gone."""
        if self._left:
            # Everything is stored and the terminal restored: only a thread that nobody needs hangs.
            with suppress(OSError):
                os.write(sys.stderr.fileno(), f"{self.parting}\n".encode() if self.parting else b"")
            os._exit(code)
        parting = ""
        try:
            self.chat.abandon()
            parting = self.chat.recorder.close()
        finally:
            give_terminal_back(self._driver, parting)
            os._exit(code)

    def _key_problems(self) -> list[str]:
        """A sentence for each action in ``[keys]`` that is none; those of screens not yet open are taken as
        they are."""
        nodes = [self, self.chat_screen, *self.chat_screen.query("*")]
        known = {b.id for node in nodes for _, b in node._bindings if b.id}
        rooms = {name.split(".")[0] for name in known}
        problems = []
        for name in self.settings.keys:
            if name not in known and (name.split(".")[0] in rooms or "." not in name):
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"Did you mean {near[0]}?" if near else "F1 lists them."
                problems.append(f"[keys] names the action {name}, and there is none of that name. {hint}")
        return problems

    def _show_problems(self, problems: list[str]) -> None:
        shown = problems[:MOST_PROBLEMS]
        if more := len(problems) - len(shown):
            shown.append(f"And {more:,} more like these: ds4chat config check lists those of the settings.")
        for problem in shown:
            self.notify(problem, severity="warning", timeout=12, markup=False)

    # -- settings

    @property
    def settings(self) -> Settings:
        """All settings as they are now; the live ones are those of the chat."""
        return with_tuning(self._settings, self.chat_screen.dock_view.tuning.unpaused(self.chat.tuning))

    def on_settings_changed(self, event: SettingsChanged) -> None:
        """Keep a change; it is written when the user saves."""
        self._settings = replace(self._settings, **event.changes)

    def load(self, **changes: Any) -> None:
        """Load models with these fields of the settings changed."""
        settings = replace(self.settings, **changes)
        try:
            command = load_of(settings, chosen_sampling(self._sources))
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
        unset = self._sources.get("mtp-draft", "default") == "default"
        if unset and self.settings.mtp_draft == Settings().mtp_draft:
            self.chat_screen.retune(replace(self.chat.tuning, depth=DEMO_DEPTH))
        self.load(demo=True, model="", mtp="", server="")

    def _take_sampling(self, model: ModelInfo) -> None:
        """Use the model's own sampling where nothing else is set."""
        self._settings, self._from_sources, self._sources = apply_model_sampling(
            self.settings, self._from_sources, self._sources, dict(model.sampling)
        )
        self.chat_screen.retune(replace(tuning_of(self._settings), depth=self.chat.tuning.depth))

    def action_save(self) -> None:
        """Save the settings, including every change made before this."""
        self.call_later(self._save)

    def _save(self) -> None:
        from ds4chat.settings.save import SaveError, save

        try:
            save(for_file(self.settings, self._from_sources, self._sources), self.config_path)
        except (SaveError, paths.FolderError) as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self._now_in_file()
        self.notify(f"Saved to {self.config_path}.", markup=False)

    def _now_in_file(self) -> None:
        """The settings were written: what was set in the chat comes from the file now, except where a source
        above the file will win over it at the next start."""
        for option in OPTIONS:
            value = getattr(self.settings, option.attribute)
            if value != getattr(self._from_sources, option.attribute) and self._sources.get(
                option.key, "default"
            ) in ("default", "model", "file"):
                self._sources[option.key] = "file" if value != option.default else "default"
                changed: dict[str, Any] = {option.attribute: value}
                self._from_sources = replace(self._from_sources, **changed)

    def on_ready(self) -> None:
        if self._owns_process:
            spare_replies()

    def on_settings_saved(self, event: SettingsSaved) -> None:
        """The settings screen saved: apply what may change while the chat runs."""
        self._settings = event.settings
        self.chat.think = event.settings.think
        self.chat.max_tokens = event.settings.predict
        self.chat.keep_accepted = event.settings.mtp_keep_accepted
        self.chat_screen.retune(tuning_of(event.settings))
        self.set_keymap(event.settings.keys)
        if self.get_theme(event.settings.theme) is not None:
            self.theme = event.settings.theme
        self._now_in_file()
        self.notify(f"Saved to {event.path}.", markup=False)

    def on_tuning_panel_preset_saved(self, event: TuningPanel.PresetSaved) -> None:
        """Save a named preset at once, and no other settings."""
        from ds4chat.settings.save import SaveError, save_preset

        presets = {**self._settings.presets, event.name: event.values}
        self._settings = replace(self._settings, presets=presets)
        try:
            save_preset(event.name, event.values, self.config_path)
        except (SaveError, paths.FolderError) as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self._from_sources = replace(self._from_sources, presets=presets)
        self._sources["presets"] = "file"
        self.notify(f"Saved the preset {event.name} to {self.config_path}.", markup=False)

    def on_model_chosen(self, event: ModelChosen) -> None:
        """The picker's choice: load it."""
        self.load(model=event.model, mtp=event.support, lookup=event.lookup, demo=False, server="")

    def on_demo_chosen(self, event: DemoChosen) -> None:
        """The picker's choice of the demo."""
        self.action_load_demo()

    # -- slash commands

    def run_command(self, text: str) -> bool:
        """Run a slash command; False if it failed, which was then reported."""
        return self._commands.run(text)

    def on_command_chosen(self, event: CommandChosen) -> None:
        """The palette's choice."""
        self._commands.choose(event.name)

    def on_command_requested(self, event: CommandRequested) -> None:
        """A click, or a key of a panel."""
        self.chat_screen.run_command(event.text)

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
        recent = self.chat.recorder.recent_models()
        self.push_screen(ModelPicker(self.settings.model_folders, current, recent, get=get))

    def action_history(self) -> None:
        """Stored conversations."""
        from ds4chat.tui.history.screen import HistoryScreen

        recorder = self.chat.recorder
        if not isinstance(recorder, StoreRecorder):
            self.notify("This chat keeps no conversations.")
        elif not isinstance(self.screen, HistoryScreen):
            current = self.chat.conversation.key
            writing = (current or 0) if self.chat.reply else None
            self.push_screen(HistoryScreen(recorder.store, current, writing), self._history_closed)

    def _history_closed(self, chosen: Chosen | None) -> None:
        if chosen is None:
            self._read_conversation(None)
        else:
            self._read_conversation(chosen.conversation, chosen.message, chosen.at)

    @work(thread=True, exclusive=True, group="conversation", exit_on_error=False)
    def _read_conversation(self, key: int | None, message: int | None = None, at: int = 0) -> None:
        """Read a conversation, or with None the current one after changes in the history."""
        from ds4chat.store import StoreError

        recorder = self.chat.recorder
        if not isinstance(recorder, StoreRecorder):
            return
        found = None
        try:
            if self.chat.reply is None:
                found = recorder.after_history(self.chat.conversation, key, self.chat.next_number)
        except StoreError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.post_message(ConversationRead(found, message, at))

    def on_conversation_read(self, event: ConversationRead) -> None:
        """Continue a stored conversation, unless a reply was started in the meantime."""
        if event.conversation is not None and self.chat.resume(event.conversation):
            self.chat_screen.show_conversation()
        if event.message is not None:
            # Rows have positions only after the layout.
            self.call_after_refresh(self.chat_screen.show_message, event.message, event.at)

    def action_settings(self, wanted: str = "") -> None:
        """All settings, or those that mention something."""
        from ds4chat.tui.settings.screen import SettingsScreen

        self.push_screen(
            SettingsScreen(
                self.settings, self.config_path, self._sources, wanted, from_sources=self._from_sources
            )
        )

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
            self.notify(f"The theme is {name}. /save keeps it.", markup=False)

    def action_log(self) -> None:
        """The engine's log."""
        from ds4chat.tui.log.screen import LogScreen

        if not isinstance(self.screen, LogScreen):
            self.push_screen(LogScreen(self.log_path))

    def action_compare(self, argument: str = "") -> None:
        """Answer the last prompt by turns under two settings."""
        from ds4chat.tui.compare.comparison import Comparison
        from ds4chat.tui.compare.screen import CompareScreen
        from ds4chat.tui.compare.sides import sides_of

        request, loaded = last_request(self.chat), self.chat.loaded
        if request is None or loaded is None or self.chat.state != "ready":
            raise CommandError("There is no prompt to compare settings with, or the engine is not ready.")
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
        """Show the token picked in the explorer, which is on top of the chat."""
        self.chat_screen.token_picked(event)

    def on_tuning_changed(self, event: TuningChanged) -> None:
        """The explorer applies its what-if."""
        self.chat_screen.retune(event.tuning)

    def action_about(self) -> None:
        """Versions, the machine, the model, places, licences."""
        from ds4chat.tui.help.about import AboutScreen

        places = (("Settings", self.config_path), ("Data", paths.folder("data")), ("Log", self.log_path))
        self.push_screen(AboutScreen(places, self.chat.loaded))

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
        self.chat.abandon()
        self.parting = self.chat.recorder.close()

    async def _shutdown(self) -> None:
        await super()._shutdown()
        self._left = True
        self._leave_in_time(self.return_code or 0)


def run(
    settings: Settings,
    loaded: LoadedSettings | None = None,
    store: Recorder | None = None,
    *,
    go_on: bool = False,
) -> int:
    """Open the chat; the exit code. ``loaded``: the settings with their problems. ``go_on``: open the most
    recent conversation."""
    from ds4chat.store import FILE_NAME, StoreError, open_or_in_memory
    from ds4chat.tui.recorder import StoreRecorder

    problems: list[str] = []
    config_path: Path | None = None
    sources: Mapping[str, Origin] = {}
    if loaded is not None:
        problems = [*map(str, loaded.problems), *loaded.warnings]
        config_path, sources = loaded.config_path, loaded.sources
    if store is None:
        store = StoreRecorder(open_or_in_memory(paths.folder("data") / FILE_NAME))
    latest: int | None = None
    if go_on and isinstance(store, StoreRecorder):
        try:
            latest = store.store.conversations.latest()
            problems += [] if latest else ["There is no conversation to continue, so this is a new one."]
        except StoreError as error:
            problems.append(str(error))
    app = ChatApp(settings, store=store, config_path=config_path, problems=problems, sources=sources)
    app.first_conversation = latest
    try:
        code = app.run()
    finally:
        app.chat.engine.close()
    if app.parting:
        print(app.parting, file=sys.stderr)
    return app.return_code or code or 0
