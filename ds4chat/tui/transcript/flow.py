"""Tokens in rows: a text that grows at its end, wrapped by cell width. Pure.

Offsets count characters of the shown text from its beginning, newlines included. A row is a piece of one
line; appending never changes a row before the last, so only that one is wrapped again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from rich.cells import get_character_cell_size

from ds4chat.text import drawn

TAB = 4
"""Columns between two tab stops."""

WIDEST_ROW = 8
"""Most characters a cell in a row: a run of combining marks takes no width and would not end."""

_NEVER_FIRST = frozenset("、。，．・：；？！）］｝」』】〕〉》”’ー々%,.;:!?)]}")
"""Characters that do not begin a row after a wide one."""


def expand_tabs(text: str, column: int) -> str:
    """``text`` with each tab as the blanks to its next stop; ``column`` is where in its line it begins."""
    if "\t" not in text:
        return text
    parts: list[str] = []
    for char in text:
        if char == "\t":
            blanks = TAB - column % TAB
            parts.append(" " * blanks)
            column += blanks
        else:
            parts.append(char)
            column = 0 if char == "\n" else column + 1
    return "".join(parts)


class Flow:
    """Text of tokens, each with a kind (a small number that the caller gives a meaning)."""

    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._lines: list[str] = [""]
        self._line_at = array("Q", [0])
        self._row_line = array("Q", [0])
        self._row_from = array("Q", [0])
        self._token_at = array("Q")
        self._kinds = bytearray()

    # -- content

    @property
    def text(self) -> str:
        """The shown text."""
        return "\n".join(self._lines)

    @property
    def tokens(self) -> int:
        """Number of tokens appended."""
        return len(self._token_at)

    @property
    def end(self) -> int:
        """Offset of the text's end."""
        return self._line_at[-1] + len(self._lines[-1])

    @property
    def height(self) -> int:
        """Rows, blank ones at the end left out."""
        rows = len(self._row_line)
        line = len(self._lines) - 1
        while line >= 0 and not self._lines[line]:
            rows -= 1
            line -= 1
        return max(0, rows)

    def append(self, *tokens: tuple[str, int]) -> None:
        """Append tokens as (text, kind). Newlines before the first visible character are left out."""
        first = len(self._lines) - 1
        for text, kind in tokens:
            self._token_at.append(self.end)
            self._kinds.append(kind)
            self._add(text)
        self._wrap_from(first)

    def extend(self, text: str) -> None:
        """Append text to the last token."""
        first = len(self._lines) - 1
        self._add(text)
        self._wrap_from(first)

    def _add(self, text: str) -> None:
        text = drawn(text)
        if not self.end:
            text = text.lstrip("\n")
        head, *rest = expand_tabs(text, len(self._lines[-1])).split("\n")
        self._lines[-1] += head
        for line in rest:
            self._line_at.append(self.end + 1)
            self._lines.append(line)

    def resize(self, width: int) -> None:
        """Wrap everything again."""
        width = max(1, width)
        if width != self._width:
            self._width = width
            self._row_line = array("Q", [0])
            self._row_from = array("Q", [0])
            self._wrap_from(0)

    # -- rows

    def row(self, index: int) -> tuple[int, int]:
        """Offsets of a row's beginning and end."""
        line = self._row_line[index]
        start = self._line_at[line] + self._row_from[index]
        if index + 1 < len(self._row_line) and self._row_line[index + 1] == line:
            return start, self._line_at[line] + self._row_from[index + 1]
        return start, self._line_at[line] + len(self._lines[line])

    def row_text(self, index: int) -> str:
        """Text of a row."""
        line = self._row_line[index]
        start, end = self.row(index)
        return self._lines[line][start - self._line_at[line] : end - self._line_at[line]]

    def continues(self, index: int) -> bool:
        """The row's line continues in the next row: there is no newline between them."""
        return index + 1 < len(self._row_line) and self._row_line[index + 1] == self._row_line[index]

    def spans(self, index: int) -> list[tuple[str, int]]:
        """A row's text as (text, kind) of each run of tokens of one kind."""
        start, end = self.row(index)
        text = self.row_text(index)
        if start == end:
            return []
        token = bisect_right(self._token_at, start) - 1
        spans: list[tuple[str, int]] = []
        at = start
        while at < end:
            kind = self._kinds[token]
            token += 1
            stop = self._token_at[token] if token < len(self._token_at) else end
            if stop < end and self._kinds[token] == kind:
                continue
            stop = min(stop, end)
            if stop > at:
                spans.append((text[at - start : stop - start], kind))
            at = stop
        return spans

    # -- tokens

    def token_range(self, token: int) -> tuple[int, int]:
        """Offsets of a token's beginning and end; equal where it adds no character."""
        following = token + 1
        stop = self._token_at[following] if following < len(self._token_at) else self.end
        return self._token_at[token], stop

    def visible_start(self, token: int) -> int:
        """Offset of a token's first character that is not a newline, or its end."""
        at, stop = self.token_range(token)
        while at < stop:
            line = bisect_right(self._line_at, at) - 1
            if at < self._line_at[line] + len(self._lines[line]):
                break
            at += 1
        return at

    def token_at(self, row: int, column: int) -> int | None:
        """The token that holds a character of a row; None outside the row's text."""
        start, end = self.row(row)
        return bisect_right(self._token_at, start + column) - 1 if 0 <= column < end - start else None

    def places(self, token: int) -> list[tuple[int, int, int]]:
        """The rows that show a token, as (row, first character, end). A token without characters of its own
        has the place between its neighbours."""
        start, end = self.token_range(token)
        places: list[tuple[int, int, int]] = []
        for row in range(max(0, min(self.row_of(start), self.height - 1)), self.height):
            row_start, row_end = self.row(row)
            if places and row_start >= end:
                break
            places.append((row, max(0, start - row_start), max(0, min(end, row_end) - row_start)))
        return places

    def row_of(self, offset: int) -> int:
        """The row of the character at this offset."""
        line = bisect_right(self._line_at, offset) - 1
        row = bisect_right(self._row_line, line) - 1
        column = offset - self._line_at[line]
        while row > 0 and self._row_from[row] > column and self._row_line[row - 1] == line:
            row -= 1
        return row

    def line_row(self, line: int) -> int:
        """The first row of a line, counted from 0; the row after the last one for lines beyond."""
        return bisect_left(self._row_line, max(0, line))

    # -- wrapping

    def _wrap_from(self, first: int) -> None:
        """Add the rows that follow the last one, from the rest of its line ``first`` on."""
        for number in range(first, len(self._lines)):
            if number > first:
                self._row_line.append(number)
                self._row_from.append(0)
            line = self._lines[number]
            breaks = _ascii_breaks if line.isascii() else _cell_breaks
            for at in breaks(line, self._row_from[-1], self._width):
                self._row_line.append(number)
                self._row_from.append(at)


