"""What a step costs on this machine, and the file that keeps it.

Costs are measured once, while the engine is idle (ds4chat.engine.auto.measure); after that every step
corrects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from ds4chat.engine.events import MAX_DEPTH
from ds4chat.files import write_whole

_Time = Annotated[float, Meta(ge=0, le=1e9)]
_Positive = Annotated[float, Meta(gt=0, le=1e9)]
MOST_FILES = 100
"""Most files in the folder of costs: one for each combination of files, threads and device."""


class CostTable(msgspec.Struct, forbid_unknown_fields=True):
    """Milliseconds of the parts of a step, by the number of drafts from 0 on."""

    verify: Annotated[list[_Positive], Meta(min_length=1, max_length=MAX_DEPTH + 1)]
    """Verifying so many drafts, in a batch of the same size as the two before, and all that follows."""
    draft: Annotated[list[_Time], Meta(min_length=1, max_length=MAX_DEPTH + 1)]
    """So many drafter passes."""
    change: Annotated[list[_Time], Meta(min_length=2, max_length=2)]
    """What the first and the second batch of another size take longer: llama.cpp reuses its graph for a batch
    of the same size, and a GPU records the graph only when that batch comes a second time."""
    catch_up: _Time = 0.0
    """What each token that the drafter has to catch up with adds to a draft."""

    @property
    def depth(self) -> int:
        """The deepest draft whose cost is known."""
        return min(len(self.verify), len(self.draft)) - 1

    @property
    def plain_ms(self) -> float:
        """A step without a draft."""
        return self.verify[0]

    def step_ms(self, drafts: int, passes: int | None = None) -> float:
        """A step that verifies so many drafts after ``passes`` drafter passes (as many, if None), without a
        change of size."""
        return self.verify[drafts] + self.draft[drafts if passes is None else passes]

    def change_ms(self, same: int = 0) -> float:
        """What a size that ``same`` batches in a row have had already still adds to the next ones."""
        return sum(self.change[same:])

    def learn(
        self, drafts: int, passes: int, draft_ms: float, verify_ms: float, same: int, behind: int
    ) -> None:
        """Learn from a step that verified so many drafts after ``passes`` drafter passes, as the next of
        ``same`` batches of one size. ``behind``: tokens that the drafter had to catch up with."""
        if not self.change_ms(same):
            self.verify[drafts] = _mean(self.verify[drafts], verify_ms)
        elif not drafts:
            self.change[same] = _mean(self.change[same], max(0.0, verify_ms - self.plain_ms))
        if passes and behind:
            self.catch_up = _mean(self.catch_up, max(0.0, draft_ms - self.draft[passes]) / behind)
        elif passes:
            self.draft[passes] = _mean(self.draft[passes], draft_ms)


def by_drafts(measured: Mapping[int, float]) -> list[float]:
    """Milliseconds for 0, 1, ... drafts: on lines between the measured numbers of drafts."""
    depths = sorted(measured)
    return np.interp(range(depths[-1] + 1), depths, [measured[depth] for depth in depths]).tolist()


def _mean(old: float, new: float) -> float:
    """A running mean. A stalled step counts as no more than half as long again as usual; a far shorter time
    is believed sooner, since nothing takes less time than it needs."""
    return old + (min(new, 1.5 * old + 0.01) - old) / (2 if new < 0.7 * old else 8)


class Tables:
    """The tables of one load, by how much the context holds, since attention takes longer the more that is.
    They are kept in the file at ``path``, or without one in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tables: dict[int, CostTable] = {}
        if path:
            with suppress(OSError, msgspec.DecodeError, RecursionError):
                self._tables = msgspec.json.decode(path.read_bytes(), type=dict[int, CostTable])

    def at(self, context: int) -> CostTable | None:
        """The table for so many tokens in the context, at first a copy of the nearest one; None where nothing
        was measured."""
        size = _size(context)
        if size not in self._tables and self._tables:
            nearest = min(self._tables, key=lambda known: abs(known - size))
            self._tables[size] = deepcopy(self._tables[nearest])
        return self._tables.get(size)

    def put(self, context: int, table: CostTable) -> None:
        """Keep a measured table."""
        self._tables[_size(context)] = table
        self.save()

    def save(self) -> None:
        """Write the file, whole or not at all, and delete the oldest of too many. Where it cannot be written,
        the next load measures again."""
        if self._path:
            folder = self._path.parent
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(self._path, [msgspec.json.encode(self._tables)], overwrite=True)
                for old in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)[:-MOST_FILES]:
                    old.unlink()


def _size(context: int) -> int:
    """The class of a context: up to 1,023 tokens, and each further one as large as all before it."""
    return (context // 1024).bit_length()
