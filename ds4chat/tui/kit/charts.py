"""Lines of the charts: bars by position, a stacked bar, a curve over steps with its marks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len

from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Tuning
from ds4chat.engine.stats import PositionCount, Stats
from ds4chat.settings.schema import TUNING, Option
from ds4chat.tui.kit.figures import decimal, level, percent, rate_bar, stacked, whole_percent
from ds4chat.tui.kit.history import Group, History
from ds4chat.tui.kit.lines import Line, Span

MARK = "▲"
LABEL_WIDTH = 8
COMPACT_POSITIONS = 4
_POSITION_CELL = 9


def position_lines(counts: Sequence[PositionCount], width: int, *, compact: bool = False) -> list[Line]:
    """One line per draft position: number, bar of the conditional acceptance, share, accepted/judged.
    ``compact``: where that would be more than COMPACT_POSITIONS lines, several positions share one, without
    their counts."""
    if compact and len(counts) > COMPACT_POSITIONS:
        return _position_grid(counts, width)
    lines: list[Line] = []
    for position, counted in enumerate(counts, start=1):
        tally = f"{counted.accepted}/{counted.judged}"
        filled, rest = rate_bar(counted.rate, max(4, width - 22))
        lines.append(
            (
                (f"{position:>2} ", "muted"),
                (filled, "accept"),
                (rest, "track"),
                (f" {percent(counted.rate)}", ""),
                (f" {tally:>10}", "muted"),
            )
        )
    return lines


def _position_grid(counts: Sequence[PositionCount], width: int) -> list[Line]:
    cells: list[Line] = [
        (
            (f"{position:>2} ", "muted"),
            ("·" if counted.rate is None else level(counted.rate), "accept"),
            ("  –  " if counted.rate is None else f"{whole_percent(counted.rate)} ", ""),
        )
        for position, counted in enumerate(counts, start=1)
    ]
    a_line = max(1, (width + 1) // _POSITION_CELL)
    return [
        tuple(span for cell in cells[first : first + a_line] for span in cell)
        for first in range(0, len(cells), a_line)
    ]


def side_by_side(cells: Sequence[Line], width: int, *, most: int, gap: int) -> list[Line]:
    """Cells of equal width in lines of at most ``most``, fewer where a line has no room for them with a blank
    between them. ``gap``: most blanks between two cells."""
    cell = sum(cell_len(text) for text, _ in cells[0])
    each = max(1, min(most, (width + 1) // (cell + 1)))
    between = " " * (min(gap, (width - each * cell) // (each - 1)) if each > 1 else 0)
    return [
        tuple(
            span
            for i, one in enumerate(cells[first : first + each])
            for span in ((between * (i > 0), ""), *one)
        )
        for first in range(0, len(cells), each)
    ]


def stacked_line(parts: Sequence[tuple[str, float]], width: int) -> Line:
    """One bar of ``width`` cells, divided among (role, amount)."""
    cells = stacked([amount for _, amount in parts], width)
    if not any(cells):
        return (("─" * width, "track"),)
    return tuple(("█" * n, role) for (role, _), n in zip(parts, cells) if n)


def curve_lines(
    history: History,
    width: int,
    role: str,
    *,
    top: float | None = None,
    unit: str = "",
    scale: float = 1.0,
    compact: bool = False,
) -> list[Line]:
    """Three lines: a curve two cells high with its largest and smallest value at the right, then the marks.

    ``top`` is the value at the upper edge; None uses the largest column. Values are shown times ``scale``.
    Columns cover equally many steps; a column without a value is a dot. ``compact`` makes the curve one cell
    high, with the least value beside the marks.
    """
    room = max(1, width - LABEL_WIDTH - 1)
    columns = history.columns(room)
    values = [column.value for column in columns]
    known = [value for value in values if value is not None]
    ceiling = (max(known) if known else 1.0) if top is None else top
    shares = [None if value is None else (value / ceiling if ceiling else 0.0) for value in values]
    high, low = (max(known), min(known)) if known else (None, None)
    marks = _marks(columns, room)
    if compact:
        curve = "".join("·" if s is None else level(s) for s in shares)
        line = (*_curve(curve, room, role), _label("↑", high, scale, unit))
        return [line, (*marks, _label("↓", low, scale, unit))]
    upper = "".join(" " if s is None or s <= 0.5 else level(s * 2 - 1) for s in shares)
    lower = "".join("·" if s is None else ("█" if s > 0.5 else level(s * 2)) for s in shares)
    return [
        (*_curve(upper, room, role), _label("↑", high, scale, unit)),
        (*_curve(lower, room, role), _label("↓", low, scale, unit)),
        marks,
    ]


def _curve(text: str, room: int, role: str) -> tuple[Span, Span]:
    return (text, role), (" " * (room - len(text)), "")


def _label(arrow: str, value: float | None, scale: float, unit: str) -> Span:
    number = decimal(None if value is None else value * scale, 5)
    return f" {arrow}{number}{unit:<2}", "muted"


def _marks(columns: Sequence[Group], room: int) -> Line:
    marks = "".join(MARK if column.marked else "╌" for column in columns)
    spans: list[Span] = []
    for char in marks:
        role = "mark" if char == MARK else "track"
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + char, role)
        else:
            spans.append((char, role))
    spans.append(("╌" * (room - len(columns)), "track"))
    return tuple(spans)


def speedup_role(stats: Stats) -> str:
    """The role of the speed against plain decoding: muted while it was measured only at the load."""
    factor = stats.plain.speedup
    if factor is None or stats.plain.at_load:
        return "muted"
    return "good" if factor >= 1 else "bad"


def baseline_words(plain: PlainTime) -> str:
    """How plain decoding was measured."""
    passes = "1 pass" if plain.passes == 1 else f"{plain.passes:,} passes"
    return "a pass at load" if plain.at_load else "by /check" if not plain.passes else f"{passes} here"


def changes(before: Tuning, now: Tuning, options: Sequence[Option] = TUNING) -> str:
    """The differences between two tunings in these options, as in ``depth 2→4, margin 1.00→0.80``."""
    return ", ".join(
        f"{option.short} {shown_value(old, option)}→{shown_value(new, option)}"
        for option in options
        if (old := getattr(before, option.tuning)) != (new := getattr(now, option.tuning))
    )


def shown_value(value: Any, option: Option) -> str:
    """A value of an option as the charts show it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    places = option.slider.places if option.slider else 0
    return f"{value:.{places}f}" if places else str(value)
