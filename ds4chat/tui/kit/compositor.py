"""A compositor that renders the cells that changed, and few others.

For each update Textual's own renders all rows of all widgets that overlap the changed part of the screen,
also those that other widgets cover, and then takes the changed cells of what lies on top. Nearly every widget
lies in others that fill the screen, so that this is most of what drawing a growing reply costs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip


class FrugalCompositor(Compositor):
    """Draws what Textual's draws. A private method is overridden, and textual pinned."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """What is to be written for the changes since the last update; None where there are none."""
        changed = self._dirty_regions.copy()
        self._dirty_regions.clear()
        if not changed:
            return None
        cuts = self.cuts
        spans = [span for span in self._regions_to_spans(changed) if 0 <= span[0] < len(cuts)]
        wanted: dict[int, set[int]] = {}
        """By row, the beginnings of the pieces between two cuts that no widget has filled yet."""
        for y, left, right in spans:
            starts = {x for x, end in pairwise(cuts[y]) if x < right and end > left}
            wanted.setdefault(y, set()).update(starts)
        chops: dict[int, dict[int, Strip | None]] = {y: dict.fromkeys(cuts[y][:-1]) for y in wanted}
        for widget, (region, clip) in self.visible_widgets.items():  # from the top of the stack
            if not wanted:
                break
            shown = region.intersection(clip)
            left, right = shown.column_span
            rows = [y for y in shown.line_range if y in wanted and any(left <= x < right for x in wanted[y])]
            if not rows:
                continue
            # One call for all rows: those between them are most often rendered already.
            part = Region(shown.x - region.x, rows[0] - region.y, shown.width, rows[-1] + 1 - rows[0])
            strips = widget.render_lines(part)
            for y in rows:
                starts_here = [x for x in cuts[y] if shown.x <= x <= shown.right]
                pieces = strips[y - rows[0]].divide([x - shown.x for x in starts_here[1:]])
                for x, piece in zip(starts_here, pieces):
                    if x in wanted[y]:
                        chops[y][x] = piece
                        wanted[y].remove(x)
                if not wanted[y]:
                    del wanted[y]
        return ChopsUpdate(cast("list[dict[int, Strip | None]]", chops), spans, [cut[1:] for cut in cuts])
