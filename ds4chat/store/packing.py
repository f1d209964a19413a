"""Steps, tokens and judged drafts as packed columns: what one write of a reply leaves in the database.

A batch holds the steps of one write, in order, as little-endian records without gaps:

    tokens  TOKEN   one a token; its text is the next ``chars`` characters of the message's text
    steps   STEP    one a step; ``tokens`` and ``judged`` say how many of the other records are its own
    judged  JUDGED  one a judged draft
    full    FULL    one a judged draft whose whole distribution was asked for; ``row`` says which
    strings         the texts of drafts and drafters, each once; the records hold indices into it

A value that is not there (a draft gap of a drafter without logits) is NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.events import FullRow, Judged, Origin, Phases, Step, Token, Tuning
from ds4chat.engine.stats import OUTCOMES, PHASES
from ds4chat.store.errors import StoreError
from ds4chat.text import encodable

ORIGINS: tuple[Origin, ...] = get_args(Origin)
REASONS: tuple[str, ...] = ("", "match", "ratio", "server")
"""Why a draft was accepted, by code."""

TOP = 5
"""Likeliest tokens kept of a distribution."""

THINKING = 4
"""Added to a token's origin code when it belongs to the thinking. The code itself stands in the two bits
below it and, from the fifth origin on, in those above."""

BASELINE = 64
"""Added to a step's outcome code when the step is a plain pass that the baseline rests on."""

TOKEN = np.dtype([("id", "<i4"), ("chars", "<u4"), ("kind", "u1")])
STEP = np.dtype(
    [
        ("index", "<u4"),
        ("tokens", "<u4"),
        ("drafted", "<u4"),
        ("judged", "<u4"),
        ("outcome", "u1"),
        ("depth", "<u4"),
        ("tuning", "<u4"),
        ("drafter", "<u4"),
        ("context_used", "<u4"),
        ("ms", "<f8", (len(PHASES),)),
    ]
)
JUDGED = np.dtype(
    [
        ("position", "<u4"),
        ("draft", "<i4"),
        ("draft_text", "<u4"),
        ("target", "<i4"),
        ("target_text", "<u4"),
        ("accepted", "u1"),
        ("by", "u1"),
        ("ratio", "<f8"),
        ("gap", "<f8"),
        ("draft_gap", "<f8"),
        ("draft_prob", "<f8"),
    ]
)
FULL = np.dtype(
    [
        ("row", "<u4"),
        ("p_draft", "<f8"),
        ("p_target", "<f8"),
        ("entropy", "<f8"),
        ("count", "u1"),
        ("id", "<i4", (TOP,)),
        ("text", "<u4", (TOP,)),
        ("p", "<f8", (TOP,)),
    ]
)

Records = NDArray[np.void]

_ORIGIN_CODE = {origin: code for code, origin in enumerate(ORIGINS)}
_OUTCOME_CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_REASON_CODE = {reason: code for code, reason in enumerate(REASONS)}


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as it stands in the database."""

    tokens: bytes
    steps: bytes
    judged: bytes
    full: bytes
    strings: str
    """A JSON array."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A batch, or several of a message one after the other, as numpy records."""

    tokens: Records
    steps: Records
    judged: Records
    full: Records
    strings: list[str]


def pack(steps: Sequence[Step], tuning_id: Callable[[Tuning], int]) -> Batch:
    """The batch of these steps; ``tuning_id`` gives a tuning's number in the database."""
    strings: dict[str, int] = {}

    def code(text: str) -> int:
        return strings.setdefault(encodable(text), len(strings))

    judged = [row for step in steps for row in step.judged]
    batch = Batch(
        tokens=_records(
            ((t.id, len(t.text), _kind(t.origin, t.thinking)) for step in steps for t in step.tokens), TOKEN
        ),
        steps=_records((_step_record(step, tuning_id(step.tuning), code) for step in steps), STEP),
        judged=_records((_judged_record(row, code) for row in judged), JUDGED),
        full=_records(
            (_full_record(i, row.full, code) for i, row in enumerate(judged) if row.full is not None), FULL
        ),
        strings="",
    )
    # The strings are complete only now.
    return Batch(batch.tokens, batch.steps, batch.judged, batch.full, json.dumps(list(strings)))


