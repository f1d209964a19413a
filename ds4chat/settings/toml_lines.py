"""The lines on which the statements of a TOML document stand, which tomllib does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a valid document: a table's header, or a key with its value."""

    path: Path
    """The key's full path; of a header, the table's."""
    first: int
    last: int
    """Lines, from 1, both included."""
    header: bool


def statements(text: str) -> Iterator[Statement]:
    """Every statement of a valid document, in order.

    A statement is the shortest run of lines that tomllib takes: a line that opens a multi-line string or an
    array parses only once the line that closes it is there.
    """
    table: Path = ()
    lines: list[str] = []
    first = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not lines:
            first = number
        lines.append(line)
        try:
            found = tomllib.loads("\n".join(lines) + "\n")
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        header = lines[0].lstrip().startswith("[")
        lines = []
        if not found:
            continue
        path = _path_of(found, header)
        if header:
            table = path
        yield Statement(path if header else table + path, first, number, header)


def line_of(text: str, path: Path) -> int | None:
    """The line on which ``path`` is set, or its table begins; None where no statement does."""
    for statement in statements(text):
        # An inline table or a dotted key sets paths below and above its own.
        if statement.path[: len(path)] == path or (
            not statement.header and path[: len(statement.path)] == statement.path
        ):
            return statement.first
    return None


def _path_of(found: dict[str, Any], header: bool) -> Path:
    """The path that one statement sets. A header ends in an empty table; a key may hold a table as value, and
    then its path stops where the value begins, which is only known to be no deeper."""
    path: list[str] = []
    here: Any = found
    while isinstance(here, dict) and len(here) == 1:
        key = next(iter(here))
        path.append(key)
        here = here[key]
        if isinstance(here, list) and header:
            here = here[0]
    return tuple(path)
