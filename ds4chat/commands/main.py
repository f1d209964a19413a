"""The command line: options become settings, and settings go to the chat, a one shot or a command.

Nothing heavy is imported before it is known to be needed: ``--version`` and ``-h`` must answer at once.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ds4chat import __version__
from ds4chat.commands.arguments import USAGE_ERROR, Parser, UsageError, add_settings, checked
from ds4chat.commands.ds4_differences import help_text
from ds4chat.commands.guard import supervised
from ds4chat.commands.options import BenchOptions, Shot
from ds4chat.settings.load import Loaded, load
from ds4chat.settings.paths import FolderError
from ds4chat.settings.schema import Option
from ds4chat.settings.validate import nearest
from ds4chat.terminal import takes_escapes
from ds4chat.text import one_line, printable, printable_streams

RUN_ERROR = 1
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended."""

PARALLEL = Option(
    "parallel", "int", 1, "Prompts answered at once in one batched context.", "", low=1, high=256
)

USAGE = """\
ds4chat [options]                 chat
       ds4chat [options] -p TEXT         one reply on stdout
       ds4chat COMMAND [options]         one of the commands below"""

DESCRIPTION = """\
A terminal chat on llama.cpp that shows what multi-token prediction (MTP) does,
token by token, and lets you tune it while it runs.

Commands (ds4chat COMMAND -h says more):
  inspect FILE [SUPPORT]        what a GGUF is, and whether two of them pair
  bench                         measure whether MTP pays here, and what to set
  check                         decode a reply with and without MTP and compare
  convert-mtp MAIN SUPPORT OUT  rewrite ds4's support file for llama.cpp
  logs                          list, show, search, export, import conversations
  config                        show, check and write the settings"""

PRECEDENCE = """\
Precedence: built-in defaults < config file < environment < command line;
DS4_MTP_MIN_MARGIN wins over all. Every option has the same name in the settings
file: ds4chat config defaults prints it."""


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
    except UsageError as error:
        return _tell(str(error), USAGE_ERROR)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone. What is left in the buffer has nowhere to go, and must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except FolderError as error:
        return _tell(str(error), RUN_ERROR)
    except OSError as error:
        return _tell(_system_error(error), RUN_ERROR)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a sentence, and the trace in a file
        return _tell(_record(error), RUN_ERROR)


def _dispatch(argv: list[str], *, own_process: bool) -> int:
    """``own_process``: nothing else runs in this process, so that what loads a model may be forked off."""
    first = argv[0] if argv else ""
    if first == "help":
        return _dispatch([*argv[1:2], "-h"], own_process=own_process)
    if first in COMMANDS:
        if own_process and first in NATIVE and (code := supervised()) is not None:
            return code
        return COMMANDS[first](argv[1:])
    if first and not first.startswith("-"):
        raise UsageError(_stray(first))
    given, words = chat_parser().read(argv)
    if words:
        raise UsageError(_stray(words[0], put_first=True))
    loaded = _settings(given)
    shot = _shot(given)
    if shot is None:
        return _chat(given, loaded)
    if given.go_on:
        raise UsageError("--continue opens the chat: leave the prompt out.")
    _report(loaded, given.config)
    _need_model(loaded)
    if own_process and (code := supervised()) is not None:
        return code
    from ds4chat.commands.oneshot import run

    return run(loaded.settings, shot)


def _stray(word: str, *, put_first: bool = False) -> str:
    """The sentence for a word that is neither an option nor a command."""
    if word in COMMANDS and put_first:
        return f"The command comes first: ds4chat {word} ..."
    close = nearest(word, COMMANDS)
    hint = f" Did you mean the command {close}?" if close else ""
    return f'"{word}" is no command, and a prompt goes with -p: ds4chat -p "...".{hint} ds4chat -h says more.'


# ---------------------------------------------------------------------------------------- parsers


