"""The table of slash commands, and parsing of typed lines. The chat screen runs them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

Completes = Literal["", "file", "model", "depth", "format", "option", "mtp", "theme"]


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    help: str
    argument: str = ""
    """Its argument, as the help shows it; in brackets if it is optional."""
    aliases: tuple[str, ...] = ()
    completes: Completes = ""
    """The kind of its argument, for completion."""
    action: str = ""
    """Name of the key binding that does the same; empty without one."""
    sets: str = ""
    """Key of the live setting that its argument is a value of; empty without one."""

    @property
    def usage(self) -> str:
        """The command as it is typed."""
        return f"/{self.name} {self.argument}".rstrip()

    @property
    def needs_argument(self) -> bool:
        """The argument is required."""
        return bool(self.argument) and not self.argument.startswith("[")


COMMANDS: tuple[Command, ...] = (
    Command("help", "Keys and commands; with words, those that mention them", "[WORDS]", action="app.help"),
    Command("new", "Begin a new conversation", aliases=("clear",)),
    Command("history", "Stored conversations: find, read, export, continue", action="app.history"),
    Command("retry", "Answer the last prompt again", aliases=("regenerate",), action="chat.retry"),
    Command("continue", "Continue a reply that was cut or stopped", action="chat.go_on"),
    Command("edit", "Edit a prompt in its place: the last one, or the N-th from the last", "[N]"),
    Command(
        "branch",
        "Show the previous or the next version of a reply or a prompt",
        "[back|forward]",
        action="chat.other_version",
    ),
    Command(
        "undo", "Take back the last prompt and its reply; 'tuning': the last change of a setting", "[tuning]"
    ),
    Command(
        "stop", "Stop the reply and keep its text, or a check, a comparison or a load", action="chat.back"
    ),
    Command("model", "Choose the model; load a file, or the demo", "[FILE|demo]", completes="model"),
    Command("get", "Download a model from the Hugging Face hub", "[USER/REPO|WORDS]"),
    Command("reload", "Load the model again, for drafts of the depth set now"),
    Command(
        "mtp",
        "Speculation on, off (paused); or load another drafter: FILE, embedded, lookup, none",
        "[on|off|FILE]",
        completes="mtp",
        action="chat.mtp",
    ),
    Command(
        "draft",
        "Most tokens drafted per step: 1 to 16, or auto",
        "[N|auto]",
        aliases=("depth",),
        completes="depth",
        sets="mtp-draft",
    ),
    Command(
        "margin", "Accept drafts from this probability ratio on; 1 is exact", "[0..1]", sets="mtp-margin"
    ),
    Command(
        "gate",
        "Stop drafting below this lead of the drafter's best logit; 0 is off",
        "[F]",
        sets="mtp-gate",
    ),
    Command("temp", "Temperature; 0 picks the likeliest token", "[F]", sets="temp"),
    Command("preset", "Apply a preset; without a name, list them", "[NAME]"),
    Command("set", "Any setting that may change while a reply runs", "KEY VALUE", completes="option"),
    Command("try", "Send one of three prompts that show what the demo's drafts do", "[1|2|3]"),
    Command("system", "The system prompt of this conversation; '-' removes it", "[TEXT]"),
    Command("think", "Let the model think first"),
    Command("nothink", "Have the model answer at once"),
    Command("read", "Put a text file into the prompt; @FILE in it does the same", "FILE", completes="file"),
    Command("ctx", "Context used; with a number, load again with that length", "[TOKENS]"),
    Command(
        "drop",
        "Leave the oldest N prompts and their replies out of what the model gets; 0 sends all again",
        "N",
    ),
    Command("editor", "Write the prompt in $EDITOR", action="chat.editor"),
    Command("check", "Decode the last reply again without speculation and compare", aliases=("lossless",)),
    Command(
        "compare",
        "Answer the last prompt under two settings in turn: plain, now, a depth, a preset, margin=0.8; only "
        "one is compared with plain",
        "[A] [B]",
    ),
    Command(
        "explore",
        "Judged drafts of this conversation, of a log file, or of a stored conversation",
        "[LOGFILE|NUMBER]",
        completes="file",
        action="app.explore",
    ),
    Command(
        "copy",
        "Copy the last reply as it was written, the N-th from the last, or a code block",
        "[N|code [N]]",
        action="chat.pick",
    ),
    Command("find", "Find words in the conversation", "[WORDS]", action="chat.find"),
    Command(
        "view",
        "Finished replies as tokens or as Markdown",
        "[tokens|markdown]",
        completes="format",
        action="chat.view",
    ),
    Command("panels", "Open or close the panels", action="chat.panels"),
    Command("unqueue", "Drop the prompts that wait"),
    Command("theme", "Choose the colours; with a name, use that theme", "[NAME]", completes="theme"),
    Command("settings", "All settings; with words, those that mention them", "[WORDS]"),
    Command("save", "Save the settings as they are now", action="app.save"),
    Command(
        "export",
        "Write the conversation to a file (.md, .json or .jsonl); without one, a name is proposed",
        "[FILE]",
        completes="file",
    ),
    Command("log", "The log of the engine and of ds4chat", action="app.log"),
    Command("about", "Versions, the machine, the model, places, licences"),
    Command(
        "report", "Copy what an issue report needs: versions, machine, files, settings, figures; no texts"
    ),
    Command("quit", "Leave", aliases=("exit", "q"), action="app.quit"),
)

BY_NAME: dict[str, Command] = {
    name: command for command in COMMANDS for name in (command.name, *command.aliases)
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A typed line: the command it names, and its argument without blanks around it."""

    command: Command
    argument: str


class CommandError(Exception):
    """The line is not a command, lacks its argument or has one that the command does not take; the text
    is a sentence."""


def is_command(text: str) -> bool:
    """The text is a command: one line that begins with a slash and a letter, and is not a path."""
    head = text.split(maxsplit=1)[0] if text.strip() else ""
    return text.startswith("/") and "\n" not in text.strip() and head[1:2].isalpha() and "/" not in head[1:]


def parse(text: str) -> Parsed:
    """The command in a line for which is_command holds. Raises CommandError."""
    head, _, argument = text.strip()[1:].partition(" ")
    command = BY_NAME.get(head.lower())
    if command is None:
        near = difflib.get_close_matches(head.lower(), BY_NAME, n=1, cutoff=0.4)
        hint = f"Did you mean /{near[0]}?" if near else "/help lists them."
        raise CommandError(f"There is no command /{head}. {hint} To send it as text, begin with a blank.")
    argument = argument.strip()
    if command.needs_argument and not argument:
        does = command.help[0].lower() + command.help[1:]
        raise CommandError(f"/{command.name} needs {command.argument} after it: {does}.")
    if argument and not command.argument:
        raise CommandError(
            f"/{command.name} takes no argument: send /{command.name} alone. To send the line as text, "
            "begin with a blank."
        )
    return Parsed(command, argument)


def usage_rows() -> list[tuple[str, str]]:
    """(usage, help) of every command, for the help screen."""
    return [(command.usage, command.help) for command in COMMANDS]
