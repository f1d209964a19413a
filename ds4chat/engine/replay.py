"""The lossless check: a finished reply decoded again without drafts, token by token, and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
from ds4chat.engine import judge
from ds4chat.engine.events import Replayed
from ds4chat.engine.llama import Context
from ds4chat.engine.reply import Generation

TIE = 0.5
"""Logits: below this gap, rounding in batched kernels can change the choice."""
SETTLING = 2
"""Passes after the prompt's that pay for the change of the batch size, on a GPU."""


def compared(finished: Generation) -> Sequence[int]:
    """The tokens of a reply that are compared: those that it emitted, and the one that ended it."""
    return finished.ids if finished.end_token < 0 else [*finished.ids, finished.end_token]


def compare(
    target: Context, finished: Generation, reply: Generation, progress: Callable[[int], object]
) -> Replayed | None:
    """Compare a reply with plain decoding, from a cache that holds its prompt except the last token.

    The token that ended the reply is compared like those that it emitted: a reply may differ by stopping
    short. ``reply``: the same one again, with nothing emitted. ``progress`` is called with the tokens
    compared so far. None after a cancel. The cache holds more tokens afterwards.
    """
    last, pos = reply.last, reply.given - 1
    wanted = compared(finished)
    settled_at = 0.0
    for i, expected in enumerate(wanted):
        if reply.control.cancelled:
            return None
        if i == SETTLING:
            settled_at = time.perf_counter()
        target.decode([last], pos, outputs="all")
        row = target.logits(1)[0]
        best, own = reply.choices(row)
        if own != expected:
            gap = judge.top_gap(row, best)
            return Replayed(
                reply=reply.request.reply,
                equal=False,
                compared=i + 1,
                first_difference=i,
                spec_token=expected,
                plain_token=own,
                spec_text=reply.piece(expected),
                plain_text=reply.piece(own),
                gap=gap,
                detail=_explain(finished, gap, i),
            )
        last, pos = own, pos + 1
        progress(i + 1)
    n, emitted = len(wanted), len(finished.ids)
    settled = n - SETTLING
    pass_ms = (time.perf_counter() - settled_at) * 1000 / settled if settled > 0 else 0.0
    end = "and the end of the reply " if n > emitted else ""
    same = f"All {emitted} tokens {end}are those of plain decoding."
    return Replayed(reply.request.reply, True, n, detail=same, plain_ms=pass_ms * n)


def _explain(finished: Generation, gap: float, index: int) -> str:
    where = f"The first difference is at token {index + 1}"
    if index == len(finished.ids):
        where += ", where the reply ends"
    if finished.lossy:
        return f"{where}. The margin was below 1, so the reply was approximate: a difference is expected."
    if finished.resampled:
        return f"{where}. Sampling settings changed during the reply, so its draws cannot be repeated."
    if gap < TIE:
        return (
            f"{where}, where the two best tokens are {gap:.4f} logits apart: a rounding tie, since a batch "
            "rounds differently from single tokens. --mtp-strict rules it out."
        )
    return (
        f"{where}, at a gap of {gap:.2f} logits. That is more than rounding explains: please report it with "
        "the model, the drafter and the prompt."
    )
