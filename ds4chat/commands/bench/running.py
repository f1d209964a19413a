"""What every bench does around its measuring: the length of a reply, and saving the result."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec

from ds4chat.commands.arguments import UsageError
from ds4chat.commands.bench.errors import BenchError
from ds4chat.files import try_place, write_whole
from ds4chat.settings import paths

FEWEST_TOKENS = 16
"""Shortest reply that a speed is taken from."""


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