def _ascii_breaks(line: str, start: int, width: int) -> list[int]:
    """Where rows begin after the one at ``start``, in a line whose characters are one cell each."""
    breaks = []
    while len(line) - start > width:
        if line[start + width] == " ":
            start += width + 1
            if start >= len(line):
                break
        else:
            blank = line.rfind(" ", start, start + width)
            indent_only = blank < 0 or not line[start:blank].strip()
            start = start + width if indent_only else blank + 1
        breaks.append(start)
    return breaks


def _cell_breaks(line: str, start: int, width: int) -> list[int]:
    """Where rows begin after the one at ``start``, by cell width; a wide character may begin a row."""
    breaks = []
    cells, candidate, first_word = 0, -1, True
    at = start
    before = 0
    while at < len(line):
        char = line[at]
        size = get_character_cell_size(char)
        wide_edge = (size == 2 or before == 2) and char not in _NEVER_FIRST
        if at > start and size and wide_edge and not first_word:
            candidate = at
        overflow = cells + size > width or at - start >= WIDEST_ROW * width
        if overflow and at > start:
            if char == " " and at + 1 < len(line):
                at += 1
                start = at
            elif char == " ":
                break
            else:
                start = at = candidate if candidate > start else at
            breaks.append(start)
            cells, candidate, first_word, before = 0, -1, True, 0
            continue
        cells += size
        if char != " ":
            first_word = False
        elif not first_word:
            candidate = at + 1
        if size:
            before = size
        at += 1
    return breaks
