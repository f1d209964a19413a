"""The command ``convert-mtp``: rewrite ds4's support file for llama.cpp."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ds4chat.commands.arguments import Parser, UsageError
from ds4chat.commands.progress import ProgressLine, bar
from ds4chat.commands.running import say
from ds4chat.models.convert import convert_mtp
from ds4chat.models.errors import shown_size
from ds4chat.text import one_line


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="ds4chat convert-mtp",
        usage="ds4chat convert-mtp MAIN SUPPORT OUT [--force]",
        description="Rewrite ds4's support file SUPPORT, which belongs to the model MAIN, as OUT in\n"
        "the layout that llama.cpp takes. No value changes.",
    )
    made.general.add_argument("--force", action="store_true", help="Replace OUT if it exists.")
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
        with ProgressLine() as progress:

            def show(done: int, total: int) -> None:
                progress.show(f"{bar(done, total)} {100 * done // max(total, 1):3} %  of {shown_size(total)}")

            convert_mtp(main, support, out, show, force=force)
    except KeyboardInterrupt:
        say(f"Stopped; {one_line(out)} was not written.")
        raise
    size = shown_size(Path(out).stat().st_size)
    files = [shlex.quote(one_line(path)) for path in (main, out)]
    print(f"{one_line(out)}: {size}. Use it with: ds4chat -m {files[0]} --mtp {files[1]}")
    return 0
