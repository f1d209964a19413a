"""Judged rows as CSV and JSON Lines: one record per row, with the figures of its step."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ds4chat.analysis.rows import Ints, JudgedRows
from ds4chat.engine.stats import OUTCOMES, PHASES

_ATTRIBUTES = {
    "reply": "step_reply",
    "step": "step_index",
    "position": "position",
    "token": "token",
    "thinking": "thinking",
    "draft": "draft",
    "draft_text": "draft_text",
    "target": "target",
    "target_text": "target_text",
    "accepted": "accepted",
    "by": "by",
    "ratio": "ratio",
    "gap": "gap",
    "draft_gap": "draft_gap",
    "draft_prob": "draft_prob",
    "p_draft": "p_draft",
    "p_target": "p_target",
    "entropy": "entropy",
    "outcome": "step_outcome",
    "drafted": "step_drafted",
    "judged": "step_judged",
    "committed": "step_accepted",
    "emitted": "step_emitted",
    "accepted_end": "step_accepted_end",
    "depth": "step_depth",
    "margin": "step_margin",
    "gate": "step_gate",
}
"""Column of the export: attribute of JudgedRows."""
COLUMNS = (*_ATTRIBUTES, *(f"{phase}_ms" for phase in PHASES))
_CHUNK = 1024
"""Rows whose values are Python objects at the same time."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def records(rows: JudgedRows, indices: Ints | None = None) -> Iterator[dict[str, Any]]:
    """One dict per row, with keys in the order of COLUMNS; all rows, or those at ``indices`` in that order.

    Ratios and probabilities are 0..1, gaps and the gate logits, names in ``_ms`` milliseconds. A value that
    is not known is None.
    """
    indices = np.arange(len(rows)) if indices is None else indices
    for start in range(0, len(indices), _CHUNK):
        chunk = indices[start : start + _CHUNK]
        steps = rows.step[chunk]
        columns = {
            name: _values(getattr(rows, of), steps if of.startswith("step_") else chunk)
            for name, of in _ATTRIBUTES.items()
        }
        columns["token"] = [token if token >= 0 else None for token in columns["token"]]
        columns["outcome"] = [OUTCOMES[code] for code in columns["outcome"]]
        for phase, ms in zip(PHASES, rows.step_ms.T):
            columns[f"{phase}_ms"] = _values(ms, steps)
        for values in zip(*columns.values()):
            yield dict(zip(COLUMNS, values))


def write_jsonl(rows: JudgedRows, file: TextIO, indices: Ints | None = None) -> int:
    """Write one JSON object per line for all rows, or those at ``indices``; returns their number. ASCII, so
    that lone surrogates in texts survive. Raises OSError."""
    count = 0
    for values in records(rows, indices):
        file.write(json.dumps(values, allow_nan=False) + "\n")
        count += 1
    return count


def write_csv(rows: JudgedRows, file: TextIO, indices: Ints | None = None) -> int:
    """Write a header and one line per row, for all rows or those at ``indices``; returns the number of rows.
    Open ``file`` with newline="". Raises OSError.

    Texts are model output: one that a spreadsheet would interpret as a formula gets a leading apostrophe, as
    OWASP recommends. JSON Lines has the texts unchanged.
    """
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    count = 0
    for values in records(rows, indices):
        for name in ("draft_text", "target_text"):
            text = values[name].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
            values[name] = f"'{text}" if text.startswith(_FORMULA) else text
        for name in ("accepted", "thinking", "accepted_end"):
            values[name] = int(values[name])
        writer.writerow(values)
        count += 1
    return count


def _values(column: NDArray[Any] | tuple[str, ...], indices: Ints) -> list[Any]:
    """The values at ``indices`` as Python objects, None for NaN and infinity, which JSON lacks."""
    if isinstance(column, tuple):
        return [column[i] for i in indices]
    return [value if math.isfinite(value) else None for value in column[indices].tolist()]