def chat_parser() -> Parser:
    """The parser of the chat and the one shot."""
    parser = Parser(
        prog="ds4chat", usage=USAGE, description=DESCRIPTION, epilog=f"{PRECEDENCE}\n\n{help_text()}"
    )
    parser.put(
        parser.about,
        "--version",
        action="version",
        version=f"ds4chat {__version__}",
        help="Show the version and leave.",
    )
    parser.put(
        parser.about,
        "--continue",
        dest="go_on",
        action="store_true",
        help="Open the chat with the conversation that was written to last. (-c is the context length.)",
    )
    shot = parser.add_argument_group("One shot")
    _add_prompt(parser, shot)
    parser.put(
        shot,
        "--show-thinking",
        action="store_true",
        help="The model's thinking on stderr. Stdout holds the answer alone.",
    )
    parser.put(
        shot,
        "--prompts-file",
        metavar="FILE",
        help="Answer every prompt of FILE, without MTP: one a line, or JSON strings, one a line, in a .jsonl "
        "file. Each has a context of -c tokens, without -c of 4096 at most.",
    )
    parser.put(
        shot,
        "--parallel",
        metavar="N",
        type=checked(PARALLEL),
        help=f"{PARALLEL.help} [with --prompts-file; 1 to 256; default 1]",
    )
    _add_settings(parser)
    return parser


def _add_prompt(parser: Parser, group: Any) -> None:
    parser.put(group, "-p", "--prompt", metavar="TEXT", help="The prompt; a pipe's text is put after it.")
    parser.put(
        group, "--prompt-file", metavar="FILE", help="The prompt as a UTF-8 file; - is standard input."
    )
    parser.put(group, "--json", action="store_true", help="One JSON object on stdout instead of the text.")
    parser.put(group, "--raw", action="store_true", help="The prompt as it stands, without chat template.")
    parser.put(group, "--ignore-eos", action="store_true", help="Go on past end tokens.")


def _add_settings(parser: Parser) -> None:
    parser.put(parser.about, "--config", metavar="FILE", help="Settings file, in the place of your own.")
    add_settings(parser)


def bench_parser() -> Parser:
    """The parser of ``bench``."""
    parser = Parser(
        prog="ds4chat bench",
        usage="ds4chat bench -m FILE [--mtp [FILE]] [options]",
        description="Measure plain decoding, every depth and auto on several kinds of text, and say\n"
        "whether MTP pays on this machine and what to set. A reply has at most 128 tokens\n"
        "(64 with --quick), or as many as -n says; where time is short, fewer.",
    )
    bench = parser.add_argument_group("Bench")
    parser.put(bench, "--json", action="store_true", help="The result as JSON on stdout.")
    parser.put(
        bench,
        "--save",
        nargs="?",
        const="",
        metavar="FILE",
        help="Save the result as JSON to FILE, or without FILE into the data folder.",
    )
    parser.put(bench, "--quick", action="store_true", help="A rough answer in a short time.")
    parser.put(bench, "--plot", action="store_true", help="Draw the result with block characters, too.")
    parser.put(
        bench,
        "--compare",
        metavar="URL",
        default="",
        help="Measure a llama.cpp server that runs the same model alongside.",
    )
    _add_settings(parser)
    return parser


def check_parser() -> Parser:
    """The parser of ``check``."""
    parser = Parser(
        prog="ds4chat check",
        usage="ds4chat check -m FILE [--mtp [FILE]] [-p TEXT] [options]",
        description="Decode a reply with MTP, replay it without, and show the first difference.",
    )
    _add_prompt(parser, parser.add_argument_group("Prompt"))
    _add_settings(parser)
    return parser


def inspect_parser() -> Parser:
    """The parser of ``inspect``."""
    parser = Parser(
        prog="ds4chat inspect",
        usage="ds4chat inspect FILE [SUPPORT] [--json]\n       ds4chat inspect --demo [--json]",
        description="Say what a GGUF file is, what it can be used for, and whether SUPPORT pairs with\n"
        'it; "embedded" is the NextN block inside FILE. Reads headers only.',
    )
    parser.put(parser.about, "--demo", action="store_true", help="Inspect the demo's files.")
    parser.put(parser.about, "--json", action="store_true", help="JSON on stdout instead of text.")
    return parser