def unpack(batches: Iterable[Batch]) -> Columns:
    """The columns of a message's batches, in order. Raises StoreError for what cannot be one."""
    codes: dict[str, int] = {}
    parts: dict[str, list[Records]] = {"tokens": [], "steps": [], "judged": [], "full": []}
    rows = 0
    try:
        for batch in batches:
            own = np.array([codes.setdefault(text, len(codes)) for text in json.loads(batch.strings)], "<u4")
            steps, judged, full = (
                np.frombuffer(batch.steps, STEP).copy(),
                np.frombuffer(batch.judged, JUDGED).copy(),
                np.frombuffer(batch.full, FULL).copy(),
            )
            if len(own):
                steps["drafter"] = own[steps["drafter"]]
                judged["draft_text"] = own[judged["draft_text"]]
                judged["target_text"] = own[judged["target_text"]]
                full["text"] = own[full["text"]]
            full["row"] += rows
            rows += len(judged)
            parts["tokens"].append(np.frombuffer(batch.tokens, TOKEN))
            parts["steps"].append(steps)
            parts["judged"].append(judged)
            parts["full"].append(full)
    except (ValueError, IndexError, TypeError, RecursionError) as error:
        raise _damaged(str(error)) from error
    columns = Columns(
        tokens=_joined(parts["tokens"], TOKEN),
        steps=_joined(parts["steps"], STEP),
        judged=_joined(parts["judged"], JUDGED),
        full=_joined(parts["full"], FULL),
        strings=list(codes),
    )
    _check(columns)
    return columns


def outcome_codes(steps: Records) -> NDArray[np.uint8]:
    """Each step's outcome as an index into OUTCOMES, (steps,)."""
    codes: NDArray[np.uint8] = steps["outcome"] % BASELINE
    return codes


def baseline_passes(steps: Records) -> NDArray[np.bool_]:
    """Whether each step is a plain pass that the baseline rests on, (steps,)."""
    passes: NDArray[np.bool_] = steps["outcome"] >= BASELINE
    return passes


def _check(columns: Columns) -> None:
    """That every count and code leads somewhere, so that reading needs no care. Raises StoreError."""
    steps, judged, full, strings = columns.steps, columns.judged, columns.full, len(columns.strings)
    sound = (
        int(steps["tokens"].sum(dtype=np.int64)) == len(columns.tokens)
        and int(steps["judged"].sum(dtype=np.int64)) == len(judged)
        and _below(outcome_codes(steps), len(OUTCOMES))
        and _below(steps["outcome"], 2 * BASELINE)
        and bool(np.isin(columns.tokens["kind"], list(_KINDS)).all())
        and _below(steps["drafter"], strings)
        and _below(judged["by"], len(REASONS))
        and _below(judged["draft_text"], strings)
        and _below(judged["target_text"], strings)
        and _below(full["row"], len(judged))
        and _below(full["count"], TOP + 1)
        and (len(full) == 0 or _below(full["text"], max(strings, 1)))
    )
    if not sound:
        raise _damaged("its parts do not fit together")


def _below(values: NDArray[Any], limit: int) -> bool:
    return bool(np.all(values < limit))


def _damaged(why: str) -> StoreError:
    return StoreError(
        f"The tokens of a reply are damaged in the database ({why}). Its text can still be read.", "corrupt"
    )


def tokens_of(columns: Columns, text: str, thinking: str) -> list[Token]:
    """The tokens; ``text`` and ``thinking`` are the message's. Where it has no thinking of its own, its text
    is that of all tokens."""
    sides, at = (text, thinking), [0, 0]
    found: list[Token] = []
    rows = zip(*(columns.tokens[name].tolist() for name in ("id", "chars", "kind")))
    for id_, chars, kind in rows:
        side = int(bool(kind & THINKING and thinking))
        begin, at[side] = at[side], at[side] + chars
        found.append(Token(id_, sides[side][begin : at[side]], *_KINDS[kind]))
    return found


