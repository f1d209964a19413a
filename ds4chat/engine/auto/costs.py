"""What a step costs on this machine: verification by rows, drafting by drafts, a change of size, the way back
after a rest; and its cache file.

All of it is measured once while the engine is idle (ds4chat.engine.auto.measure), and kept true by the steps
that run anyway.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ds4chat.engine.events import MAX_DEPTH
from ds4chat.files import write_whole

_CACHE_VERSION = 5
_CACHE_LOADS = 64


class Curve:
    """Milliseconds over a whole number x, measured at some, on a line between them at others."""

    __slots__ = ("_at", "points")

    def __init__(self, points: Mapping[int, float]) -> None:
        self.points = dict(sorted(points.items()))
        self._at: list[float] = []
        self._draw()

    def __getitem__(self, x: int) -> float:
        return self._at[x]

    @property
    def highest(self) -> int:
        """The highest x that is known of; 0 where none is."""
        return max(len(self._at) - 1, 0)

    def learn(self, x: int, ms: float) -> None:
        """Draw x towards a new measurement, and all a little, since what slows one x down slows the others
        down as well. A stalled step counts as no more than twice the usual."""
        usual = self._at[x]
        drift = min(max(ms / usual, 0.5), 2.0) - 1 if usual > 0 else 0.0
        self.points.setdefault(x, usual)
        for known in self.points:
            self.points[known] *= 1 + drift / (_weight(ms, usual) if known == x else 64)
        self.points = dict(sorted(self.points.items()))
        self._draw()

    def _draw(self) -> None:
        """The line through the points, from x = 0 on."""
        xs = list(self.points)
        self._at = []
        if not xs:
            return
        self._at = [self.points[xs[0]]] * (xs[0] + 1)
        for below, above in itertools.pairwise(xs):
            step = (self.points[above] - self.points[below]) / (above - below)
            self._at += [self.points[below] + step * (x - below) for x in range(below + 1, above + 1)]


class CostTable:
    """Milliseconds of a step: verification of 1..17 rows in a batch of the size of the one before, what the
    first and the second step of another size take longer, a draft of 1..16 tokens, what is left over
    (sampling, acceptance, rollback) in plain and in drafting steps, and what each token that the drafter has
    to catch up with adds to a draft."""

    __slots__ = ("catch_up", "change", "draft", "overhead", "verify")

    NOTICEABLE = 0.05
    """Share of a plain step below which a change of size counts as free: it drowns in the scatter."""

    def __init__(
        self,
        verify: Mapping[int, float],
        draft: Mapping[int, float],
        change: Sequence[float] = (0.0, 0.0),
        overhead: Sequence[float] = (0.0, 0.0),
        catch_up: float = 0.0,
    ) -> None:
        """By rows, and by drafts. Raises ValueError for what is no time."""
        every = (*verify.values(), *draft.values(), *change, *overhead, catch_up)
        if not all(math.isfinite(ms) and ms >= 0 for ms in every) or not verify.get(1, 0.0) > 0:
            raise ValueError("a cost that is not a number of milliseconds")
        pairs = len(change) == 2 == len(overhead)
        if not pairs or not all(1 <= x <= MAX_DEPTH + 1 for x in (*verify, *draft)):
            raise ValueError("a cost of something that there is not")
        self.verify, self.draft = Curve(verify), Curve(draft)
        self.change, self.overhead, self.catch_up = list(change), list(overhead), catch_up

    @property
    def depth(self) -> int:
        """The deepest draft whose cost is known."""
        return min(self.verify.highest - 1, self.draft.highest)

    @property
    def plain_ms(self) -> float:
        """A step without a draft."""
        return self.verify[1] + self.overhead[0]

    def step_ms(self, drafts: int, calls: int | None = None) -> float:
        """A step that verifies ``drafts`` drafts after ``calls`` drafter passes (as many, if None), without a
        change of size."""
        calls = drafts if calls is None else calls
        return self.verify[drafts + 1] + self.overhead[drafts > 0] + (self.draft[calls] if calls else 0.0)

    def change_ms(self, same: int = 0) -> float:
        """What the steps of a new size take longer in all, where ``same`` steps of it have been.

        llama.cpp reuses its graph for a batch of the same shape and builds it anew for another one; a GPU
        records it only when that batch comes a second time."""
        return sum(self.change[same:])

    def learn(
        self, rows: int, same: int, calls: int, behind: int, draft_ms: float, verify_ms: float, rest_ms: float
    ) -> None:
        """Take in a step of so many rows after ``same`` of that size, with ``calls`` drafter passes by a
        drafter that was ``behind`` by so many tokens."""
        if same > 1 or not self.change_ms(same):
            self.verify.learn(rows, verify_ms)
        elif rows == 1:
            excess = max(0.0, verify_ms - self.verify[1])
            self.change[same] = _towards(self.change[same], excess)
        self.overhead[calls > 0] = _towards(self.overhead[calls > 0], rest_ms)
        if calls and behind:
            self.catch_up = _towards(self.catch_up, max(0.0, draft_ms - self.draft[calls]) / behind)
        elif calls:
            self.draft.learn(calls, draft_ms)

    def to_dict(self) -> dict[str, Any]:
        """The table as plain JSON values; from_dict reads it back."""
        return {
            "verify": [[x, round(ms, 4)] for x, ms in self.verify.points.items()],
            "draft": [[x, round(ms, 4)] for x, ms in self.draft.points.items()],
            "change": [round(ms, 4) for ms in self.change],
            "overhead": [round(ms, 4) for ms in self.overhead],
            "catch_up": round(self.catch_up, 4),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The table that to_dict gave. Raises ValueError where the data is something else."""
        try:
            verify, draft = ({int(x): float(ms) for x, ms in data[name]} for name in ("verify", "draft"))
            change, overhead = ([float(ms) for ms in data[name]] for name in ("change", "overhead"))
            return cls(verify, draft, change, overhead, float(data["catch_up"]))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ValueError(f"not a cost table: {error}") from None


