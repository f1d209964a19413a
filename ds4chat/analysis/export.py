"""Judged rows as CSV and JSON Lines: one record per row, with the figures of its step."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

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
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def records(rows: JudgedRows, indices: Ints | None = None) -> Iterator[dict[str, Any]]:
    """One dict per row, with keys in the order of COLUMNS; all rows, or those at ``indices`` in that order.

    Ratios and probabilities are 0..1, gaps and the gate logits, names in ``_ms`` milliseconds. A value that
    is not known is None.
    """
    columns = {name: (getattr(rows, of), of.startswith("step_")) for name, of in _ATTRIBUTES.items()}
    for row in range(len(rows)) if indices is None else indices:
        step = rows.step[row]
        values = {
            name: _plain(column[step if by_step else row]) for name, (column, by_step) in columns.items()
        }
        values["token"] = values["token"] if values["token"] >= 0 else None
        values["outcome"] = OUTCOMES[values["outcome"]]
        for phase, ms in zip(PHASES, rows.step_ms[step]):
            values[f"{phase}_ms"] = _plain(ms)
        yield values


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


def _plain(value: Any) -> Any:
    """A Python value; None for NaN and infinity, which JSON lacks."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
