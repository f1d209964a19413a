"""The line numbers of a TOML document's statements, which tomllib does not report."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]

_MARKS = re.compile(
    r'"""(?:[^\\]|\\.)*?"""+|'
    r"'''.*?'''+|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'|#[^\n]*|[\[\]{}\n]",
    re.DOTALL,
)
"""The tokens that decide where a statement ends: strings and comments, brackets, and newlines."""


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
    """Every statement of a valid document, in order, in time that grows with its length.

    A statement ends with the first line at whose end no string and no bracket is open.
    """
    table: Path = ()
    first = number = 1
    start = depth = 0
    # The last newline closes a last statement without one.
    for mark in _MARKS.finditer(text + "\n"):
        found = mark.group()
        depth += (found in "[{") - (found in "]}")
        number += found.count("\n")
        if found != "\n" or depth:
            continue
        source = text[start : mark.start()]
        try:
            parsed = tomllib.loads(source + "\n")
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        if parsed:
            header = source.lstrip().startswith("[")
            path = _path_of(parsed, header)
            if header:
                table = path
            yield Statement(path if header else table + path, first, number - 1, header)
        start, first = mark.end(), number


class Lines:
    """Looks up lines in a valid document, which is scanned once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._first: dict[Path, int] | None = None
        """The first line on which a path, or something below it, is set."""
        self._keys: dict[Path, int] = {}
        """The line of each key's own statement."""

    def of(self, path: Path) -> int | None:
        """The line on which ``path`` is set, or its table begins; None if there is none."""
        if self._first is None:
            self._first = {}
            for statement in statements(self._text):
                for end in range(len(statement.path) + 1):
                    self._first.setdefault(statement.path[:end], statement.first)
                if not statement.header:
                    self._keys.setdefault(statement.path, statement.first)
        # An inline table or a dotted key sets paths below and above its own.
        above = [self._keys[path[:end]] for end in range(len(path)) if path[:end] in self._keys]
        return min([*above, *([self._first[path]] if path in self._first else [])], default=None)


def _path_of(found: dict[str, Any], header: bool) -> Path:
    """The path that one statement sets. If a key's value is a table of one entry, the path continues into
    it."""
    path: list[str] = []
    here: Any = found
    while isinstance(here, dict) and len(here) == 1:
        key = next(iter(here))
        path.append(key)
        here = here[key]
        if isinstance(here, list) and header:
            here = here[0]
    return tuple(path)
