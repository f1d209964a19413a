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

COLUMNS = (
    "reply",
    "step",
    "position",
    "token",
    "thinking",
    "draft",
    "draft_text",
    "target",
    "target_text",
    "accepted",
    "by",
    "ratio",
    "gap",
    "draft_gap",
    "draft_prob",
    "p_draft",
    "p_target",
    "entropy",
    "outcome",
    "drafted",
    "judged",
    "committed",
    "emitted",
    "accepted_end",
    "depth",
    "margin",
    "gate",
    *(f"{phase}_ms" for phase in PHASES),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def records(rows: JudgedRows, indices: Ints | None = None) -> Iterator[dict[str, Any]]:
    """One dict per row, with keys in the order of COLUMNS; all rows, or those at ``indices`` in that order.

    Ratios and probabilities are 0..1, gaps and the gate logits, names in ``_ms`` milliseconds. What has no
    value is None, as in JSON.
    """
    for row in np.arange(len(rows)) if indices is None else indices:
        step = rows.step[row]
        values: dict[str, Any] = {
            "reply": int(rows.step_reply[step]),
            "step": int(rows.step_index[step]),
            "position": int(rows.position[row]),
            "token": int(rows.token[row]) if rows.token[row] >= 0 else None,
            "thinking": bool(rows.thinking[row]),
            "draft": int(rows.draft[row]),
            "draft_text": rows.draft_text[row],
            "target": int(rows.target[row]),
            "target_text": rows.target_text[row],
            "accepted": bool(rows.accepted[row]),
            "by": rows.by[row],
            "ratio": _number(rows.ratio[row]),
            "gap": _number(rows.gap[row]),
            "draft_gap": _number(rows.draft_gap[row]),
            "draft_prob": _number(rows.draft_prob[row]),
            "p_draft": _number(rows.p_draft[row]),
            "p_target": _number(rows.p_target[row]),
            "entropy": _number(rows.entropy[row]),
            "outcome": OUTCOMES[rows.step_outcome[step]],
            "drafted": int(rows.step_drafted[step]),
            "judged": int(rows.step_judged[step]),
            "committed": int(rows.step_accepted[step]),
            "emitted": int(rows.step_emitted[step]),
            "accepted_end": bool(rows.step_accepted[step] > rows.step_emitted[step]),
            "depth": int(rows.step_depth[step]),
            "margin": _number(rows.step_margin[step]),
            "gate": _number(rows.step_gate[step]),
        }
        for column, phase in enumerate(PHASES):
            values[f"{phase}_ms"] = _number(rows.step_ms[step, column])
        yield values


def write_jsonl(rows: JudgedRows, file: TextIO, indices: Ints | None = None) -> int:
    """Write one JSON object per line for all rows, or those at ``indices``; returns how many. ASCII, so that
    lone surrogates in texts survive. Raises OSError."""
    count = 0
    for values in records(rows, indices):
        file.write(json.dumps(values, allow_nan=False) + "\n")
        count += 1
    return count


def write_csv(rows: JudgedRows, file: TextIO, indices: Ints | None = None) -> int:
    """Write a header and one line per row, for all rows or those at ``indices``; returns how many rows. Open
    ``file`` with newline="". Raises OSError.

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


def _number(value: float) -> float | None:
    """A plain float, or None for NaN and infinity, which JSON lacks."""
    return float(value) if math.isfinite(value) else None
