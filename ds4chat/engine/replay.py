"""The lossless check: a finished reply decoded again without drafts, token by token, and compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
from ds4chat.engine import judge
from ds4chat.engine.events import Generate, Replayed, Tuning
from ds4chat.engine.llama import Context
from ds4chat.engine.prompting import Prompt
from ds4chat.engine.reply import Generation

TIE = 0.5
"""Logits: below this gap, rounding in batched kernels can turn one choice into the other."""


SETTLING = 2
"""Passes after the prompt's that pay for the change of the batch size, on a GPU."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a replay needs to know of the reply that it replays."""

    request: Generate
    prompt: Prompt
    ids: tuple[int, ...]
    """Every emitted token."""
    end_token: int
    """The token that ended the reply, which emits nothing; -1 where something else ended it."""
    seed: int
    tuning: Tuning
    """In force at the reply's start."""
    lossy: bool
    """A margin below 1 was in force at some step."""
    resampled: bool
    """Sampling settings changed on the way, so the same draws cannot be made again."""

    @property
    def compared(self) -> tuple[int, ...]:
        """The tokens to be compared."""
        return self.ids if self.end_token < 0 else (*self.ids, self.end_token)


def compare(
    target: Context,
    finished: Finished,
    stop: Callable[[], bool],
    progress: Callable[[int], object] = lambda compared: None,
) -> Replayed | None:
    """Decode on from a cache that holds the prompt but its last token, choosing as plain decoding would.

    The token that ended the reply is compared like those it emitted: a reply may differ by stopping short.
    None when ``stop`` asked for it. The cache holds more tokens afterwards.
    """
    request = replace(finished.request, max_tokens=-1)
    reply = Generation(request, finished.prompt, target.model, finished.tuning, finished.seed)
    last, pos = finished.prompt.tokens[-1], len(finished.prompt.tokens) - 1
    ends = finished.end_token >= 0
    wanted = finished.compared
    settled_at = 0.0
    try:
        for i, expected in enumerate(wanted):
            if stop():
                return None
            if i == SETTLING:
                settled_at = time.perf_counter()
            target.decode([last], pos, outputs="all")
            row = target.logits(1)[0]
            best, own = reply.choices(row)
            if own != expected:
                gap = judge.top_gap(row, best)
                return Replayed(
                    reply=request.reply,
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
    finally:
        reply.close()
    settled = len(wanted) - SETTLING
    pass_ms = (time.perf_counter() - settled_at) * 1000 / settled if settled > 0 else 0.0
    n = len(finished.ids)
    same = f"All {n} tokens {'and the end of the reply ' if ends else ''}are those of plain decoding."
    return Replayed(request.reply, True, len(wanted), -1, -1, -1, "", "", 0.0, same, pass_ms * len(wanted))


def _explain(finished: Finished, gap: float, index: int) -> str:
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
