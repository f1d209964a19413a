"""Lines of the log as its screen shows them: short, and broken into rows of a width. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.cells import get_character_cell_size

from ds4chat.text import drawn

STAMPED = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d),\d{3} (?P<level>[A-Z]+) (?:ds4chat\.)?(?P<rest>.*)"
)
CLOCK = re.compile(r"\d\d:\d\d:\d\d ")


class Shortener:
    """Leaves out of each line what the reader knows: the day, which is shown once above its first line; the
    level INFO; and the program's name."""

    def __init__(self) -> None:
        self._day = ""

    def shorten(self, lines: Iterable[str]) -> list[str]:
        """These lines as they are shown after the earlier ones."""
        shown = []
        for line in (drawn(line.expandtabs(8)).replace("\n", " ") for line in lines):
            found = STAMPED.fullmatch(line)
            if found is None:
                shown.append(line)
                continue
            if found["day"] != self._day:
                self._day = found["day"]
                shown.append(f"── {self._day} ──")
            level = "" if found["level"] == "INFO" else f"{found['level']} "
            shown.append(f"{found['clock']} {level}{found['rest']}")
        return shown


def hanging(line: str, width: int) -> int:
    """Cells by which a line's further rows are indented: below its text, if it begins with a time."""
    found = CLOCK.match(line)
    return len(found[0]) if found is not None and width > 3 * len(found[0]) else 0


def starts(line: str, width: int) -> tuple[int, ...]:
    """Index of the first character of each row of a line in ``width`` cells, broken at spaces where that
    leaves no more than a third of a row empty."""
    if line.isascii() and len(line) <= width:
        return (0,)
    found = [0]
    room = width
    while (end := _end(line, found[-1], max(1, room))) < len(line):
        space = line.rfind(" ", found[-1], end + 1)
        found.append(space + 1 if space - found[-1] > 2 * room // 3 else end)
        room = width - hanging(line, width)
    return tuple(found)


def _end(line: str, start: int, room: int) -> int:
    """Index after the last character that fits; at least one does."""
    if (row := line[start : start + room]).isascii():
        return start + len(row)
    at, used = start, 0
    while at < len(line):
        used += get_character_cell_size(line[at])
        if used > room and at > start:
            break
        at += 1
    return at