def steps_of(
    columns: Columns, text: str, thinking: str, tunings: dict[int, Tuning], reply: int
) -> list[Step]:
    """The steps with their tokens and judged drafts, as the engine gave them but numbered ``reply``."""
    tokens, judged = iter(tokens_of(columns, text, thinking)), iter(_judged_of(columns))
    return [
        Step(
            reply=reply,
            index=index,
            tokens=tuple(islice(tokens, n_tokens)),
            drafted=drafted,
            judged=tuple(islice(judged, n_judged)),
            outcome=OUTCOMES[outcome % BASELINE],
            ms=Phases(*ms),
            tuning=tunings[tuning],
            depth=depth,
            drafter=columns.strings[drafter],
            context_used=context_used,
            baseline=outcome >= BASELINE,
        )
        for index, n_tokens, drafted, n_judged, outcome, depth, tuning, drafter, context_used, ms in (
            _rows(columns.steps)
        )
    ]


def _judged_of(columns: Columns) -> Iterator[Judged]:
    full = {
        row: FullRow(
            p_draft,
            p_target,
            entropy,
            tuple((i, columns.strings[t], p) for i, t, p in islice(zip(ids, texts, ps), count)),
        )
        for row, p_draft, p_target, entropy, count, ids, texts, ps in _rows(columns.full)
    }
    strings = columns.strings
    for row, (position, draft, d_text, target, t_text, accepted, by, ratio, gap, d_gap, d_prob) in enumerate(
        _rows(columns.judged)
    ):
        yield Judged(
            position=position,
            draft=draft,
            draft_text=strings[d_text],
            target=target,
            target_text=strings[t_text],
            accepted=bool(accepted),
            by=REASONS[by],  # type: ignore[arg-type]
            ratio=None if math.isnan(ratio) else ratio,
            gap=None if math.isnan(gap) else gap,
            draft_gap=None if math.isnan(d_gap) else d_gap,
            draft_prob=None if math.isnan(d_prob) else d_prob,
            full=full.get(row),
        )


def _rows(records: Records) -> Iterator[tuple[Any, ...]]:
    """The records as tuples of plain Python values, sub-arrays as lists."""
    return zip(*(records[name].tolist() for name in records.dtype.names or ()))


def _records(rows: Iterable[tuple[Any, ...]], dtype: np.dtype[np.void]) -> bytes:
    return np.array(list(rows), dtype).tobytes()


def _joined(parts: list[Records], dtype: np.dtype[np.void]) -> Records:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _kind(origin: Origin, thinking: bool) -> int:
    code = _ORIGIN_CODE[origin]
    return (code & 3) + THINKING * thinking + (code >> 2 << 3)


_KINDS = {_kind(origin, thinking): (origin, thinking) for origin in ORIGINS for thinking in (False, True)}


def _step_record(step: Step, tuning: int, code: Callable[[str], int]) -> tuple[Any, ...]:
    return (
        step.index,
        len(step.tokens),
        step.drafted,
        len(step.judged),
        _OUTCOME_CODE[step.outcome] + BASELINE * step.baseline,
        step.depth,
        tuning,
        code(step.drafter),
        step.context_used,
        tuple(getattr(step.ms, phase) for phase in PHASES),
    )


def _judged_record(row: Judged, code: Callable[[str], int]) -> tuple[Any, ...]:
    return (
        row.position,
        row.draft,
        code(row.draft_text),
        row.target,
        code(row.target_text),
        row.accepted,
        _REASON_CODE[row.by],
        math.nan if row.ratio is None else row.ratio,
        math.nan if row.gap is None else row.gap,
        math.nan if row.draft_gap is None else row.draft_gap,
        math.nan if row.draft_prob is None else row.draft_prob,
    )


def _full_record(row: int, full: FullRow, code: Callable[[str], int]) -> tuple[Any, ...]:
    top = full.top[:TOP]
    missing = TOP - len(top)
    return (
        row,
        full.p_draft,
        full.p_target,
        full.entropy,
        len(top),
        tuple(i for i, _, _ in top) + (0,) * missing,
        tuple(code(text) for _, text, _ in top) + (0,) * missing,
        tuple(p for _, _, p in top) + (0.0,) * missing,
    )
