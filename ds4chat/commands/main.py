"""The command line: dispatch to a command, and an exit code and a sentence for every way in which it ends.

Imports are deferred until they are needed: ``--version`` and ``-h`` must answer at once.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module

from ds4chat.commands import chat
from ds4chat.commands.arguments import USAGE_ERROR, UsageError
from ds4chat.commands.guard import supervised
from ds4chat.commands.running import INTERRUPTED, RUN_ERROR, say
from ds4chat.errors import UserFacingError
from ds4chat.settings.validate import nearest
from ds4chat.text import one_line, printable, printable_streams

BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended."""


@dataclass(frozen=True, slots=True)
class Command:
    """A module of ds4chat.commands whose ``main`` takes the arguments and returns the exit code."""

    module: str
    does: str
    takes: str = ""
    native: bool = False
    """It runs llama.cpp in this process."""


COMMANDS: dict[str, Command] = {
    "get": Command("get", "download or find a model on the Hugging Face hub", "USER/REPO[:QUANT]"),
    "inspect": Command("inspect", "what a file or server is, and which files pair", "FILE [SUPPORT]"),
    "bench": Command("bench", "measure whether MTP pays here, and what to set", native=True),
    "check": Command("check", "decode a reply with and without MTP and compare", native=True),
    "convert-mtp": Command("convert", "rewrite ds4's support file for llama.cpp", "MAIN SUPPORT OUT"),
    "rpc-server": Command("rpc_server", "lend this machine to a ds4chat elsewhere", native=True),
    "logs": Command("logs", "list, show, search, export, import conversations"),
    "config": Command("config", "show, check and write the settings"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ds4chat with these arguments (default: the process's); the exit code. Raises nothing."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        _open_closed_streams()
    _never_fail_to_encode()
    with printable_streams():
        return _run(arguments, own_process=argv is None)


def _run(arguments: list[str], *, own_process: bool) -> int:
    try:
        try:
            code = _dispatch(arguments, own_process=own_process)
        except SystemExit as leave:  # argparse has shown a help or the version
            code = leave.code if isinstance(leave.code, int) else 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone. Drop what is left in the buffer, so that flushing it does not fail again at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except UserFacingError as error:
        return _tell(str(error), USAGE_ERROR if isinstance(error, UsageError) else RUN_ERROR)
    except OSError as error:
        return _tell(_system_error(error), RUN_ERROR)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a sentence, and the trace in a file
        return _tell(_record(error), RUN_ERROR)


def _dispatch(argv: list[str], *, own_process: bool) -> int:
    """``own_process``: nothing else runs in this process, so that it may fork before it loads a model."""
    first = argv[0] if argv else ""
    if first == "help":
        return _dispatch([*argv[1:2], "-h"], own_process=own_process)
    if command := COMMANDS.get(first):
        if own_process and command.native and (code := supervised()) is not None:
            return code
        return int(import_module(f"ds4chat.commands.{command.module}").main(argv[1:]))
    if first and not first.startswith("-"):
        raise UsageError(_stray(first))
    given, words = chat.parser(_command_lines()).read(argv)
    if words:
        raise UsageError(_stray(words[0], put_first=True))
    return chat.run(given, own_process=own_process)


def _command_lines() -> str:
    lines = [f"  {f'{name} {command.takes}':30}{command.does}" for name, command in COMMANDS.items()]
    return "\n".join(["Commands (ds4chat COMMAND -h says more):", *lines])


def _stray(word: str, *, put_first: bool = False) -> str:
    """The sentence for a word that is neither an option nor a command."""
    if word in COMMANDS and put_first:
        return f"The command comes first: ds4chat {word} ..."
    close = nearest(word, COMMANDS)
    hint = f" Did you mean the command {close}?" if close else ""
    return f'"{word}" is not a command, and a prompt needs -p: ds4chat -p "...".{hint} ds4chat -h says more.'


def _never_fail_to_encode() -> None:
    """Print "?" for characters that the terminal's character set lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that is closed: otherwise the next file opened, a model
    or the database, would get a stream's number and what is written to it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _system_error(error: OSError) -> str:
    """The sentence for an OSError that no part of ds4chat handled."""
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}. Change that, or name another place."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"The output could not be written: {reason}. Make room, or send it elsewhere."
    return f"Something could not be read or written: {reason}. Change that and run the command again."


def _tell(text: str, code: int) -> int:
    with suppress(OSError):  # stderr may be full as well
        for line in text.splitlines():
            say(one_line(line))
    return code


def _record(error: Exception) -> str:
    """Write an unexpected error's traceback to the log folder; the sentence for the user."""
    import traceback

    from ds4chat.settings.paths import FolderError, made_folder

    said = f"{type(error).__name__}: {error}".rstrip(".")
    try:
        file = made_folder("log") / "crash.log"
        trace = printable("".join(traceback.format_exception(error)))
        file.write_text(trace, encoding="utf-8", errors="replace")
    except (OSError, FolderError) as failed:
        return f"Unexpected error: {said}. Its traceback could not be saved: {failed}"
    return f"Unexpected error: {said}. The traceback is in {file}; please report it."


if __name__ == "__main__":
    sys.exit(main())
