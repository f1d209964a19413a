"""A conversation over time: a row per reply, and a strip of milliseconds per token over all of them. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.cells import set_cell_size

from ds4chat.engine.events import Step, Tuning
from ds4chat.engine.stats import Stats
from ds4chat.settings.schema import TUNING, Option
from ds4chat.tui.conversation import Reply
from ds4chat.tui.kit.charts import LABEL_WIDTH, MARK, changes, curve_lines, shown_value, speedup_role
from ds4chat.tui.kit.figures import count, decimal, level, percent, ratio
from ds4chat.tui.kit.history import History
from ds4chat.tui.kit.lines import Line, Span

DETAIL_ROWS = 2
STRIP_TITLE = "Milliseconds per token over all replies"
_NUMBER, _TOKENS, _ACCEPTED, _RATE, _FACTOR, _CHANGES = 6, 7, 7, 6, 7, 3
_FIXED = _NUMBER + _TOKENS + _ACCEPTED + _RATE + _FACTOR + _CHANGES + 7
"""Cells of a row without its settings and its sparkline, a blank between any two columns."""
_MOST_SETTINGS = 44


@dataclass(frozen=True, slots=True)
class ReplyRow:
    """A reply's settings and figures."""

    number: int
    tuning: Tuning
    """In force in its first step."""
    changes: tuple[tuple[int, str], ...]
    """The steps before which settings changed, and what changed; at step 0, since the previous reply."""
    tokens: int
    acceptance: float | None
    tokens_per_s: float | None
    speedup: float | None
    """Over plain decoding; None if it is not known."""
    speedup_role: str
    curve: History = field(compare=False)
    """The acceptance by step."""
    steps: tuple[tuple[float, int], ...]
    """Milliseconds of each step, NaN if a log does not have them, and its tokens."""
    first: int | None
    """The first step that emitted a token."""


def reply_rows(replies: Iterable[Reply], options: Sequence[Option] = TUNING) -> tuple[ReplyRow, ...]:
    """The rows of the replies that have steps, in order. ``options``: the settings that the record has."""
    rows: list[ReplyRow] = []
    before: Tuning | None = None
    for reply in replies:
        steps = list(reply.steps)
        if steps:
            rows.append(_row(reply.number, steps, reply.stats, before, options))
            before = steps[-1].tuning
    return tuple(rows)


def _row(
    number: int, steps: Sequence[Step], stats: Stats, before: Tuning | None, options: Sequence[Option]
) -> ReplyRow:
    found: list[tuple[int, str]] = []
    curve = History()
    for place, step in enumerate(steps):
        curve.add(step.accepted, len(step.judged), False)
        if before is not None and (what := changes(before, step.tuning, options)):
            found.append((place, what))
        before = step.tuning
    return ReplyRow(
        number=number,
        tuning=steps[0].tuning,
        changes=tuple(found),
        tokens=stats.emitted,
        acceptance=stats.acceptance,
        tokens_per_s=stats.decode_tokens_per_s,
        speedup=stats.plain.speedup,
        speedup_role=speedup_role(stats),
        curve=curve,
        steps=tuple((step.ms.total, len(step.tokens)) for step in steps),
        first=next((step.index for step in steps if step.tokens), None),
    )


def settings_words(tuning: Tuning, options: Sequence[Option] = TUNING) -> str:
    """The settings that differ from the defaults, and the depth, as in ``depth 2, margin 0.80``."""
    words = [
        f"{option.short} {shown_value(value, option)}"
        for option in options
        if (value := getattr(tuning, option.tuning)) != option.default or option.tuning == "depth"
    ]
    return ", ".join(words) or "defaults"