def convert_parser() -> Parser:
    """The parser of ``convert-mtp``."""
    parser = Parser(
        prog="ds4chat convert-mtp",
        usage="ds4chat convert-mtp MAIN SUPPORT OUT [--force]",
        description="Rewrite ds4's support file SUPPORT, which belongs to the model MAIN, as OUT in\n"
        "the layout that llama.cpp takes. No value changes.",
    )
    parser.put(
        parser.about, "--force", action="store_true", help="Put OUT in the place of a file of that name."
    )
    return parser


# ---------------------------------------------------------------------------------------- commands


def _run_inspect(argv: list[str]) -> int:
    given, words = inspect_parser().read(argv)
    if given.demo and words:
        raise UsageError("--demo names the demo's own files: leave FILE out, or leave --demo out.")
    if not given.demo and not 1 <= len(words) <= 2:
        raise UsageError("ds4chat inspect takes FILE and, if you like, SUPPORT; or --demo.")
    model, support = (*words, "", "")[:2]
    from ds4chat.commands.inspect import run

    return run(model, support or None, given.demo, given.json)


def _run_convert(argv: list[str]) -> int:
    given, words = convert_parser().read(argv)
    if len(words) != 3:
        raise UsageError("ds4chat convert-mtp takes three files: MAIN SUPPORT OUT.")
    from ds4chat.models.convert import run

    return run(words[0], words[1], words[2], force=given.force)


def _run_bench(argv: list[str]) -> int:
    given, loaded = _read_command(bench_parser(), argv)
    from ds4chat.commands.bench import run

    return run(loaded.settings, BenchOptions(given.json, given.save, given.quick, given.plot, given.compare))


def _run_check(argv: list[str]) -> int:
    from ds4chat.commands.prompt import prompt_of

    given, loaded = _read_command(check_parser(), argv)
    prompt = prompt_of(given.prompt, given.prompt_file, raw=given.raw, stdin=False)
    from ds4chat.commands.check import run

    return run(loaded.settings, Shot(prompt, json=given.json, raw=given.raw, ignore_eos=given.ignore_eos))


def _run_logs(argv: list[str]) -> int:
    from ds4chat.commands.logs import run

    return run(argv)


def _run_config(argv: list[str]) -> int:
    from ds4chat.commands.config import run

    return run(argv, _theme_problem)


def _theme_problem(name: str) -> str:
    """What is wrong with the name of a theme; "" where the chat would take it. Raises FolderError."""
    from textual.theme import BUILTIN_THEMES

    from ds4chat.settings.paths import folder
    from ds4chat.tui.themes import load_themes, unknown_theme

    themes, _ = load_themes(folder("config") / "themes")
    own = [theme.name for theme in themes]
    return "" if name in own or name in BUILTIN_THEMES else unknown_theme(name, own)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "inspect": _run_inspect,
    "bench": _run_bench,
    "check": _run_check,
    "convert-mtp": _run_convert,
    "logs": _run_logs,
    "config": _run_config,
}


NATIVE = ("bench", "check")
"""Commands that run llama.cpp in this process."""


def _read_command(parser: Parser, argv: list[str]) -> tuple[argparse.Namespace, Loaded]:
    """Options and settings of a command that runs a model and takes no further words."""
    given, words = parser.read(argv)
    if words:
        raise UsageError(f'{parser.prog} takes options only, not "{words[0]}".')
    loaded = _settings(given)
    _report(loaded, given.config)
    _need_model(loaded)
    from ds4chat.settings.logfile import log_to_file

    log_to_file(loaded.settings)
    return given, loaded


# ---------------------------------------------------------------------------------------- parts


def _settings(given: argparse.Namespace) -> Loaded:
    loaded = load(given.settings, Path(given.config) if given.config else None)
    settings = loaded.settings
    if settings.demo and not settings.mtp and loaded.sources["mtp"] != "default":
        # --mtp "" is no support model: the demo's model alone, not the demo, which brings its own.
        from ds4chat.models.demo import demo_model
        from ds4chat.models.errors import ModelFileError

        with suppress(ModelFileError):  # said when it is loaded
            return replace(loaded, settings=replace(settings, demo=False, model=str(demo_model())))
    return loaded


