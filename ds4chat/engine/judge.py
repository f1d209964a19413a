"""Judging drafts against the target's logits. Pure functions of arrays; no model is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one target row says of one draft."""

    accepted: bool
    by: Literal["match", "ratio", ""]
    ratio: float
    gap: float


def choose(logits: Floats) -> int:
    """The likeliest token of a row (n_vocab,); of equals the lowest id, as llama.cpp's greedy sampler."""
    return int(logits.argmax())


_LONG = 1 << 16
"""Logits of a row that is too long to be read twice."""


def largest(logits: Floats, count: int) -> NDArray[np.intp]:
    """Ids, in ascending order, of the ``count`` largest logits of a row (n_vocab,), of all that equal the
    least of them, and perhaps of a few more.

    Of the maxima of the row's columns, ``count`` reach the least of the ``count`` largest maxima, so no logit
    below it is among the ``count`` largest, and the others are in the columns that reach it.
    """
    if count >= len(logits):
        return np.arange(len(logits))
    width = 1024 if len(logits) >= _LONG else 512  # enough for a core's vectors, few enough to sort
    n = len(logits) // width * width
    by_columns = n > 0 and count <= width // 4
    rows = logits[:n].reshape(-1, width)
    maxima = np.maximum.reduce(rows) if by_columns else logits
    least = np.partition(maxima, -count)[-count]
    ids: NDArray[np.intp]
    if not by_columns or len(logits) < _LONG:
        ids = (logits >= least).nonzero()[0]
        return ids
    columns = (maxima >= least).nonzero()[0]
    row, at = (rows[:, columns] >= least).nonzero()
    rest = (logits[n:] >= least).nonzero()[0]
    ids = np.concatenate((row * width + columns[at], rest + n))
    return ids


def decides(logits: Floats, best: int) -> bool:
    """Whether a row (n_vocab,) with the argmax ``best`` ranks its tokens: a NaN anywhere is the argmax, and
    where every logit is the same, so are those of the first, the middle and the last token."""
    top = float(logits[best])
    if not math.isfinite(top):
        return False
    same = logits[-1] == top and logits[0] == top and logits[len(logits) // 2] == top
    return not (same and len(logits) > 1 and bool((logits == top).all()))


def top_gap(logits: Floats, best: int) -> float:
    """Logit of the row's argmax ``best`` minus the second best logit. The row is unchanged afterwards."""
    top = logits[best]
    logits[best] = -np.inf
    gap = float(top) - float(logits.max())
    logits[best] = top
    return gap if math.isfinite(gap) else 0.0


def ratio(logits: Floats, draft: int, best: int) -> float:
    """exp(l[draft] - l[best]) in a row (n_vocab,): the draft's probability over the likeliest token's, 0..1;
    0 where a damaged model has made logits that are no numbers."""
    share = math.exp(float(logits[draft]) - float(logits[best]))
    return share if math.isfinite(share) else 0.0


def judge(logits: Floats, draft: int, best: int, own: int, margin: float) -> Verdict:
    """Hold one draft against the target's row.

    logits: the row (n_vocab,), before temperature and penalties. best: its argmax. own: the target's choice
    (the argmax, or the token that was sampled). margin: 1.0 is exact, and then only the target's choice is
    accepted; below 1.0 a draft whose ratio reaches it is accepted too, which is lossy.
    """
    share = ratio(logits, draft, best)
    gap = top_gap(logits, best)
    if draft == own:
        return Verdict(True, "match", share, gap)
    if margin < 1.0 and share >= margin:
        return Verdict(True, "ratio", share, gap)
    return Verdict(False, "", share, gap)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafter's row: its best token, by how much, and how sure it is."""

    token: int
    gap: float
    """Top-1 minus top-2 logit."""
    prob: float
    """Softmax of the best over the ten best logits, as llama.cpp's p_min takes it."""


def propose(logits: Floats) -> Proposal:
    """The drafter's proposal in a row (n_vocab,); -inf marks tokens outside a reduced vocabulary.

    A row without a number in it, which a damaged model makes, is proposed without any confidence.
    """
    ids = largest(logits, 10)
    near = logits[ids].tolist()
    top = max(near, default=math.nan)
    if not math.isfinite(top):
        return Proposal(choose(logits), 0.0, 0.0)
    best = int(ids[near.index(top)])
    ten = sorted(near, reverse=True)[:10]
    gap = top - ten[1] if len(ten) > 1 and math.isfinite(ten[1]) else 0.0
    return Proposal(best, gap, 1.0 / sum([math.exp(logit - top) for logit in ten]))


def distribution(logits: Floats) -> tuple[NDArray[np.float64], float]:
    """Softmax of a row (n_vocab,) and its entropy in nats, -sum p ln p; a row without a number in it, which
    a damaged model makes, counts as even."""
    shifted = logits.astype(np.float64)
    if not np.isfinite(shifted.max()):
        shifted = np.zeros_like(shifted)
    shifted -= shifted.max()
    weights = np.exp(shifted)
    total = weights.sum()
    p = weights / total
    # ln p = shifted - ln total; where p is 0, shifted may be -inf and the product has the limit 0.
    finite = np.where(np.isfinite(shifted), shifted, 0.0)
    return p, float(np.log(total) - (p * finite).sum())
