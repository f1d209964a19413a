"""Histograms of judged drafts by verdict, and how well the drafter's probabilities are calibrated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ds4chat.analysis.rows import Bools, Floats, Ints

BINS = 10
"""Bins of a histogram and of a reliability curve."""
_Z = 1.96
"""Standard errors of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bin, shape (bins,). Bin i holds edges[i] <= x < edges[i + 1], the last its upper edge too."""

    edges: Floats
    """bins + 1 values, in the unit of what was counted."""
    accepted: Ints
    rejected: Ints
    missing: int
    """Drafts without a value."""


def histogram(values: Floats, accepted: Bools, top: float | None = None) -> Histogram:
    """The distribution of a value, accepted and rejected drafts apart: both arrays of shape (drafts,).

    The bins run from 0 to ``top``, or to the 99th percentile if that is None; larger values are in the last
    bin.
    """
    present = ~np.isnan(values)
    if top is None:
        finite = values[np.isfinite(values)]
        top = (float(np.percentile(finite, 99)) if len(finite) else 0.0) or 1.0
    edges = np.linspace(0.0, top, BINS + 1)
    clipped = np.clip(values, 0.0, top)
    return Histogram(
        edges,
        accepted=np.histogram(clipped[present & accepted], edges)[0],
        rejected=np.histogram(clipped[present & ~accepted], edges)[0],
        missing=int(np.sum(~present)),
    )


@dataclass(frozen=True, slots=True)
class Reliability:
    """Acceptance by the drafter's probability of its draft. On the diagonal, the drafter is calibrated.

    The arrays but ``edges`` have one entry per bin.
    """

    edges: Floats
    """bins + 1 values over 0..1."""
    count: Ints
    """Drafts in the bin."""
    mean_prob: Floats
    """Mean probability in the bin; NaN if it is empty."""
    acceptance: Floats
    """NaN if the bin is empty."""
    low: Floats
    high: Floats
    """95 % Wilson interval of the acceptance."""
    calibration_error: float
    """Mean of |mean_prob - acceptance| over the drafts (expected calibration error); NaN without any."""


def reliability(probabilities: Floats, accepted: Bools) -> Reliability:
    """The reliability curve of the drafter's probabilities; both arrays of shape (drafts,).

    Bins of equal width and the calibration error as in Guo et al., "On Calibration of Modern Neural Networks"
    (ICML 2017). Drafts without a probability are left out.
    """
    present = ~np.isnan(probabilities)
    probs = probabilities[present]
    place = np.clip((probs * BINS).astype(np.int64), 0, BINS - 1)
    count = np.bincount(place, minlength=BINS)
    hits = np.bincount(place, weights=accepted[present], minlength=BINS)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(place, weights=probs, minlength=BINS) / count
        rate = hits / count
    low, high = np.transpose([wilson(int(h), int(n)) for h, n in zip(hits, count)])
    error = float(np.nansum(np.abs(mean - rate) * count) / len(probs)) if len(probs) else math.nan
    return Reliability(np.linspace(0, 1, BINS + 1), count, mean, rate, low, high, error)


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share: (low, high) within 0..1. NaN, NaN for no observation.

    Wilson, J. Am. Stat. Assoc. 22 (1927) 209: unlike the normal interval it holds at few observations and
    at shares near 0 and 1.
    """
    if count <= 0:
        return math.nan, math.nan
    share = hits / count
    scale = 1 + _Z * _Z / count
    centre = (share + _Z * _Z / (2 * count)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / count + _Z * _Z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)