def _towards(old: float, new: float) -> float:
    """A mean of the latest measurements, which one stalled step hardly moves."""
    return old + (min(new, 2 * old + 0.01) - old) / _weight(new, old)


def _weight(new: float, old: float) -> int:
    """As how many measurements the usual one counts: nothing takes less time than it needs, so that far less
    is believed soon."""
    return 2 if new < 0.7 * old else 8


class Tables:
    """The tables of one load, by how much stands in the context: attention takes longer the more that is.
    Kept in a cache file under a key, or without ``path`` only as long as this lives."""

    STEP = 1024
    """Tokens of the first class; each further one is as large as all before it."""

    def __init__(self, path: Path | None = None, table_key: str = "") -> None:
        self._path, self._key = path, table_key
        data = _read(path).get(table_key) if path else None
        self._tables: dict[int, CostTable] = {}
        for size, table in data.items() if isinstance(data, dict) else ():
            try:
                self._tables[int(size)] = CostTable.from_dict(table)
            except ValueError:
                continue  # measured anew

    def at(self, context: int) -> CostTable | None:
        """The table for so many tokens in the context, or a copy of that of the nearest class to start from;
        None where nothing was measured."""
        size = self._size(context)
        if size not in self._tables and self._tables:
            nearest = min(self._tables, key=lambda known: abs(known - size))
            self._tables[size] = CostTable.from_dict(self._tables[nearest].to_dict())
        return self._tables.get(size)

    def put(self, context: int, table: CostTable) -> bool:
        """Take in a measured table; False where it could not be kept."""
        self._tables[self._size(context)] = table
        return self.save()

    def save(self) -> bool:
        """Keep the tables; False where the file cannot be written, which costs only a new measurement next
        time. The file appears whole or not at all, and keeps the loads that were saved last."""
        if self._path is None:
            return False
        kept = _read(self._path)
        kept.pop(self._key, None)
        kept[self._key] = {str(size): table.to_dict() for size, table in self._tables.items()}
        kept = dict(list(kept.items())[-_CACHE_LOADS:])
        payload = json.dumps({"version": _CACHE_VERSION, "tables": kept}, separators=(",", ":"))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, [payload.encode()], overwrite=True)
        except OSError:
            return False
        return True

    def _size(self, context: int) -> int:
        return (context // self.STEP).bit_length()


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


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("version") != _CACHE_VERSION:
        return {}
    tables = data.get("tables")
    return tables if isinstance(tables, dict) else {}
