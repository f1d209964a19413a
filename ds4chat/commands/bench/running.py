"""What both benches share: their error, the progress bar, the length of a reply, and saving the result."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TextIO

import msgspec

from ds4chat.commands.arguments import UsageError
from ds4chat.files import try_place, write_whole
from ds4chat.settings import paths
from ds4chat.text import redraw_line, supports_escapes

FEWEST_TOKENS = 16
"""Shortest reply that a speed is taken from."""
BAR = 24
"""Cells of the progress bar."""


class BenchError(Exception):
    """The measurement, or the server of --compare, cannot continue; the text is a sentence for the user."""


class ProgressLine:
    """A progress bar on one line that is redrawn; draws nothing if ``out`` is not a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._on = supports_escapes(out)
        self._started = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Show that ``done`` of ``total`` parts are done and ``what`` is being measured."""
        if not self._on:
            return
        filled = round(BAR * done / max(total, 1))
        seconds = int(time.monotonic() - self._started)
        line = f"bench [{'#' * filled}{'.' * (BAR - filled)}] {done}/{total}  {seconds} s  {what}"
        width = shutil.get_terminal_size().columns
        redraw_line(self._out, line[: max(width - 1, 1)])

    def clear(self) -> None:
        """Remove the line."""
        if self._on:
            redraw_line(self._out)


def check_length(predict: int) -> None:
    """Raise UsageError for replies too short to take a speed from."""
    if 0 <= predict < FEWEST_TOKENS:
        raise UsageError(
            f"-n {predict} is too short a reply to take a speed from: bench takes -n {FEWEST_TOKENS} or more."
        )


def save(result: msgspec.Struct, path: Path) -> None:
    """Write the JSON to ``path``, which holds it whole or stays as it was. Raises OSError."""
    text = json.dumps(msgspec.to_builtins(result), ensure_ascii=False, indent=2) + "\n"
    write_whole(path, [text.encode()], overwrite=True)


def save_path(name: str | None) -> Path | None:
    """Where to save. Raises BenchError where that is no use trying, before anything is measured, and
    FolderError."""
    if name is None:
        return None
    path = Path(name).absolute() if name else paths.data_dir() / time.strftime("bench-%Y%m%d-%H%M%S.json")
    if path.is_dir():
        raise BenchError(f"{path} is a folder: --save takes a file.")
    if not path.parent.is_dir():
        raise BenchError(f"The folder {path.parent} does not exist. Make it, or save elsewhere.")
    try:
        try_place(path)
    except OSError as error:
        raise BenchError(
            f"{path} cannot be written: {error.strerror or error}. Name another file with --save FILE."
        ) from None
    return path
