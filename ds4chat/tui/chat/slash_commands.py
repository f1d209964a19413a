"""The slash commands: each row of the table has a handler here, or an action of the app."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ds4chat.engine import events
from ds4chat.engine.from_settings import changed
from ds4chat.files import open_regular, user_path
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import read_header
from ds4chat.models.kinds import kind_of
from ds4chat.models.pairing import EMBEDDED, check_pair, check_target
from ds4chat.settings.schema import BY_KEY
from ds4chat.settings.validate import SettingError, check
from ds4chat.store import StoreError
from ds4chat.store.entities import title_of
from ds4chat.tui.chat.reading import BUSY
from ds4chat.tui.chat.screen import ChatScreen, Host
from ds4chat.tui.command_table import BY_NAME, CommandError, Parsed, parse
from ds4chat.tui.conversation import Conversation, UserTurn
from ds4chat.tui.kit.charts import shown_value
from ds4chat.tui.kit.figures import grouped
from ds4chat.tui.panels.knobs import depth_bound, set_value
from ds4chat.tui.prompt.files import FileError, quoted, read_text
from ds4chat.tui.transcript.pieces import from_last

T = TypeVar("T")


class ChatCommands:
    """Runs typed commands, and reports mistakes in a sentence.

    /NAME is done by ``do_NAME``, called with what follows it. Where there is no such method, it is done by
    ``action_NAME`` of the chat screen or the app, called with what follows, if anything does.
    """

    def __init__(self, screen: ChatScreen, host: Host) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._host = host

    def run(self, text: str) -> bool:
        """Run the line; False if it failed, which was then reported."""
        try:
            self._do(parse(text))
        except (CommandError, SettingError, FileError) as error:
            self._screen.notify(str(error), severity="warning")
            return False
        return True

    def request(self, text: str) -> None:
        """Run a command; one that lacks the argument that it needs is put into the prompt."""
        name, _, argument = text.removeprefix("/").partition(" ")
        if BY_NAME[name].needs_argument and not argument:
            self._screen.prompt.begin(f"{text} ")
        else:
            self._screen.run_command(text)

    def _do(self, parsed: Parsed) -> None:
        command, argument = parsed.command, parsed.argument
        handler: Callable[[str], object] | None = getattr(self, f"do_{command.name}", None)
        if command.sets:
            self._set_one(command.sets, argument)
        elif handler is not None:
            handler(argument)
        else:
            self._run_action(command.name, argument)

    def _run_action(self, name: str, argument: str = "") -> None:
        owner = self._screen if hasattr(self._screen, f"action_{name}") else self._screen.app
        action: Callable[..., object] = getattr(owner, f"action_{name}")
        action(*[argument] if argument else [])

    # -- the conversation

    def do_new(self, argument: str) -> None:
        if not self._chat.new():
            raise CommandError("A reply is running. Stop it with Esc first.")
        self._screen.show_conversation()

    def do_continue(self, argument: str) -> None:
        self._screen.action_go_on()

    def do_edit(self, argument: str) -> None:
        self._screen.action_edit(whole_number(argument))

    def do_branch(self, argument: str) -> None:
        ways = {"": -1, "back": -1, "forward": 1}
        if argument not in ways:
            raise CommandError("/branch takes back or forward.")
        self._screen.action_version(ways[argument])

    def do_undo(self, argument: str) -> None:
        if argument == "tuning":
            self._screen.action_undo_tuning()
            return
        if argument:
            raise CommandError("/undo takes tuning, or no argument.")
        text = self._chat.undo()
        if text is None:
            raise CommandError(self._screen.busy_with() or "There is nothing to undo.")
        self._screen.show_conversation()
        self._screen.prompt.put_back([text])

    def do_stop(self, argument: str) -> None:
        if not self._screen.stop_reply():
            raise CommandError("No reply, check or comparison is running, and no model is loading.")

    def do_system(self, argument: str) -> None:
        if argument:
            self._chat.set_system("" if argument == "-" else argument)
        now = self._chat.conversation.system
        said = f"System prompt: {now}" if now else "There is no system prompt. /system TEXT sets one."
        if argument and self._chat.conversation.turns:
            said += "\nIt applies from the next prompt on; /retry answers the last one again under it."
        self._screen.transcript.add_note(said)
        self._screen.show_welcome()

    def do_try(self, argument: str) -> None:
        if argument not in ("", "1", "2", "3"):
            raise CommandError("/try takes 1, 2 or 3.")
        self._screen.action_try_starter(int(argument or 1))

    def do_think(self, argument: str) -> None:
        self._set_thinking(True)

    def do_nothink(self, argument: str) -> None:
        self._set_thinking(False)

    def _set_thinking(self, on: bool) -> None:
        """Let the model think from the next reply on, or not."""
        self._host.change(think=on)
        self._screen.notify("The model thinks first, if it can." if on else "The model answers at once.")

    def do_read(self, argument: str) -> None:
        def insert(text: str) -> None:
            lines = text.rstrip().count("\n") + 1
            self._screen.prompt.text_field.insert_folded(quoted(argument, text), Path(argument).name, lines)

        self._in_worker(f"/read {argument}", lambda: read_text(argument), insert)

    def do_check(self, argument: str) -> None:
        if not self._chat.replay():
            raise CommandError(BUSY.get(self._chat.state, "There is no reply to check yet."))
        self._screen.notify("Decoding the last reply again without speculation. Esc stops it.")

    def do_copy(self, argument: str) -> None:
        code = argument == "code" or argument.startswith("code ")
        number = whole_number(argument.removeprefix("code").strip() if code else argument)
        turns = self._chat.conversation.turns
        piece = from_last(turns, number, code=code)
        if piece is None and from_last(turns, 1, code=code) is None:
            raise CommandError(f"There is no {'code block' if code else 'reply'} to copy.")
        if piece is None:
            raise CommandError(f"There are fewer {'code blocks' if code else 'replies'}. 1 is the last.")
        self._screen.copy_piece(piece)

    def do_unqueue(self, argument: str) -> None:
        if not self._chat.queue:
            raise CommandError("No prompt waits.")
        self._chat.queue.clear()
        self._screen.show_queue()

    def do_export(self, argument: str) -> None:
        chat, screen = self._chat, self._screen
        conversation = chat.conversation
        if not argument:
            if not conversation.turns:
                raise CommandError("There is no conversation to export yet.")
            screen.prompt.text_field.put(f"/export {proposed_name(conversation)}")
            screen.prompt.text_field.focus()
            return
        path = user_path(argument)
        self._in_worker(
            f"/export {argument}",
            lambda: chat.recorder.export(conversation, path),
            lambda _: screen.notify(f"Written to {path.absolute()}."),
        )

    def do_drop(self, argument: str) -> None:
        number = int(argument) if argument.isascii() and argument.isdigit() else -1
        prompts = sum(isinstance(turn, UserTurn) for turn in self._chat.conversation.turns)
        if not 0 <= number < max(1, prompts):
            raise CommandError(
                f"/drop takes a number from 0 to {prompts - 1}: how many are left out."
                if prompts > 1
                else "There is nothing to leave out: the model always gets the last prompt."
            )
        self._chat.conversation.dropped = number
        one = "The oldest prompt and its reply are" if number == 1 else f"The oldest {number} prompts are"
        self._screen.transcript.add_note(
            f"{one} left out of what the model gets from the next prompt on; they stay here. /drop 0 sends "
            "all again."
            if number
            else "The model gets the whole conversation again."
        )

    def do_preset(self, argument: str) -> None:
        presets = self._host.settings.presets
        if not presets:
            raise CommandError("There is no preset yet: s in the Tuning panel saves one.")
        if not argument:
            self._screen.notify(f"Presets: {', '.join(sorted(presets))}.")
            return
        if argument not in presets:
            raise CommandError(f"There is no preset {argument}. Presets: {', '.join(sorted(presets))}.")
        tuning = changed(self._chat.tuning, presets[argument])
        if tuning == self._chat.tuning:
            self._screen.legend_row.say(f"the settings are those of {argument} already")
        self._screen.retune(tuning)

    def _in_worker(self, line: str, work: Callable[[], T], then: Callable[[T], object]) -> None:
        """Run ``work``, which may wait for a disk or a network, in a thread, and pass its result on. If it
        fails, that is reported, and the line is put back into the prompt."""
        screen = self._screen

        async def run() -> None:
            try:
                result = await asyncio.to_thread(work)
            except (CommandError, FileError, StoreError) as error:
                screen.prompt.refuse(line, str(error))
            else:
                then(result)

        screen.run_worker(run(), group="files", exit_on_error=False)

    # -- models and speculation

    def do_model(self, argument: str) -> None:
        if not argument:
            self._run_action("models")
            return
        if argument == "demo":
            self._run_action("load_demo")
            return
        path = user_path(argument)
        self._in_worker(
            f"/model {argument}",
            lambda: _check_model(path, argument),
            lambda _: self._host.load(model=str(path), mtp="", demo=False, server=""),
        )

    def do_get(self, argument: str) -> None:
        self._run_action("models", argument)

    def do_mtp(self, argument: str) -> None:
        tuning = self._chat.tuning
        if argument in ("", "on", "off"):
            if not argument or (argument == "off") != (tuning.depth == 0):
                self._screen.action_step("pause", 1)
            return
        if argument == "lookup":
            self._draft_with(lookup=True)
        elif argument == "none":
            self._host.load(**self._loaded(), mtp="", lookup=False, demo=False)
        else:
            support = EMBEDDED if argument == EMBEDDED else str(user_path(argument))
            command = self._chat.load_command
            self._in_worker(
                f"/mtp {argument}",
                lambda: _check_support(command, support, argument),
                lambda _: self._draft_with(**self._loaded(), mtp=support, demo=False),
            )

    def _draft_with(self, **changes: Any) -> None:
        """Load another drafter, which ends a pause."""
        if self._chat.tuning.depth == 0:
            self._screen.action_step("pause", 1)
        self._host.load(**changes)

    def do_reload(self, argument: str) -> None:
        self._host.load(**self._loaded())

    def _loaded(self) -> dict[str, str]:
        """The setting that names the model in use; empty before a load, and for the demo."""
        command = self._chat.load_command
        return {"model": command.model} if command else {}

    def do_set(self, argument: str) -> None:
        key, _, value = argument.partition(" ")
        if not value.strip():
            raise CommandError("/set takes a setting and its value, as in /set top-p 0.9.")
        self._set_one(key.lstrip("-"), value.strip())

    def _set_one(self, key: str, raw: str) -> None:
        """Set a live setting, if a value is given; one that does not change is shown."""
        before = self._chat.tuning
        tuning = set_value(before, key, raw) if raw else before
        self._screen.retune(tuning)
        if tuning == before:
            option = BY_KEY[key]
            bound = depth_bound(tuning, self._chat.loaded) if option.tuning == "depth" else ""
            value = shown_value(getattr(tuning, option.tuning), option)
            self._screen.legend_row.say(bound or f"{option.short} is {value}")

    def do_ctx(self, argument: str) -> None:
        if not argument:
            used = self._screen.stats.context
            room = self._chat.loaded.n_ctx if self._chat.loaded else 0
            self._screen.notify(
                "The server does not say how many tokens the context holds."
                if used is None
                else f"The context holds {used:,} of {grouped(room or None)} tokens."
            )
            return
        self._host.load(ctx_size=check(BY_KEY["ctx-size"], argument, "chat"))

    # -- the screen

    def do_view(self, argument: str) -> None:
        if argument not in ("", "tokens", "markdown"):
            raise CommandError("/view takes tokens or markdown.")
        if not argument or (argument == "markdown") != self._screen.transcript.markdown:
            self._screen.action_toggle_view()

    def do_panels(self, argument: str) -> None:
        self._screen.action_toggle_panels()

    def do_report(self, argument: str) -> None:
        from ds4chat.tui.help.report import report

        chat, app = self._chat, self._screen.app
        last = chat.conversation.last_reply
        settings, state = self._host.settings, chat.state

        def copy(text: str) -> None:
            app.copy_to_clipboard(text)
            self._screen.notify(
                "Copied a report: paste it into the issue. It holds no text of a conversation."
            )

        self._in_worker(
            "/report",
            lambda: report(settings, chat.loaded, last.stats if last else None, chat.session, state),
            copy,
        )

    def do_quit(self, argument: str) -> None:
        self._screen.app.exit()


def whole_number(argument: str) -> int:
    """A number counted from the last, which is 1 and the default. Raises CommandError."""
    if argument and not (argument.isascii() and argument.isdigit() and int(argument) > 0):
        raise CommandError(f"{argument} is not a number: 1 is the last, 2 the one before.")
    return int(argument or 1)


def proposed_name(conversation: Conversation) -> str:
    """A file name from the words of a conversation's title or first prompt."""
    first = next((turn.text for turn in conversation.turns if isinstance(turn, UserTurn)), "")
    words = re.findall(r"\w+", conversation.title or title_of(first))
    return f"{'-'.join(words).lower()[:60].strip('-') or 'conversation'}.md"


