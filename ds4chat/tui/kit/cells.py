"""Rows made of cells with roles, for line-API tables: styles by role, and the row under a cursor."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ds4chat.tui.kit.drawn import DrawnLines
from ds4chat.tui.kit.role_styles import RoleStyles
from ds4chat.tui.kit.scrolling import GrowingView


class CellView(GrowingView, DrawnLines):
    """A GrowingView whose rows are (text, role) cells. A role is a component class ``<STYLES>--<role>``."""

    STYLES = ""
    """Prefix of the component classes; ``<STYLES>--cursor`` is the cursor's."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._styles = RoleStyles(self, self.STYLES)

    def cell_strip(self, cells: Iterable[tuple[str, str]], width: int, *, at_cursor: bool) -> Strip:
        """One row of ``width`` cells. The cursor replaces each cell's ground and keeps its colour."""
        over = self._cursor_style() if at_cursor else Style.null()
        strip = Strip([Segment(text, self._styles[role] + over) for text, role in cells])
        return strip.adjust_cell_length(width, self._styles[""] + over)

    def _cursor_style(self) -> Style:
        style = self._styles["cursor"]
        return Style(bgcolor=style.bgcolor, bold=style.bold, reverse=style.reverse)
