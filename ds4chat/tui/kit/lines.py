"""A widget of styled lines, which redraws only those that changed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import ClassVar

from textual.geometry import Region
from textual.strip import Strip

from ds4chat.tui.kit.drawn import DrawnLines

Span = tuple[str, str]
"""A text and its role: the part after ``lines--`` of a component class, or "" for the widget's own style."""

Line = tuple[Span, ...]

BLANK: Line = (("", ""),)

ROLES = (
    "muted",
    "strong",
    "good",
    "bad",
    "warning",
    "mark",
    "track",
    "draft",
    "verify",
    "accept",
    "rollback",
    "other",
)


def style_sheet(package: str, name: str) -> str:
    """Text of the .tcss file ``name`` of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


class LinesView(DrawnLines):
    """Lines of spans, cut at the widget's width; its height is the number of lines."""

    DEFAULT_CSS = style_sheet(__package__, "lines.tcss")
    STYLES = "lines"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"lines--{role}" for role in ROLES}

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: tuple[Line, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is shown."""
        return self._lines

    @property
    def text(self) -> str:
        """What is shown, as plain lines."""
        return "\n".join("".join(text for text, _ in line) for line in self._lines)

    def set_lines(self, lines: Sequence[Line]) -> int:
        """Show these lines; returns how many of them were redrawn."""
        old, self._lines = self._lines, tuple(lines)
        if len(old) != len(self._lines):
            # A fixed height instead of "auto": Textual may cache an automatic height between two changes and
            # lay out with it.
            self.styles.height = len(self._lines)
            self.refresh()
            return len(self._lines)
        changed = [y for y, (before, now) in enumerate(zip(old, self._lines)) if before != now]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))
        return len(changed)

    def lines_drawn(self) -> range:
        return range(len(self._lines))

    def draw_line(self, y: int) -> Strip:
        return self.strip_of(self._lines[y] if y < len(self._lines) else (), self.size.width)