def _check_model(path: Path, name: str) -> None:
    """Raise CommandError if the model at ``path`` cannot be used, before the loaded one is unloaded."""
    _try_to_open(path, name, "Give the path of a .gguf model, or use /model without one.")
    try:
        check_target(path)
    except ModelFileError as error:
        raise CommandError(str(error)) from None


def _check_support(loaded: events.Load | None, support: str, name: str) -> None:
    """Raise CommandError if ``support``, a path or "embedded", cannot draft for the loaded model, before the
    drafter in use is unloaded."""
    if support != EMBEDDED:
        _try_to_open(Path(support), name, "/mtp takes on, off, embedded, lookup, none or a file.")
    if loaded is None or not loaded.model:
        return  # nothing is unloaded; the load reports the missing model
    try:
        target = check_target(loaded.model)
        if support == EMBEDDED or not (loaded.convert and kind_of(read_header(support)).converts):
            check_pair(target, support)
    except ModelFileError as error:
        raise CommandError(str(error)) from None


def _try_to_open(path: Path, name: str, advice: str) -> None:
    """Raise CommandError if the file at ``path`` cannot be read, before the loaded model is unloaded for
    it."""
    try:
        open_regular(path).close()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise CommandError(f"{name} is not a file. {advice}") from None
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}. {advice}") from None
