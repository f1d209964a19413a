"""What the slash commands do on the chat screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ds4chat.engine.from_settings import changed
from ds4chat.files import open_regular, user_path
from ds4chat.settings.validate import SettingError
from ds4chat.store import StoreError
from ds4chat.store.entities import title_of
from ds4chat.tui.chat.command_table import CommandError, parse
from ds4chat.tui.conversation import Conversation, UserTurn
from ds4chat.tui.panels.tuning_steps import set_value
from ds4chat.tui.prompt.files import FileError, quoted, read_text
from ds4chat.tui.themes import unknown_theme
from ds4chat.tui.transcript.pieces import from_last

if TYPE_CHECKING:
    from ds4chat.tui.chat.screen import ChatScreen

T = TypeVar("T")


class ChatCommands:
    """Runs typed commands. What is wrong with one is said in a sentence."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def run(self, text: str) -> bool:
        """Do what the line says; False when it cannot be done, which was then said."""
        try:
            parsed = parse(text)
            handler: Callable[[str], None] = getattr(self, f"_{parsed.command.name}")
            handler(parsed.argument)
        except (CommandError, SettingError, FileError) as error:
            self._screen.notify(str(error), severity="warning", markup=False)
            return False
        return True

    # -- the conversation

    def _new(self, argument: str) -> None:
        if not self._screen.chat.new():
            raise CommandError("A reply is running. Stop it with Esc first.")
        self._screen.show_conversation()

    def _history(self, argument: str) -> None:
        self._screen.chat_app.action_history()

    def _retry(self, argument: str) -> None:
        self._screen.action_retry()

    def _continue(self, argument: str) -> None:
        self._screen.action_go_on()

    def _edit(self, argument: str) -> None:
        self._screen.action_edit(whole_number(argument))

    def _branch(self, argument: str) -> None:
        ways = {"": -1, "back": -1, "forward": 1}
        if argument not in ways:
            raise CommandError("/branch takes back or forward.")
        self._screen.action_version(ways[argument])

    def _undo(self, argument: str) -> None:
        if argument == "tuning":
            self._screen.action_undo_tuning()
            return
        if argument:
            raise CommandError("/undo takes nothing after it, or tuning.")
        text = self._screen.chat.undo()
        if text is None:
            raise CommandError("There is nothing to take back, or a reply is running: Esc stops it.")
        self._screen.show_conversation()
        self._screen.prompt.put_back([text])

    def _stop(self, argument: str) -> None:
        if not self._screen.stop_reply():
            raise CommandError("No reply or check is running, and no model is loading.")

    def _system(self, argument: str) -> None:
        chat = self._screen.chat
        if argument:
            chat.set_system("" if argument == "-" else argument)
        now = chat.conversation.system
        said = f"System prompt: {now}" if now else "There is no system prompt. /system TEXT sets one."
        if argument and chat.conversation.turns:
            said += "\nIt holds from the next prompt on; /retry answers the last one again under it."
        self._screen.transcript.add_note(said)
        self._screen.show_welcome()

    def _think(self, argument: str) -> None:
        self._screen.set_thinking(True)

    def _nothink(self, argument: str) -> None:
        self._screen.set_thinking(False)

    def _read(self, argument: str) -> None:
        def insert(text: str) -> None:
            lines = text.rstrip().count("\n") + 1
            self._screen.prompt.text_field.insert_folded(quoted(argument, text), Path(argument).name, lines)

        self._aside(f"/read {argument}", lambda: read_text(argument), insert)

    def _check(self, argument: str) -> None:
        reply = self._screen.chat.replay()
        if reply is None:
            raise CommandError("There is no finished reply to check, or the engine is not ready.")
        self._screen.notify("Decoding the last reply again without speculation. Esc stops it.")

    def _explore(self, argument: str) -> None:
        self._screen.chat_app.action_explore(argument)

    def _copy(self, argument: str) -> None:
        code = argument == "code" or argument.startswith("code ")
        number = whole_number(argument.removeprefix("code").strip() if code else argument)
        turns = self._screen.chat.conversation.turns
        piece = from_last(turns, number, code=code)
        if piece is None and from_last(turns, 1, code=code) is None:
            raise CommandError(f"There is no {'code block' if code else 'reply'} to copy.")
        if piece is None:
            raise CommandError(f"There are fewer {'code blocks' if code else 'replies'}. 1 is the last.")
        self._screen.copy_piece(piece)

    def _find(self, argument: str) -> None:
        self._screen.find_bar.field.value = argument
        self._screen.action_find()

    def _unqueue(self, argument: str) -> None:
        self._screen.chat.queue.clear()
        self._screen.show_queue()

    def _export(self, argument: str) -> None:
        chat, screen = self._screen.chat, self._screen
        conversation = chat.conversation
        if not argument:
            if not conversation.turns:
                raise CommandError("There is no conversation to write yet.")
            screen.prompt.text_field.put(f"/export {proposed_name(conversation)}")
            screen.prompt.text_field.focus()
            return
        path = user_path(argument)
        self._aside(
            f"/export {argument}",
            lambda: chat.recorder.export(conversation, path),
            lambda _: screen.notify(f"Written to {path.absolute()}.", markup=False),
        )

    def _editor(self, argument: str) -> None:
        self._screen.action_editor()

    def _drop(self, argument: str) -> None:
        number = int(argument) if argument.isascii() and argument.isdigit() else -1
        prompts = sum(isinstance(turn, UserTurn) for turn in self._screen.chat.conversation.turns)
        if not 0 <= number < max(1, prompts):
            raise CommandError(
                f"/drop takes a number from 0 to {max(0, prompts - 1)}: how many are left out."
            )
        self._screen.chat.conversation.dropped = number
        one = "The oldest prompt and its reply are" if number == 1 else f"The oldest {number} prompts are"
        self._screen.transcript.add_note(
            f"{one} left out of what the model gets from the next prompt on; they stay here. /drop 0 sends "
            "all again."
            if number
            else "The model gets the whole conversation again."
        )

    def _preset(self, argument: str) -> None:
        presets = self._screen.chat_app.settings.presets
        if not presets:
            raise CommandError("There is no preset yet: s in the Tuning panel saves one.")
        if not argument:
            self._screen.notify(f"Presets: {', '.join(sorted(presets))}.", markup=False)
            return
        if argument not in presets:
            raise CommandError(f"There is no preset {argument}. There is: {', '.join(sorted(presets))}.")
        self._screen.retune(changed(self._screen.chat.tuning, presets[argument]))
        self._screen.say_tuning()

    def _aside(self, line: str, work: Callable[[], T], then: Callable[[T], object]) -> None:
        """Do ``work``, which may wait for a disk or a network, in a thread, and go on with what it gives.
        Where it fails, that is said, and the line stands in the prompt again."""
        screen = self._screen

        def run() -> None:
            try:
                result = work()
            except (CommandError, FileError, StoreError) as error:
                screen.notify(str(error), severity="warning", markup=False)
                screen.app.call_from_thread(screen.prompt.put_back, [line])
            else:
                screen.app.call_from_thread(then, result)

        screen.run_worker(run, thread=True, group="files", exit_on_error=False)

    # -- models and speculation

    def _model(self, argument: str) -> None:
        if not argument:
            self._screen.chat_app.action_models()
            return
        path = user_path(argument)
        self._aside(
            f"/model {argument}",
            lambda: _try_to_open(path, argument, "Give the path of a .gguf model, or /model alone."),
            lambda _: self._screen.load(
                replace(self._screen.chat_app.settings, model=str(path), mtp="", demo=False)
            ),
        )

    def _mtp(self, argument: str) -> None:
        tuning = self._screen.chat.tuning
        if argument in ("", "on", "off"):
            if not argument or (argument == "off") != (tuning.depth == 0):
                self._screen.action_toggle_mtp()
            return
        settings = self._screen.chat_app.settings
        if argument == "lookup":
            settings = replace(settings, lookup=True)
        elif argument == "none":
            settings = replace(settings, mtp="", lookup=False, demo=False, model=self._loaded_path())
        elif argument == "embedded":
            settings = replace(settings, mtp="embedded", demo=False, model=self._loaded_path())
        else:
            path = user_path(argument)
            self._aside(
                f"/mtp {argument}",
                lambda: _try_to_open(path, argument, "/mtp takes on, off, embedded, lookup, none or a file."),
                lambda _: self._screen.load(
                    replace(
                        self._screen.chat_app.settings, mtp=str(path), demo=False, model=self._loaded_path()
                    )
                ),
            )
            return
        self._screen.load(settings)

    def _reload(self, argument: str) -> None:
        self._screen.load(replace(self._screen.chat_app.settings, model=self._loaded_path()))

    def _loaded_path(self) -> str:
        command = self._screen.chat.load_command
        return command.model if command else self._screen.chat_app.settings.model

    def _draft(self, argument: str) -> None:
        self._set_one("mtp-draft", argument)

    def _margin(self, argument: str) -> None:
        self._set_one("mtp-margin", argument)

    def _gate(self, argument: str) -> None:
        self._set_one("mtp-gate", argument)

    def _temp(self, argument: str) -> None:
        self._set_one("temp", argument)

    def _set(self, argument: str) -> None:
        key, _, value = argument.partition(" ")
        if not value.strip():
            raise CommandError("/set takes a setting and its value, as in /set top-p 0.9.")
        self._set_one(key.lstrip("-"), value.strip())

    def _set_one(self, key: str, raw: str) -> None:
        tuning = self._screen.chat.tuning
        if not raw:
            self._screen.say_tuning()
            return
        self._screen.retune(set_value(tuning, key, raw))
        if key != "mtp-draft" or not self._screen.say_depth_bound():
            self._screen.say_tuning()

    def _ctx(self, argument: str) -> None:
        chat = self._screen.chat
        if not argument:
            used = self._screen.stats.context_used
            room = chat.loaded.n_ctx if chat.loaded else 0
            self._screen.notify(f"The context holds {used:,} of {room:,} tokens.")
            return
        from ds4chat.settings.schema import BY_KEY
        from ds4chat.settings.validate import check

        size = check(BY_KEY["ctx-size"], argument)
        self._screen.load(replace(self._screen.chat_app.settings, ctx_size=size))

    # -- the screen

    def _view(self, argument: str) -> None:
        if argument not in ("", "tokens", "markdown"):
            raise CommandError("/view takes tokens or markdown.")
        if not argument or (argument == "markdown") != self._screen.transcript.markdown:
            self._screen.action_toggle_view()

    def _panels(self, argument: str) -> None:
        self._screen.action_toggle_panels()

    def _help(self, argument: str) -> None:
        self._screen.chat_app.action_help(argument)

    def _theme(self, argument: str) -> None:
        app = self._screen.chat_app
        if not argument:
            app.action_themes()
            return
        if app.get_theme(argument) is None:
            raise CommandError(unknown_theme(argument, app.theme_names))
        app.theme = argument
        app.settings = replace(app.settings, theme=argument)
        self._screen.notify(f"The theme is {argument}. /save keeps it.", markup=False)

    def _settings(self, argument: str) -> None:
        self._screen.chat_app.action_settings(argument)

    def _save(self, argument: str) -> None:
        self._screen.chat_app.action_save()

    def _log(self, argument: str) -> None:
        self._screen.chat_app.action_log()

    def _about(self, argument: str) -> None:
        self._screen.chat_app.action_about()

    def _quit(self, argument: str) -> None:
        self._screen.app.exit()


def whole_number(argument: str) -> int:
    """A number counted from the last, which is 1 and what no argument means. Raises CommandError."""
    if argument and not (argument.isascii() and argument.isdigit() and int(argument) > 0):
        raise CommandError(f"{argument} is no number: 1 is the last, 2 the one before.")
    return int(argument or 1)


def proposed_name(conversation: Conversation) -> str:
    """A file name made of the words of a conversation's title or first prompt."""
    first = next((turn.text for turn in conversation.turns if isinstance(turn, UserTurn)), "")
    words = re.findall(r"\w+", conversation.title or title_of(first))
    return f"{'-'.join(words).lower()[:60].strip('-') or 'conversation'}.md"


def _try_to_open(path: Path, name: str, advice: str) -> None:
    """Raise CommandError where no file can be read at ``path``, before a loaded model is given up for it."""
    try:
        open_regular(path).close()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise CommandError(f"{name} is no file. {advice}") from None
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}. {advice}") from None
