"""What the commands share: exit codes, sentences on stderr, settings, Ctrl-C, and requests."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ds4chat.commands.arguments import Parser, UsageError
from ds4chat.settings.load import LoadedSettings, load
from ds4chat.settings.schema import Settings
from ds4chat.text import json_text, one_line

if TYPE_CHECKING:
    from msgspec import Struct

    from ds4chat.engine.events import Generate, Tuning

RUN_ERROR = 1
INTERRUPTED = 130


def say(sentence: object) -> None:
    """Print a sentence on stderr."""
    print(f"ds4chat: {sentence}", file=sys.stderr)


def json_line(document: Struct) -> str:
    """``document`` as JSON on one line, in ASCII if stdout's character set cannot encode everything."""
    from msgspec import to_builtins

    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json_text(to_builtins(document), ascii_only=not unicode)


@contextmanager
def on_ctrl_c(stop: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C calls ``stop``; a second one ends the process as usual."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(_signal: int, _frame: object) -> None:
        stop()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------------------------------- settings


def read_options(parser: Parser, argv: list[str]) -> tuple[Namespace, LoadedSettings]:
    """Options and settings of a command that runs a model and takes no further words. Raises UsageError."""
    given, words = parser.read(argv)
    if words:
        raise UsageError(f'{parser.prog} takes options only, not "{words[0]}".')
    loaded = settings_of(given)
    report(loaded, given.config)
    need_model(loaded)
    from ds4chat.settings.logfile import log_to_file

    log_to_file(loaded.settings)
    return given, loaded


def settings_of(given: Namespace) -> LoadedSettings:
    """The settings merged from all sources; the model of -hf is fetched for them. Raises UsageError."""
    if getattr(given, "hf_repo", None) is not None:
        _name_fetched(given)
    loaded = load(given.settings, Path(given.config) if given.config else None)
    settings = loaded.settings
    if settings.demo and not settings.mtp and loaded.sources["mtp"] != "default":
        # --mtp "" means no support model: use only the demo's target, because the demo comes with a support
        # model.
        from ds4chat.models.demo import demo_model
        from ds4chat.models.errors import ModelFileError

        with suppress(ModelFileError):  # reported when it is loaded
            return replace(loaded, settings=replace(settings, demo=False, model=str(demo_model())))
    return loaded


def _name_fetched(given: Namespace) -> None:
    """Set -m to the file that -hf names. Raises UsageError, and ModelFileError if it cannot be downloaded."""
    if any(given.settings.get(key) for key in ("model", "demo", "server")):
        raise UsageError("-hf, -m, --demo and --server all name the model: give only one of them.")
    from ds4chat.commands.fetching import fetch_named

    given.settings["model"] = str(fetch_named(given.hf_repo))


def report(loaded: LoadedSettings, named: str | None) -> None:
    """Report problems with the settings on stderr; in a file named on the command line they are a usage
    error."""
    if loaded.problems and named:
        raise UsageError("\n".join(map(str, loaded.problems)))
    for sentence in (*loaded.problems, *loaded.warnings):
        say(one_line(sentence))


def need_model(loaded: LoadedSettings) -> None:
    """Raise UsageError if neither a model nor a server is named."""
    settings = loaded.settings
    if not (settings.model or settings.demo or settings.server):
        raise UsageError(
            "There is no model: name a file with -m FILE or a server with --server URL, or use --demo."
        )


# ---------------------------------------------------------------------------------------- requests


def request_of(
    settings: Settings,
    prompt: str,
    *,
    reply: int = 1,
    raw: bool = False,
    ignore_eos: bool = False,
    tuning: Tuning | None = None,
    max_tokens: int | None = None,
    baseline: bool = False,
    end_loops: bool = False,
) -> Generate:
    """The request for a prompt under the settings, except for ``tuning`` and ``max_tokens``."""
    from ds4chat.engine.events import Generate, Message
    from ds4chat.engine.from_settings import tuning_of

    system = (Message("system", settings.system_prompt),) if settings.system_prompt else ()
    return Generate(
        reply=reply,
        messages=() if raw else (*system, Message("user", prompt)),
        prompt=prompt if raw else None,
        tuning=tuning or tuning_of(settings),
        max_tokens=settings.predict if max_tokens is None else max_tokens,
        think=settings.think,
        ignore_eos=ignore_eos,
        keep_accepted=settings.mtp_keep_accepted,
        baseline=baseline,
        end_loops=end_loops,
    )
