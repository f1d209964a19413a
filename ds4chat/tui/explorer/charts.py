"""The explorer's charts as lines: rows by value and verdict, and the drafter's reliability. Pure."""

from __future__ import annotations

import numpy as np

from ds4chat.analysis.histogram import Column, Histogram, Reliability
from ds4chat.tui.kit.figures import count, percent, stacked
from ds4chat.tui.kit.lines import Line, Span

CHART_COLUMNS: tuple[Column, ...] = ("ratio", "gap", "draft_gap", "draft_prob")
NAMES: dict[Column, str] = {
    "ratio": "ratio",
    "gap": "target's gap",
    "draft_gap": "drafter's gap",
    "draft_prob": "drafter's probability",
}
BINS = 10
LABEL_WIDTH = 8
COUNT_WIDTH = 6
GOOD, BAD = "█", "▒"
"""Cells of accepted and rejected drafts: unlike without colour too."""
RELIABILITY_TITLES = ("Acceptance by the drafter's probability", "Acceptance by probability", "Acceptance")
DIAGONAL, MEASURED, INTERVAL = "┊", "●", "─"


def histogram_lines(found: Histogram, column: Column, width: int) -> list[Line]:
    """A title, then one line a bin: its range, a bar of accepted and rejected drafts, and both counts."""
    room = max(4, width - LABEL_WIDTH - 2 * (COUNT_WIDTH + 1) - 1)
    totals = found.accepted + found.rejected
    top = max(1, int(totals.max(initial=0)))
    name = f"By {NAMES[column]}"
    keys = f"{GOOD} ✓{'':>{COUNT_WIDTH - 3}} {BAD} ✗".rjust(2 * (COUNT_WIDTH + 1))
    title: Line = (
        (name.ljust(max(0, width - len(keys))), "strong"),
        (keys[: -len(BAD) - 2], "good"),
        (keys[-len(BAD) - 2 :], "bad"),
    )
    if found.missing and not totals.any():
        return [((name, "strong"),), (("None of these drafts has a value.", "muted"),)]
    lines = [title]
    for bin_number in range(len(totals)):
        accepted, rejected = int(found.accepted[bin_number]), int(found.rejected[bin_number])
        total = accepted + rejected
        cells = max(1, round(total / top * room)) if total else 0
        good, bad = stacked([accepted, rejected], cells)
        lines.append(
            (
                (_bin_label(found, bin_number, column), "muted"),
                (" ", ""),
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


def _bin_label(found: Histogram, bin_number: int, column: Column) -> str:
    low, high = float(found.edges[bin_number]), float(found.edges[bin_number + 1])
    if column in ("ratio", "draft_prob"):
        text = f"{low:.1f}–{high:.1f}"
    elif bin_number == len(found.accepted) - 1:
        text = f"≥ {low:.1f}"
    else:
        text = f"{low:.1f}–{high:.1f}"
    if len(text) > LABEL_WIDTH:
        text = f"≥ {low:.0f}"
    return text.rjust(LABEL_WIDTH)


def reliability_lines(found: Reliability, width: int) -> list[Line]:
    """A title, one line a bin of the drafter's probability, and a sentence.

    Each line is a scale from 0 to 1: where the acceptance should lie if the drafter's probability were to be
    taken at its word, where it does lie, and its interval; then the acceptance and how many drafts it is of.
    """
    room = max(6, width - LABEL_WIDTH - 1 - 8 - (COUNT_WIDTH + 1))
    title = next((t for t in RELIABILITY_TITLES if len(t) <= width), "")
    lines: list[Line] = [((title, "strong"),)]
    if not int(found.count.sum()):
        return [*lines, (("This drafter gives no probabilities.", "muted"),)]
    for number, drafts in enumerate(found.count):
        label = f"{found.edges[number]:.1f}–{found.edges[number + 1]:.1f}".rjust(LABEL_WIDTH)
        empty = not int(drafts)
        acceptance = None if empty else float(found.acceptance[number])
        lines.append(
            (
                (label, "muted"),
                (" ", ""),
                *_scale(found, number, room),
                (f" {percent(acceptance)}", "track" if empty else ""),
                (f" {count(int(drafts), COUNT_WIDTH)}", "track" if empty else "muted"),
            )
        )
    return [*lines, *(((text, "muted"),) for text in reliability_sentence(found, width))]


def _scale(found: Reliability, number: int, room: int) -> list[Span]:
    cells: list[Span] = [("·", "track")] * room
    if not int(found.count[number]):
        middle = float(found.edges[number] + found.edges[number + 1]) / 2
        cells[_cell(middle, room)] = (DIAGONAL, "track")
    else:
        low, high = _cell(float(found.low[number]), room), _cell(float(found.high[number]), room)
        for place in range(low, high + 1):
            cells[place] = (INTERVAL, "verify")
        cells[_cell(float(found.mean_prob[number]), room)] = (DIAGONAL, "muted")
        cells[_cell(float(found.acceptance[number]), room)] = (MEASURED, "accept")
    return _joined(cells)


def _cell(share: float, room: int) -> int:
    return min(room - 1, max(0, round(share * (room - 1))))


def _joined(cells: list[Span]) -> list[Span]:
    """Neighbours of one role as one span."""
    spans: list[Span] = []
    for text, role in cells:
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + text, role)
        else:
            spans.append((text, role))
    return spans


def reliability_sentence(found: Reliability, width: int) -> list[str]:
    """What the signs mean, and how far off the drafter's probabilities are on average and to which side: in
    one line, or in two where one is too long."""
    used = found.count > 0
    drafts = float(found.count.sum())
    lean = float(np.sum((found.mean_prob - found.acceptance)[used] * found.count[used])) / drafts
    off = found.calibration_error * 100
    side = "too sure" if lean > 0.01 else "too modest" if lean < -0.01 else "to either side"
    parts = [f"{MEASURED} measured  {DIAGONAL} stated", f"off by {off:.1f} points, {side}"]
    whole = "  ·  ".join(parts)
    return [whole] if len(whole) <= width else parts
