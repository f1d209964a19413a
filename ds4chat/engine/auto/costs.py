"""What a step costs on this machine: verification by rows, drafting by drafts, the rest; and its cache file.

Every figure is a robust mean of the latest measurements, in milliseconds. The table says what is known of a
depth, and what it may cost at the least and at the most where it has not been measured yet: the least
decides whether a depth is worth a try, the most whether a try can be afforded.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds4chat.engine.events import MAX_DEPTH
from ds4chat.files import write_whole

MAX_ROWS = MAX_DEPTH + 1
_RECENT = 15
_CACHE_VERSION = 3
_CACHE_TABLES = 64


class Samples:
    """The robust mean of the latest measurements of one quantity.

    It is the mean of those within twice the median: a bimodal cost keeps its mean, a stalled step does not
    move it. With two measurements it is the smaller one, so that one outlier cannot decide.
    """

    __slots__ = ("_recent", "count", "value")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self.count = 0
        self.value = math.nan

    def add(self, ms: float) -> None:
        """Take in one measurement; what is not a finite number of 0 or more is passed over."""
        if not (math.isfinite(ms) and ms >= 0):
            return
        self._recent.append(ms)
        self.count += 1
        ordered = sorted(self._recent)
        bound = 2 * ordered[(len(ordered) - 1) // 2]
        kept = [sample for sample in ordered if sample <= bound]
        self.value = sum(kept) / len(kept) if len(ordered) > 2 else ordered[0]

    def restore(self, ms: float, count: int) -> None:
        """Start from a value measured earlier. It weighs as three measurements at most."""
        for _ in range(min(count, 3)):
            self.add(ms)


class Curve:
    """A cost over a whole number x (rows, or drafts), measured at some x and interpolated at the others."""

    __slots__ = ("_points", "_xs")

    def __init__(self) -> None:
        self._points: dict[int, Samples] = {}
        self._xs: list[int] = []

    def add(self, x: int, ms: float) -> None:
        """Take in one measurement at x. The first one counts as no more than most(x): a single stalled step
        must not make x, and all that is interpolated from it, look out of reach."""
        point = self._points.get(x)
        if point is None:
            if self._xs:
                ms = min(ms, self.most(x))
            point = self._points[x] = Samples()
            self._xs = sorted(self._points)
        point.add(ms)

    def restore(self, x: int, ms: float, count: int) -> None:
        """Start x from a value measured earlier."""
        self._points[x] = Samples()
        self._points[x].restore(ms, count)
        self._xs = sorted(self._points)

    def count(self, x: int) -> int:
        """How often x was measured."""
        point = self._points.get(x)
        return point.count if point else 0

    @property
    def measured(self) -> list[int]:
        """Every x with a measurement, ascending."""
        return list(self._xs)

    def _around(self, x: int, without: bool = False) -> tuple[int | None, int | None]:
        """The nearest measured x at or below, and at or above; ``without`` leaves x itself out."""
        below = [m for m in self._xs if m < x or (m == x and not without)]
        above = [m for m in self._xs if m > x or (m == x and not without)]
        return (below[-1] if below else None), (above[0] if above else None)

    def slope(self) -> float:
        """Mean milliseconds for each further x between the lowest and the highest measured x, at least 0."""
        if len(self._xs) < 2:
            return 0.0
        low, high = self._xs[0], self._xs[-1]
        return max(0.0, (self._points[high].value - self._points[low].value) / (high - low))

    def steepest(self) -> float:
        """Most milliseconds for each further x between two neighbouring measured x, at least 0."""
        pairs = zip(self._xs, self._xs[1:])
        return max(
            (max(0.0, (self._points[b].value - self._points[a].value) / (b - a)) for a, b in pairs),
            default=0.0,
        )

    def value(self, x: int, without: bool = False) -> float:
        """The cost at x: measured, or on the line between its measured neighbours, so that it stays between
        their values. Above the highest it goes on with the mean slope; below the lowest it is the lowest's.
        ``without`` leaves x's own measurements out. NaN when nothing was measured.
        """
        point = self._points.get(x)
        if point is not None and not without:
            return point.value
        below, above = self._around(x, without)
        if below is None:
            return self._points[above].value if above is not None else math.nan
        base = self._points[below].value
        if above is None:
            return base + self.slope() * (x - below)
        return base + (self._points[above].value - base) * (x - below) / (above - below)

    def least(self, x: int) -> float:
        """The least that x may cost: its value once it was measured twice. Before that a single measurement
        cannot make it dearer than its neighbours say, and above the highest measured x the next two are
        taken to be free (kernels change with the batch size: four rows may cost less than three) and
        further ones half the mean slope.
        """
        seen = self.count(x)
        if seen >= 2:
            return self._points[x].value
        below, above = self._around(x, without=True)
        guess = self.value(x, without=True)
        if below is not None and above is None:
            guess = self._points[below].value + 0.5 * self.slope() * max(0, x - below - 2)
        if not seen:
            return guess
        return self._points[x].value if math.isnan(guess) else min(guess, self._points[x].value)

    def most(self, x: int) -> float:
        """The most that x is taken to cost before it is measured; NaN when nothing was. Each x above a
        measured one adds at most what the lowest measured x costs for each of its x: batching makes nothing
        dearer. Once two points are known it adds three times the steepest slope, but at least 0.3 of that.
        A measured x above it is not taken to be dearer than x: kernels change with the batch size.
        """
        if not self._xs or self.count(x):
            return self.value(x)
        below, above = self._around(x)
        if below is None:
            return self.value(x)
        unit = self._points[self._xs[0]].value / max(self._xs[0], 1)
        step = min(unit, max(3 * self.steepest(), 0.3 * unit)) if len(self._xs) > 1 else unit
        climbed = self._points[below].value + step * (x - below)
        return climbed if above is None else max(climbed, self._points[above].value)

    def to_list(self) -> list[list[float]]:
        """[[x, milliseconds, count], ...], ascending in x."""
        return [[x, round(self._points[x].value, 5), self._points[x].count] for x in self._xs]

    def load_list(self, rows: Any, highest: int) -> None:
        """Restore what to_list gave. Raises ValueError or TypeError where it is something else."""
        for x, ms, count in rows:
            if not (isinstance(x, int) and 0 <= x <= highest and math.isfinite(ms) and ms >= 0 and count > 0):
                raise ValueError("a cost that is not [x, milliseconds, count]")
            self.restore(x, float(ms), int(count))


class CostTable:
    """Milliseconds of a step: verification of 1..17 rows in a batch of the size of the one before, what a
    change of that size adds, a draft of 1..16 tokens, and what is left over (sampling, acceptance, rollback)
    in plain and in drafting steps."""

    __slots__ = ("_changes", "_excess", "draft", "drafting_overhead", "plain_overhead", "verify")

    NOTICEABLE = 0.05
    """Share of a plain step below which a change of size counts as free: it drowns in the scatter."""

    def __init__(self) -> None:
        self.verify = Curve()
        self.draft = Curve()
        self.plain_overhead = Samples()
        self.drafting_overhead = Samples()
        self._changes: tuple[deque[float], ...] = (deque(maxlen=9), deque(maxlen=9))
        """What the first step of another size was measured to take longer, and the second of that size."""
        self._excess = [0.0, 0.0]

    def excess_ms(self, before: int) -> float:
        """What a step takes longer when ``before`` steps of its size, after one of another, went before it.
        llama.cpp reuses its graph for a batch of the same shape and builds it anew for another one; a GPU
        records it only when that batch comes a second time. Either takes longer than a small model's decode.
        The median of the latest measurements; 0 where it is not noticeable, and from the third step on."""
        ms = self._excess[before] if before < 2 and self.change_is_known else 0.0
        return ms if ms > self.NOTICEABLE * self.verify.value(1) else 0.0

    def change_ms(self) -> float:
        """What a change of size costs in all, in the first step and the second."""
        return self.excess_ms(0) + self.excess_ms(1)

    @property
    def change_is_known(self) -> bool:
        """A change of size was measured twice: one measurement alone may be a stalled step."""
        return len(self._changes[0]) > 1

    @property
    def change_is_free(self) -> bool:
        """A change of size was measured three times, and does not cost anything noticeable."""
        return len(self._changes[0]) > 2 and not self.change_ms()

    def observe_change(self, before: int, ms: float) -> None:
        """Take in the verification time of a plain step that came ``before`` (0 or 1) plain steps after a
        draft. Plain steps alone tell: their usual cost is known best."""
        if self.verify.count(1) >= 2 and math.isfinite(ms):
            self._add_change(before, ms - self.verify.value(1))

    def _add_change(self, before: int, ms: float) -> None:
        self._changes[before].append(ms)
        # Kept, since it is asked for several times in every step. Of two measurements it is the smaller one.
        self._excess[before] = statistics.median_low(self._changes[before])

    def verify_ratio(self, drafts: int) -> float:
        """v(k) = T(k + 1 rows) / T(1 row) for k = ``drafts``; NaN before a measurement."""
        return self.verify.value(drafts + 1) / self.verify.value(1)

    def plain_ms(self) -> float:
        """Milliseconds of a step without a draft; NaN before a measurement."""
        return self.verify.value(1) + _or_zero(self.plain_overhead.value)

    def step_ms(self, drafts: int, calls: int | None = None) -> float:
        """Milliseconds of a step that verifies ``drafts`` drafts, after ``calls`` drafter passes (as many,
        if None). NaN before a plain step was measured."""
        calls = drafts if calls is None else calls
        if not calls and not drafts:
            return self.plain_ms()
        return self.verify.value(drafts + 1) + self._drafting(drafts, self.draft.value(calls))

    def least_ms(self, drafts: int) -> float:
        """The least such a step may cost, by what is known (Curve.least)."""
        if not drafts:
            return self.plain_ms()
        return self.verify.least(drafts + 1) + self._drafting(drafts, self.draft.least(drafts))

    def most_ms(self, drafts: int) -> float:
        """The most that is to be expected of such a step (Curve.most); before any draft was measured, half a
        plain step for each."""
        if not drafts:
            return self.plain_ms()
        draft = self.draft.most(drafts) if self.draft.measured else 0.5 * drafts * self.plain_ms()
        return self.verify.most(drafts + 1) + self._drafting(drafts, draft)

    def _drafting(self, drafts: int, draft_ms: float) -> float:
        overhead = self.drafting_overhead if drafts else self.plain_overhead
        value = overhead.value if overhead.count else self.plain_overhead.value
        return _or_zero(draft_ms) + _or_zero(value)

    def to_dict(self) -> dict[str, Any]:
        """The table as plain JSON values; from_dict reads it back."""
        return {
            "verify": self.verify.to_list(),
            "draft": self.draft.to_list(),
            "plain_overhead": _samples_list(self.plain_overhead),
            "drafting_overhead": _samples_list(self.drafting_overhead),
            "change": [[round(ms, 5) for ms in measured] for measured in self._changes],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CostTable:
        """The table that to_dict gave. Raises ValueError where the data is something else."""
        table = cls()
        try:
            table.verify.load_list(data["verify"], MAX_ROWS)
            table.draft.load_list(data["draft"], MAX_ROWS)
            if table.verify.measured and not table.verify.value(1) > 0:
                raise ValueError("a step that takes no time")
            for samples, name in (
                (table.plain_overhead, "plain_overhead"),
                (table.drafting_overhead, "drafting_overhead"),
            ):
                for ms, count in data[name]:
                    samples.restore(float(ms), int(count))
            first, second = data["change"]
            for before, ms in [*((0, ms) for ms in first), *((1, ms) for ms in second)]:
                if not math.isfinite(ms):
                    raise ValueError("a change of size that does not cost a number of milliseconds")
                table._add_change(before, float(ms))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a cost table: {error}") from None
        return table


def _or_zero(ms: float) -> float:
    return 0.0 if math.isnan(ms) else ms


def _samples_list(samples: Samples) -> list[list[float]]:
    return [[round(samples.value, 5), samples.count]] if samples.count else []


# ------------------------------------------------------------------------------------ the cache file


def key(model: Path | str, drafter: str, threads: int, device: str) -> str:
    """What a table was measured on: model file (path, size, modification time), drafter, threads, device.

    ``drafter`` is its kind, with the support file's path where there is one. Reads no more of the model than
    its directory entry; a file that is not there counts by its path alone.
    """
    path = Path(model)
    try:
        status = path.stat()
        identity = f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
    except OSError:
        identity = str(path)
    text = f"{identity}\n{drafter}\n{threads}\n{device}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def load(path: Path, table_key: str) -> CostTable | None:
    """The table cached under this key; None where there is none, or the file is missing or damaged: the
    costs are then measured anew."""
    data = _read(path).get(table_key)
    if not isinstance(data, dict):
        return None
    try:
        return CostTable.from_dict(data)
    except ValueError:
        return None


def save(path: Path, table_key: str, table: CostTable) -> bool:
    """Cache the table under this key; False where the file cannot be written, which costs only a new
    measurement next time.

    The file appears whole or not at all. It keeps the 64 tables saved last.
    """
    tables = _read(path)
    tables.pop(table_key, None)
    tables[table_key] = table.to_dict()
    kept = dict(list(tables.items())[-_CACHE_TABLES:])
    payload = json.dumps({"version": _CACHE_VERSION, "tables": kept}, separators=(",", ":"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [payload.encode()], overwrite=True)
    except OSError:
        return False
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("version") != _CACHE_VERSION:
        return {}
    tables = data.get("tables")
    return tables if isinstance(tables, dict) else {}
