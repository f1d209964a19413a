"""Histograms of judged rows by verdict, and how far the drafter's probability can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ds4chat.analysis.rows import Floats, Ints, JudgedRows

Column = Literal["ratio", "gap", "draft_gap", "draft_prob"]

_PROBABILITIES = ("ratio", "draft_prob")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bin, shape (bins,). Bin i holds edges[i] <= x < edges[i + 1], the last its upper edge too."""

    edges: Floats
    """bins + 1 values, in the column's unit: a probability, or logits."""
    accepted: Ints
    rejected: Ints
    missing: int
    """Rows that have no value in this column."""


def histogram(rows: JudgedRows, column: Column, bins: int = 20) -> Histogram:
    """The rows' distribution in one column, accepted and rejected apart.

    Probabilities are binned over 0..1; gaps, in logits, from 0 to their 99th percentile, with the few larger
    ones in the last bin. Raises ValueError for fewer than one bin.
    """
    if bins < 1:
        raise ValueError(f"A histogram of {bins} bins is out of range: it takes 1 or more.")
    values: Floats = getattr(rows, column)
    present = ~np.isnan(values)
    top = 1.0
    if column not in _PROBABILITIES:
        finite = values[np.isfinite(values)]
        top = float(np.percentile(finite, 99)) if len(finite) else 1.0
        top = top if top > 0 else 1.0
    edges = np.linspace(0.0, top, bins + 1)
    clipped = np.clip(values, 0.0, top)
    accepted, _ = np.histogram(clipped[present & rows.accepted], edges)
    rejected, _ = np.histogram(clipped[present & ~rows.accepted], edges)
    return Histogram(edges, accepted.astype(np.int64), rejected.astype(np.int64), int(np.sum(~present)))


@dataclass(frozen=True, slots=True)
class Reliability:
    """Acceptance by the drafter's probability of its draft. On the diagonal, the drafter is calibrated."""

    edges: Floats
    """bins + 1 values over 0..1."""
    count: Ints
    """Drafts in the bin; as all that follows but the last, shape (bins,)."""
    mean_prob: Floats
    """Mean probability in the bin; NaN if it is empty."""
    acceptance: Floats
    """NaN if the bin is empty."""
    low: Floats
    high: Floats
    """Wilson interval of the acceptance."""
    calibration_error: float
    """Mean of |mean_prob - acceptance| over the drafts (expected calibration error); NaN without any."""


def reliability(rows: JudgedRows, bins: int = 10, z: float = 1.96) -> Reliability:
    """The reliability curve of the drafter's probabilities; Wilson intervals at ``z`` standard errors.

    Bins of equal width and the calibration error as in Guo et al., "On Calibration of Modern Neural Networks"
    (ICML 2017). Rows without a probability are left out. Raises ValueError for fewer than one bin.
    """
    if bins < 1:
        raise ValueError(f"A curve of {bins} bins is out of range: it takes 1 or more.")
    present = ~np.isnan(rows.draft_prob)
    probs, accepted = rows.draft_prob[present], rows.accepted[present]
    place = np.clip((probs * bins).astype(np.int64), 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    hits = np.bincount(place, weights=accepted, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(place, weights=probs, minlength=bins) / count
        rate = hits / count
    low, high = np.full(bins, np.nan), np.full(bins, np.nan)
    for index in np.flatnonzero(count):
        low[index], high[index] = wilson(int(hits[index]), int(count[index]), z)
    used = count > 0
    error = float(np.sum(np.abs(mean - rate)[used] * count[used]) / len(probs)) if len(probs) else math.nan
    return Reliability(np.linspace(0, 1, bins + 1), count.astype(np.int64), mean, rate, low, high, error)


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a share: (low, high) within 0..1. NaN, NaN for no observation.

    Wilson, J. Am. Stat. Assoc. 22 (1927) 209: unlike the normal interval it holds at few observations and
    at shares near 0 and 1.
    """
    if count <= 0:
        return math.nan, math.nan
    share = hits / count
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)
