"""Writes judged rows to a file: whole or not at all, and over an existing one only if asked."""

from __future__ import annotations

import io
from pathlib import Path

from ds4chat.analysis.export import write_csv, write_jsonl
from ds4chat.analysis.rows import Ints, JudgedRows
from ds4chat.errors import UserFacingError
from ds4chat.files import user_path, whole_file

WRITERS = {".csv": write_csv, ".jsonl": write_jsonl}


class ExportError(UserFacingError):
    """The file was not written."""


class FileExistsAlready(ExportError):
    """A file of that name exists."""


def export_rows(rows: JudgedRows, indices: Ints, name: str, *, overwrite: bool = False) -> tuple[Path, int]:
    """Write these rows, in this order, in the format of the name's ending; returns the path and the number of
    rows. Raises ExportError."""
    if not name.strip():
        raise ExportError("Give the name of a file that ends in .csv or .jsonl.")
    path = user_path(name.strip())
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ExportError(f"{path.name} ends in neither .csv nor .jsonl. The ending decides the format.")
    if path.is_dir():
        raise ExportError(f"{path} is a folder. Give the name of a file.")
    try:
        with whole_file(path, overwrite=overwrite) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="\n")
            count = writer(rows, text, indices)
            text.detach()  # flushed; the file is closed where it was opened
    except FileExistsError:
        raise FileExistsAlready(f"{path} exists already. Enter again overwrites it, Esc keeps it.") from None
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}.") from None
    return path, count
