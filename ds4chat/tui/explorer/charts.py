"""The explorer's charts as lines: a column's histogram, and the drafter's reliability. Pure."""

from __future__ import annotations

import itertools

import numpy as np

from ds4chat.analysis.histogram import Histogram, Reliability, histogram
from ds4chat.analysis.rows import Ints, JudgedRows
from ds4chat.tui.explorer.listing import Column
from ds4chat.tui.kit.figures import count, percent, stacked
from ds4chat.tui.kit.lines import Line, Span

NAMES: dict[Column, str] = {
    "ratio": "ratio",
    "gap": "target's gap",
    "draft_gap": "drafter's gap",
    "draft_prob": "drafter's probability",
}
"""The columns that have a histogram, in the order in which they are shown."""
PROBABILITIES = ("ratio", "draft_prob")
LABEL_WIDTH = 8
COUNT_WIDTH = 6
GOOD, BAD = "█", "▒"
"""Cells of accepted and rejected drafts: unlike without colour too."""
RELIABILITY_TITLES = ("Acceptance by the drafter's probability", "Acceptance by probability", "Acceptance")
STATED, MEASURED, INTERVAL = "┊", "●", "─"
"""Cells of the drafter's mean probability, of the measured acceptance, and of its interval."""


def column_histogram(rows: JudgedRows, shown: Ints, column: Column) -> Histogram:
    """The histogram of a column of the rows ``shown``: probabilities over 0..1, gaps up to their 99th
    percentile."""
    top = 1.0 if column in PROBABILITIES else None
    return histogram(getattr(rows, column)[shown], rows.accepted[shown], top)


def histogram_lines(found: Histogram, column: Column, width: int) -> list[Line]:
    """A title, then one line per bin: its range, a bar of accepted and rejected drafts, and both counts."""
    name = f"By {NAMES[column]}"
    totals = found.accepted + found.rejected
    if found.missing and not totals.any():
        return [((name, "strong"),), (("None of these drafts has a value.", "muted"),)]
    room = max(4, width - LABEL_WIDTH - 2 * (COUNT_WIDTH + 1) - 1)
    good_key, bad_key = f"{GOOD} ✓".rjust(COUNT_WIDTH + 1), f"{BAD} ✗".rjust(COUNT_WIDTH + 1)
    keys_width = len(good_key) + len(bad_key)
    lines: list[Line] = [
        ((name.ljust(max(0, width - keys_width)), "strong"), (good_key, "good"), (bad_key, "bad"))
    ]
    top = max(1, totals.max(initial=0))
    labels = _bin_labels(found, column)
    for label, accepted, rejected in zip(labels, found.accepted.tolist(), found.rejected.tolist()):
        total = accepted + rejected
        cells = max(1, round(total / top * room)) if total else 0
        good, bad = stacked([accepted, rejected], cells)
        lines.append(
            (
                (f"{label:>{LABEL_WIDTH}} ", "muted"),
                (GOOD * good, "good"),
                (BAD * bad, "bad"),
                (" " * (room - cells), ""),
                (f" {count(accepted, COUNT_WIDTH)}", "" if accepted else "track"),
                (f" {count(rejected, COUNT_WIDTH)}", "" if rejected else "track"),
            )
        )
    if found.missing:
        rows = "row has" if found.missing == 1 else "rows have"
        lines.append(((f"{found.missing:,} {rows} no value", "muted"),))
    return lines


def _bin_labels(found: Histogram, column: Column) -> list[str]:
    """The range of each bin; the last one of gaps has no upper end."""
    edges = found.edges.tolist()
    labels = [f"{low:.1f}–{high:.1f}" for low, high in itertools.pairwise(edges)]
    if column not in PROBABILITIES:
        labels[-1] = f"≥ {edges[-2]:.1f}"
    return [label if len(label) <= LABEL_WIDTH else f"≥ {low:.0f}" for label, low in zip(labels, edges)]


def reliability_lines(found: Reliability, width: int) -> list[Line]:
    """A title, one line per bin of the drafter's probability, and a sentence.

    Each line is a scale from 0 to 1 with the drafter's mean probability, the measured acceptance and its
    interval; then the acceptance as a number, and the number of drafts.
    """
    room = max(6, width - LABEL_WIDTH - 1 - 8 - (COUNT_WIDTH + 1))
    title = next((t for t in RELIABILITY_TITLES if len(t) <= width), "")
    lines: list[Line] = [((title, "strong"),)]
    if not found.count.any():
        return [*lines, (("This drafter gives no probabilities.", "muted"),)]
    for number, drafts in enumerate(found.count.tolist()):
        low, high = found.edges[number : number + 2]
        lines.append(
            (
                (f"{f'{low:.1f}–{high:.1f}':>{LABEL_WIDTH}} ", "muted"),
                *_scale(found, number, room),
                (f" {percent(found.acceptance[number] if drafts else None)}", "" if drafts else "track"),
                (f" {count(drafts, COUNT_WIDTH)}", "muted" if drafts else "track"),
            )
        )
    return [*lines, *(((text, "muted"),) for text in reliability_sentence(found, width))]


def _scale(found: Reliability, number: int, room: int) -> list[Span]:
    def cell(share: float) -> int:
        return min(room - 1, max(0, round(share * (room - 1))))

    cells: list[Span] = [("·", "track")] * room
    if not found.count[number]:
        cells[cell(found.edges[number : number + 2].mean())] = (STATED, "track")
        return cells
    low, high = cell(found.low[number]), cell(found.high[number])
    cells[low : high + 1] = [(INTERVAL, "verify")] * (high + 1 - low)
    cells[cell(found.mean_prob[number])] = (STATED, "muted")
    cells[cell(found.acceptance[number])] = (MEASURED, "accept")
    return cells


def reliability_sentence(found: Reliability, width: int) -> list[str]:
    """What the signs mean, and how far off the drafter's probabilities are on average and to which side: in
    one line, or in two if it is too long."""
    lean = float(np.nansum((found.mean_prob - found.acceptance) * found.count)) / found.count.sum()
    side = "too sure" if lean > 0.01 else "too modest" if lean < -0.01 else "to either side"
    parts = [
        f"{MEASURED} measured  {STATED} stated",
        f"off by {found.calibration_error * 100:.1f} points, {side}",
    ]
    whole = "  ·  ".join(parts)
    return [whole] if len(whole) <= width else parts
