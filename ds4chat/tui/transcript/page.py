"""A rendered answer: its rows, and the text that they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rich.style import Style

StyledSpan = tuple[str, str | Style]
"""A text, and its role or its style."""

Row = tuple[StyledSpan, ...]


class Source(NamedTuple):
    """Rows that show one block of the text."""

    stop: int
    """The row after the last of them."""
    text: str
    """The block as it was written."""


@dataclass(slots=True)
class Page:
    """Rows without a gutter."""

    rows: list[Row] = field(default_factory=list)
    sources: dict[int, Source] = field(default_factory=dict)
    """The block that begins at a row."""
    margins: dict[int, int] = field(default_factory=dict)
    """Characters at the left of a row that are decoration, for rows that have any."""
    joined: set[int] = field(default_factory=set)
    """Rows whose line continues in the next row."""
    codes: list[tuple[int, int]] = field(default_factory=list)
    """First and last row of each code block, in order."""

    @property
    def text(self) -> str:
        """What is shown, a line a row."""
        return "\n".join("".join(text for text, _ in row) for row in self.rows)

    def place(self, offset: int) -> tuple[int, int]:
        """Row and column of a character of ``text``."""
        before = self.text[:offset]
        return before.count("\n"), offset - (before.rfind("\n") + 1)
