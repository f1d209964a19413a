"""Judging by numbers: every figure below is worked out by hand from the logits beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ds4chat.engine.judge import choose, distribution, judge, largest, propose, ratio, top_gap


def row(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


def test_the_choice_is_the_argmax_and_of_equals_the_lowest_id() -> None:
    assert choose(row(1, 3, 2)) == 1
    assert choose(row(5, 1, 5)) == 0


@pytest.mark.parametrize("size", [100, 1024, 1500, 49152, 70000])
@pytest.mark.parametrize("count", [1, 10, 40, 300])
def test_the_largest_are_found_with_all_their_equals(size: int, count: int) -> None:
    """In rows of distinct logits, of a few equal ones, of one value, and with hardly a finite one."""
    rng = np.random.default_rng(size + count)
    logits = rng.standard_normal(size, dtype=np.float32)
    scarce = np.where(rng.random(size) < 0.999, -np.inf, logits).astype(np.float32)
    for given in (logits, logits.round(), np.ones_like(logits), scarce):
        ids = largest(given, count)
        least = np.sort(given)[-min(count, size)]
        assert set(np.flatnonzero(given >= least)) <= set(ids)
        assert (np.diff(ids) > 0).all()
    assert len(largest(logits, count)) <= max(2 * count, 50)


def test_the_gap_is_top_1_minus_top_2_and_leaves_the_row_as_it_was() -> None:
    logits = row(4, 1.5, 3)
    assert top_gap(logits, 0) == pytest.approx(1.0)
    assert logits.tolist() == [4, 1.5, 3]


def test_the_gap_of_a_row_with_one_finite_logit_is_finite() -> None:
    assert top_gap(row(-math.inf, 2), 1) == 0.0


def test_the_ratio_is_the_probability_over_the_likeliest_tokens() -> None:
    # p(1) / p(0) = e^(1-3) whatever the rest of the row holds.
    assert ratio(row(3, 1, -7), 1, 0) == pytest.approx(math.exp(-2), rel=1e-6)
    assert ratio(row(3, 1), 0, 0) == 1.0
    assert ratio(row(3, -math.inf), 1, 0) == 0.0


def test_exact_accepts_the_own_choice_alone() -> None:
    logits = row(math.log(0.5), math.log(0.4), math.log(0.1))
    assert judge(logits, 0, 0, 0, 1.0).by == "match"
    refused = judge(logits, 1, 0, 0, 1.0)
    assert (refused.accepted, refused.by) == (False, "")
    assert refused.ratio == pytest.approx(0.8, rel=1e-5)
    assert refused.gap == pytest.approx(math.log(0.5 / 0.4), rel=1e-5)


def test_exact_does_not_accept_an_equal_that_was_not_chosen() -> None:
    """Ratio 1.0 at a tie: margin 1.0 stays exact."""
    verdict = judge(row(2, 2), 1, 0, 0, 1.0)
    assert verdict.ratio == 1.0
    assert not verdict.accepted


@pytest.mark.parametrize(("margin", "accepted"), [(0.79, True), (0.81, False), (0.0, True)])
def test_approximate_accepts_from_the_margin_on(margin: float, accepted: bool) -> None:
    verdict = judge(row(math.log(0.5), math.log(0.4)), 1, 0, 0, margin)
    assert verdict.accepted is accepted
    assert verdict.by == ("ratio" if accepted else "")


def test_a_sampled_choice_that_is_not_the_argmax_matches() -> None:
    verdict = judge(row(3, 1), 1, 0, 1, 1.0)
    assert (verdict.accepted, verdict.by) == (True, "match")
    assert verdict.ratio == pytest.approx(math.exp(-2), rel=1e-6)


def test_a_proposals_probability_is_over_the_ten_best() -> None:
    # Twelve equal logits below the best by ln 2: of these nine are among the ten best.
    logits = row(math.log(2), *[0.0] * 12)
    proposal = propose(logits)
    assert proposal.token == 0
    assert proposal.gap == pytest.approx(math.log(2), rel=1e-6)
    assert proposal.prob == pytest.approx(2 / (2 + 9), rel=1e-6)


def test_a_proposal_from_a_reduced_vocabulary_ignores_what_is_outside() -> None:
    proposal = propose(row(-math.inf, 1.0, -math.inf, 1.0 + math.log(3)))
    assert proposal.token == 3
    assert proposal.prob == pytest.approx(0.75, rel=1e-6)


def test_a_distribution_and_its_entropy() -> None:
    p, entropy = distribution(row(math.log(0.5), math.log(0.25), math.log(0.25), -math.inf))
    assert p == pytest.approx([0.5, 0.25, 0.25, 0.0], abs=1e-7)
    assert entropy == pytest.approx(1.5 * math.log(2), rel=1e-6)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_row_without_numbers_is_judged_in_numbers(wrong: float) -> None:
    """A damaged model makes such rows; what is said of them goes through JSON, which has no NaN."""
    logits = row(wrong, wrong, wrong)
    verdict = judge(logits, 1, 0, 0, 0.5)
    assert (verdict.accepted, verdict.ratio, verdict.gap) == (False, 0.0, 0.0)
    proposal = propose(logits)
    assert (proposal.gap, proposal.prob) == (0.0, 0.0)
    p, entropy = distribution(logits)
    assert p.tolist() == pytest.approx([1 / 3] * 3)
    assert entropy == pytest.approx(math.log(3))