def _shot(given: argparse.Namespace) -> Shot | None:
    """The one shot that the options and a pipe ask for; None is a chat."""
    from ds4chat.commands.prompt import prompt_of, prompts_of

    if given.prompts_file is not None:
        if given.prompt is not None or given.prompt_file is not None:
            raise UsageError("--prompts-file brings its own prompts: leave -p and --prompt-file out.")
        return Shot(
            None,
            json=given.json,
            raw=given.raw,
            ignore_eos=given.ignore_eos,
            show_thinking=given.show_thinking,
            parallel=given.parallel or PARALLEL.default,
            prompts=prompts_of(given.prompts_file),
        )
    if given.parallel is not None:
        raise UsageError("--parallel goes with --prompts-file FILE.")
    prompt = prompt_of(given.prompt, given.prompt_file, raw=given.raw)
    if prompt is not None:
        return Shot(
            prompt,
            json=given.json,
            raw=given.raw,
            ignore_eos=given.ignore_eos,
            show_thinking=given.show_thinking,
        )
    for name in ("json", "raw", "ignore_eos", "show_thinking"):
        if getattr(given, name):
            raise UsageError(f"--{name.replace('_', '-')} goes with a prompt: give one with -p.")
    return None


def _chat(given: argparse.Namespace, loaded: Loaded) -> int:
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        raise UsageError("The chat needs a terminal, and there is none here: give a prompt with -p TEXT.")
    if not takes_escapes(sys.stdout):
        raise UsageError(
            "The chat draws on the whole screen, and this terminal cannot, as TERM says: give a prompt with "
            "-p TEXT, or set TERM to what the terminal is, such as xterm-256color."
        )
    from ds4chat.tui.app import run

    return run(loaded.settings, loaded, go_on=given.go_on)


def _report(loaded: Loaded, named: str | None) -> None:
    """What is wrong with the settings, on stderr; of a file named on the command line, a usage error."""
    if loaded.problems and named:
        raise UsageError("\n".join(map(str, loaded.problems)))
    for sentence in (*loaded.problems, *loaded.warnings):
        print(f"ds4chat: {one_line(sentence)}", file=sys.stderr)


def _need_model(loaded: Loaded) -> None:
    if not (loaded.settings.model or loaded.settings.demo):
        raise UsageError("There is no model: name a GGUF file with -m FILE, or take the demo with --demo.")


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _never_fail_to_encode() -> None:
    """A terminal of a small character set shows "?" for what it lacks, instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _open_closed_streams() -> None:
    """What was closed by who started this is the null device: else the next file that is opened, a model or
    the database, would get the number of a stream and what is written to it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _system_error(error: OSError) -> str:
    """The sentence for an error of the system that no part of ds4chat had one for."""
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}. Change that, or name another place."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"The output could not be written: {reason}. Make room, or send it elsewhere."
    return f"Something could not be read or written: {reason}. Change that and run the command again."


def _tell(text: str, code: int) -> int:
    with suppress(OSError):  # stderr may be full as well
        for line in text.splitlines():
            print(f"ds4chat: {one_line(line)}", file=sys.stderr)
    return code


def _record(error: Exception) -> str:
    """Put an unforeseen error's trace into the log folder; the sentence for the user."""
    import traceback

    from ds4chat.settings.paths import log_dir

    said = f"{type(error).__name__}: {error}".rstrip(".")
    try:
        file = log_dir() / "crash.log"
        trace = printable("".join(traceback.format_exception(error)))
        file.write_text(trace, encoding="utf-8", errors="replace")
    except (OSError, FolderError) as failed:
        return f"An unforeseen error ended this: {said}. Its trace could not be kept: {failed}"
    return f"An unforeseen error ended this: {said}. The trace is in {file}; please report it."


if __name__ == "__main__":
    sys.exit(main())