def _flexible(width: int) -> tuple[int, int]:
    """Cells of the settings and of the sparkline."""
    room = max(2, width - _FIXED)
    settings = min(_MOST_SETTINGS, room * 3 // 5)
    return settings, room - settings


def head_line(width: int) -> Line:
    """The names of the columns."""
    settings, curve = _flexible(width)
    names = (
        "reply".rjust(_NUMBER),
        set_cell_size("settings", settings),
        "tokens".rjust(_TOKENS),
        "accept.".rjust(_ACCEPTED),
        "tok/s".rjust(_RATE),
        "× plain".rjust(_FACTOR),
        MARK.rjust(_CHANGES),
        set_cell_size("by step" if curve < 18 else "acceptance by step", curve),
    )
    return ((" ".join(names), "muted"),)


def row_line(row: ReplyRow, width: int, options: Sequence[Option] = TUNING) -> Line:
    """A reply in ``width`` cells: number, settings, tokens, acceptance, speed, its ratio to plain decoding,
    how often settings changed, and the acceptance over its steps."""
    settings, curve = _flexible(width)
    words = settings_words(row.tuning, options)
    if len(words) > settings:
        words = words[: max(0, settings - 1)] + "…"
    spark = sparkline(row.curve, curve)
    return (
        (str(row.number)[-_NUMBER:].rjust(_NUMBER), "muted"),
        (" ", ""),
        (words.ljust(settings), ""),
        (f" {count(row.tokens, _TOKENS)}", ""),
        (f" {percent(row.acceptance)}", ""),
        (f" {decimal(row.tokens_per_s, _RATE)}", ""),
        (f" {ratio(row.speedup, _FACTOR - 1)}", row.speedup_role),
        (f" {str(len(row.changes)) if row.changes else '':>{_CHANGES}}", "mark"),
        (" ", ""),
        (spark.ljust(curve), "accept"),
    )


def sparkline(curve: History, width: int) -> str:
    """The curve in at most ``width`` cells; a dot if nothing was judged."""
    return "".join("·" if c.value is None else level(c.value) for c in curve.columns(width))


class Strip:
    """Milliseconds per token over all steps of all replies, with ▲ where settings changed, and below it a
    ruler of the replies."""

    def __init__(self, rows: Sequence[ReplyRow]) -> None:
        self._history = History()
        self._starts: list[int] = []
        self._numbers = [str(row.number) for row in rows]
        for row in rows:
            self._starts.append(self._history.steps)
            changed = {step for step, _ in row.changes}
            for place, (ms, tokens) in enumerate(row.steps):
                known = math.isfinite(ms)
                self._history.add(ms if known else 0.0, tokens if known else 0, place in changed)

    def lines(self, width: int, current: int) -> list[Line]:
        """The curve, its marks, and the replies' numbers where each begins; ``current`` is the index of the
        highlighted reply."""
        curve = curve_lines(self._history, width, "verify", unit="ms")
        return [((STRIP_TITLE, "muted"),), *curve, self._ruler(width - LABEL_WIDTH - 1, current)]

    def _ruler(self, room: int, current: int) -> Line:
        room = max(1, room)
        columns, steps = self._history.columns(room), self._history.column_steps(room)
        cells: list[Span] = [("─", "track")] * len(columns)
        ends = [*self._starts[1:], self._history.steps]
        if self._starts:
            first, last = self._starts[current] // steps, (ends[current] - 1) // steps
            cells[first : last + 1] = [("━", "mark")] * (last + 1 - first)
        taken: set[int] = set()
        others = [index for index in range(len(self._starts)) if index != current]
        for index in [current, *others][: len(self._starts)]:
            number, at = self._numbers[index], self._starts[index] // steps
            places = range(at, at + len(number))
            if places.stop <= len(cells) and not taken & {at - 1, *places, places.stop}:
                taken.update(places)
                role = "mark" if index == current else "muted"
                cells[at : places.stop] = [(digit, role) for digit in number]
        return tuple(cells)


def detail_lines(row: ReplyRow, width: int, options: Sequence[Option] = TUNING) -> list[Line]:
    """All settings of a reply and what changed within it, in DETAIL_ROWS lines."""
    parts = [f"reply {row.number}: {settings_words(row.tuning, options)}"]
    parts += [f"{MARK} {f'step {step}' if step else 'before it'}: {what}" for step, what in row.changes]
    lines = textwrap.wrap(" · ".join(parts), max(8, width), max_lines=DETAIL_ROWS, placeholder=" …")
    return [((line, "muted"),) for line in [*lines, *[""] * (DETAIL_ROWS - len(lines))]]
