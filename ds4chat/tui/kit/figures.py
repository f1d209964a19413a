"""Numbers, bars and texts of the panels as strings whose width never depends on the value. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

from rich.cells import cell_len, set_cell_size

from ds4chat.text import drawn

NONE = "–"
LEVELS = "▁▂▃▄▅▆▇█"


def count(value: int | None, width: int = 7) -> str:
    """A count, right-aligned: ``'  1,234'``; shortened to ``'  12.3M'`` if it is too wide."""
    if value is None:
        return NONE.rjust(width)
    forms = [f"{value:,}", str(value)]
    for divisor, suffix in ((10**3, "k"), (10**6, "M"), (10**9, "G"), (10**12, "T")):
        if divisor <= value < divisor * 1000:
            forms += [f"{value / divisor:.1f}{suffix}", f"{value / divisor:.0f}{suffix}"]
    return next((form for form in forms if len(form) <= width), "∞").rjust(width)


def grouped(value: int | None) -> str:
    """A count within a text: ``'1,234'``."""
    return NONE if value is None else f"{value:,}"


def decimal(value: float | None, width: int = 7, places: int = 1) -> str:
    """A decimal number, right-aligned; with fewer places, then as a count, if it is too wide."""
    if value is None or not isfinite(value):
        return NONE.rjust(width)
    for fewer in range(places, -1, -1):
        text = f"{value:.{fewer}f}"
        if len(text) <= width:
            return text.rjust(width)
    return count(round(value), width)


def percent(share: float | None) -> str:
    """A share 0..1 in seven cells: ``' 61.3 %'``."""
    return NONE.rjust(5) + "  " if share is None else f"{decimal(share * 100, 5)} %"


def whole_percent(share: float) -> str:
    """A share 0..1 in four cells without decimals: ``' 61%'``; 0 and 100 only for exactly 0 and 1."""
    return f"{min(99, max(1, round(share * 100))) if 0 < share < 1 else round(share * 100):>3}%"


def ratio(value: float | None, width: int = 5) -> str:
    """A factor in ``width`` + 1 cells: ``' 1.24×'``."""
    return NONE.rjust(width) + " " if value is None else f"{decimal(value, width, 2)}×"


def rate_bar(share: float | None, width: int) -> tuple[str, str]:
    """A bar of ``width`` cells for a share 0..1: its filled part and the rest, distinct without colour."""
    halves = round(min(1.0, max(0.0, share or 0.0)) * width * 2)
    filled = "━" * (halves // 2) + ("╾" if halves % 2 else "")
    return filled, "─" * (width - len(filled))


def level(share: float) -> str:
    """One cell filled from below to the share 0..1, in eighths; never empty."""
    return LEVELS[min(7, max(0, int(share * 8)))]


def stacked(parts: Sequence[float], width: int) -> list[int]:
    """Cells of each part in a bar of ``width`` cells, by the largest remainder. Their sum is ``width``, or
    0 if all parts are 0."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    exact = [part / total * width for part in parts]
    cells = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (cells[i] - exact[i], i))
    for i in by_remainder[: width - sum(cells)]:
        cells[i] += 1
    return cells


def token_text(text: str, width: int) -> str:
    """A token's text in exactly ``width`` cells, with blanks and control characters made visible.

    A space is ``␣``, a newline ``⏎``, a tab ``⇥``, and any other blank or no text at all ``·``.
    """
    shown = re.sub(r"\s", "·", drawn(text).translate(_VISIBLE)) or "·"
    if cell_len(shown) <= width:
        return set_cell_size(shown, width)
    return set_cell_size(shown, width - 1) + "…" if width > 0 else ""


_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
