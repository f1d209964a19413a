"""The command ``convert-mtp``: rewrite ds4's support file for llama.cpp."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from ds4chat.commands.arguments import Parser, UsageError
from ds4chat.commands.running import say
from ds4chat.models.convert import convert_mtp
from ds4chat.models.errors import shown_size
from ds4chat.models.gguf_write import OnProgress
from ds4chat.text import one_line, redraw_line


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="ds4chat convert-mtp",
        usage="ds4chat convert-mtp MAIN SUPPORT OUT [--force]",
        description="Rewrite ds4's support file SUPPORT, which belongs to the model MAIN, as OUT in\n"
        "the layout that llama.cpp takes. No value changes.",
    )
    made.about.add_argument("--force", action="store_true", help="Replace OUT if it exists.")
    return made


def main(argv: list[str]) -> int:
    """Carry out ``ds4chat convert-mtp``; the exit code. Raises UsageError."""
    given, words = parser().read(argv)
    if len(words) != 3:
        raise UsageError("ds4chat convert-mtp takes three files: MAIN SUPPORT OUT.")
    return run(words[0], words[1], words[2], force=given.force)


def run(
    main: str | os.PathLike[str],
    support: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
) -> int:
    """Convert, and say how to use the result; the exit code. Raises ModelFileError."""
    try:
        convert_mtp(main, support, out, _bar(), force=force)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        say(f"Stopped; {one_line(out)} was not written.")
        raise
    size = shown_size(Path(out).stat().st_size)
    files = [shlex.quote(one_line(path)) for path in (main, out)]
    print(f"{one_line(out)}: {size}. Use it with: ds4chat -m {files[0]} --mtp {files[1]}")
    return 0


def _bar() -> OnProgress:
    """A progress bar on stderr, silent if that is not a terminal."""
    if not sys.stderr.isatty():
        return lambda done, total: None
    last = -1

    def show(done: int, total: int) -> None:
        nonlocal last
        percent = 100 * done // max(total, 1)
        if percent == last:
            return
        last = percent
        filled = percent * 30 // 100
        bar = "█" * filled + "░" * (30 - filled)
        end = "\n" if done >= total else ""
        redraw_line(sys.stderr, f"{bar} {percent:3} %  of {shown_size(total)}{end}")

    return show
