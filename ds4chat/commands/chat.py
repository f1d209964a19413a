"""``ds4chat`` without a command: the chat, or one reply if a prompt is given."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ds4chat.commands.arguments import Parser, UsageError, add_hub_model, add_prompt, add_settings, checked
from ds4chat.commands.ds4_differences import help_text
from ds4chat.commands.guard import supervised
from ds4chat.commands.options import OneShotOptions
from ds4chat.commands.running import need_model, report, settings_of
from ds4chat.commands.version import show as show_version
from ds4chat.settings.load import LoadedSettings
from ds4chat.settings.schema import Option
from ds4chat.text import supports_escapes

PARALLEL = Option(
    "parallel", "int", 1, "Prompts answered at once in one batched context.", "", low=1, high=256
)

USAGE = """\
ds4chat [options]                 chat
       ds4chat [options] -p TEXT         one reply on stdout
       ds4chat COMMAND [options]         one of the commands below"""

ABOUT = """\
A terminal chat on llama.cpp that shows what multi-token prediction (MTP) does,
token by token, and lets you tune it while it runs."""

PRECEDENCE = """\
Precedence: built-in defaults < config file < environment < command line;
DS4_MTP_MIN_MARGIN wins over all. Every option has the same name in the settings
file: ds4chat config defaults prints it."""


def parser(commands: str) -> Parser:
    """The parser of the chat and the one shot; ``commands``: one line for each command."""
    made = Parser(
        prog="ds4chat",
        usage=USAGE,
        description=f"{ABOUT}\n\n{commands}",
        epilog=f"{PRECEDENCE}\n\n{help_text()}",
    )
    made.general.add_argument(
        "--version",
        action="store_true",
        help="Show the version and what llama.cpp was built for, and exit.",
    )
    made.general.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="Open the chat with the most recent conversation. (-c is the context length.)",
    )
    shot = made.add_argument_group("One shot")
    add_prompt(shot)
    shot.add_argument(
        "--show-thinking",
        action="store_true",
        help="Write the model's thinking to stderr. Only the answer goes to stdout.",
    )
    shot.add_argument(
        "--prompts-file",
        metavar="FILE",
        help="Answer every prompt of FILE, without MTP: one per line, or one JSON string per line in a "
        ".jsonl file. Each has a context of -c tokens, or without -c of at most 4096.",
    )
    shot.add_argument(
        "--parallel",
        metavar="N",
        type=checked(PARALLEL),
        help=f"{PARALLEL.help} [with --prompts-file; 1 to 256; default 1]",
    )
    add_hub_model(made)
    add_settings(made)
    return made


def run(given: argparse.Namespace, *, own_process: bool) -> int:
    """Open the chat, or answer the given prompt; the exit code. ``own_process``: nothing else runs in this
    process, so that it may fork before it loads a model. Raises UsageError."""
    if given.version:
        return show_version(own_process=own_process)
    loaded = settings_of(given)
    one_shot = _one_shot(given)
    if one_shot is None:
        return _chat(loaded, go_on=given.go_on)
    if given.go_on:
        raise UsageError("--continue opens the chat: leave the prompt out.")
    report(loaded, given.config)
    need_model(loaded)
    if own_process and not loaded.settings.server and (code := supervised()) is not None:
        return code
    from ds4chat.commands.oneshot import run as answer

    if not loaded.settings.server:  # over a server, nothing that reads model files is imported
        import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
        from ds4chat.commands.model_sampling import with_sampling_of_model

        loaded, _ = with_sampling_of_model(loaded)
    return answer(loaded.settings, one_shot, loaded.sources)


def _one_shot(given: argparse.Namespace) -> OneShotOptions | None:
    """The one shot that the options and a pipe ask for; None is a chat."""
    from ds4chat.commands.prompt import prompt_of, prompts_of

    prompt = prompts = None
    if given.prompts_file is not None:
        if given.prompt is not None or given.prompt_file is not None:
            raise UsageError("--prompts-file has its own prompts: leave out -p and --prompt-file.")
        prompts = prompts_of(given.prompts_file)
    elif given.parallel is not None:
        raise UsageError("--parallel goes with --prompts-file FILE.")
    else:
        prompt = prompt_of(given.prompt, given.prompt_file, raw=given.raw)
    if prompt is None and prompts is None:
        for name in ("json", "raw", "ignore_eos", "show_thinking"):
            if getattr(given, name):
                raise UsageError(f"--{name.replace('_', '-')} goes with a prompt: give one with -p.")
        return None
    return OneShotOptions(
        prompt,
        json=given.json,
        raw=given.raw,
        ignore_eos=given.ignore_eos,
        show_thinking=given.show_thinking,
        parallel=given.parallel or PARALLEL.default,
        prompts=prompts,
    )


def _chat(loaded: LoadedSettings, *, go_on: bool) -> int:
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        raise UsageError("The chat needs a terminal, and this is not one: give a prompt with -p TEXT.")
    if not supports_escapes(sys.stdout):
        raise UsageError(
            "The chat uses the whole screen, which TERM says this terminal cannot do: give a prompt with "
            "-p TEXT, or set TERM to the terminal's type, such as xterm-256color."
        )
    from ds4chat.tui.app import run

    return run(loaded, go_on=go_on)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
