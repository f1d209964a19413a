"""A compositor that renders the cells that changed, and few others.

For each update Textual's own renders all rows of all widgets that overlap the changed part of the screen,
also those that other widgets cover, and then takes the changed cells of what lies on top. Nearly every widget
lies in others that fill the screen, so that this is most of what drawing a growing reply costs.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from textual._compositor import Compositor, CompositorUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

Cells = tuple[int, int, int]
"""Cells of a row of the screen: the row, the first column and the one after the last."""


class CellsUpdate(CompositorUpdate):
    """Writes cells, given with what is drawn in them, by row and column."""

    def __init__(self, drawn: list[tuple[Cells, Strip]]) -> None:
        self._drawn = drawn

    def render_segments(self, console: Console) -> str:
        """The characters and sequences for a terminal."""
        written: list[str] = []
        place = (-1, -1)
        for (y, left, right), strip in self._drawn:
            if place != (y, left):
                written.append(f"\x1b[{y + 1};{left + 1}H")
            written.append(strip.render(console))
            place = (y, right)
        return "".join(written)


class FrugalCompositor(Compositor):
    """Draws what Textual's draws. A private method is overridden, and textual pinned."""

    def render_partial_update(self) -> CellsUpdate | None:  # type: ignore[override]
        """What is to be written for the changes since the last update; None where there are none."""
        changed = self._dirty_regions.copy()
        self._dirty_regions.clear()
        if not changed:
            return None
        by_widget: dict[Widget, list[Cells]] = {}
        for y, left, right in self._regions_to_spans(changed):
            if 0 <= y < self.size.height:
                for widget, cells in self._on_top(y, left, right):
                    by_widget.setdefault(widget, []).append(cells)
        drawn: list[tuple[Cells, Strip]] = []
        for widget, every in by_widget.items():
            at, _ = self.visible_widgets[widget]
            first, last = every[0][0], every[-1][0]
            # One call for all rows: those between them are most often rendered already.
            strips = widget.render_lines(Region(0, first - at.y, at.width, last + 1 - first))
            drawn += [
                ((y, left, right), strips[y - first].crop(left - at.x, right - at.x))
                for y, left, right in every
            ]
        return CellsUpdate(sorted(drawn, key=lambda part: part[0]))

    def _on_top(self, y: int, left: int, right: int) -> Iterator[tuple[Widget, Cells]]:
        """The widgets that are seen in cells of a row, each with those that it shows."""
        uncovered = [(left, right)]
        for widget, shown, _ in self.layers_visible[y]:  # from the top of the stack
            below = []
            for left, right in uncovered:
                a, b = max(left, shown.x), min(right, shown.x + shown.width)
                if a < b:
                    yield widget, (y, a, b)
                    below += [span for span in ((left, a), (b, right)) if span[0] < span[1]]
                else:
                    below.append((left, right))
            uncovered = below
            if not uncovered:
                return
