"""Probabilities of drafts that a record lacks, by numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kits.recorded import judged, step

from ds4chat.analysis.missing import MissingDrafts, refused_steps
from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.analysis.whatif import what_if
from ds4chat.engine.events import Step, Tuning


def run_of(
    drafts: Sequence[Sequence[tuple[bool, float]]], depth: int, gate: float = 0.0, *, apart: bool = False
) -> JudgedRows:
    """Steps of (accepted, gap) drafts, each a reply of its own if ``apart``; a step that drafted less than
    the depth without a rejection was stopped by its gate."""
    steps: list[Step] = []
    for number, draft in enumerate(drafts):
        rows = [judged(i + 1, accepted, draft_gap=gap) for i, (accepted, gap) in enumerate(draft)]
        rejected = bool(draft) and not draft[-1][0]
        steps.append(
            step(
                number,
                rows,
                drafted=depth if rejected else len(draft),
                depth=depth,
                outcome=None if draft else "gated",
                tuning=Tuning(depth=depth, gate=gate),
                reply=number if apart else 1,
            )
        )
    return rows_from_steps(steps)


def chances(rows: JudgedRows, gate: float | None = None) -> MissingDrafts:
    passes = ~(rows.draft_gap < (0.0 if gate is None else gate))
    return MissingDrafts(rows, rows.accepted, passes)


GOOD, BAD = (True, 5.0), (False, 5.0)


def test_a_draft_after_accepted_ones_is_accepted_as_often_as_recorded_ones_after_that_many() -> None:
    """Of 40 first drafts 30 were accepted, of 30 second ones 27. After both: as after one."""
    rows = run_of([[BAD]] * 10 + [[GOOD, BAD]] * 3 + [[GOOD, GOOD]] * 27, depth=2)
    found = chances(rows)
    assert found.accepted[:4] == pytest.approx([0.75, 0.9, 0.9, 0.9])
    assert found.passes[:4] == [1.0] * 4


def test_the_walk_takes_the_token_behind_a_full_draft_for_as_easy_as_its_last_draft() -> None:
    """Each step is a reply of its own. At depth 1 the 27 full ones make two steps: the first draft, accepted,
    and the token behind both, accepted in 0.9 of cases and not in 0.75. The others make one."""
    rows = run_of([[BAD]] * 10 + [[GOOD, BAD]] * 3 + [[GOOD, GOOD]] * 27, depth=2, apart=True)
    single = what_if(rows, depth=1)
    assert (single.judged, single.steps) == pytest.approx((27 * 2 + 3 + 10, 27 * 2 + 3 + 10))
    assert single.accepted == pytest.approx(27 * 1.9 + 3)
    assert single.estimate


def test_few_drafts_behind_a_number_of_accepted_ones_say_nothing() -> None:
    """19 second drafts, all accepted, are too few: they count as first ones do, of which 19 of 38 were."""
    rows = run_of([[BAD]] * 19 + [[GOOD, GOOD]] * 19, depth=2)
    assert chances(rows).accepted[:2] == pytest.approx([0.5, 0.5])


def test_under_a_gate_a_missing_draft_is_judged_by_those_that_pass_it() -> None:
    """60 drafts: 20 of small gap with 5 accepted, 40 of great gap with 36. Gate 1 lets 2 in 3 pass, of which
    0.9 are accepted; without it 41 of 60 are."""
    weak = [[(True, 0.5)]] * 5 + [[(False, 0.5)]] * 15
    rows = run_of([*weak, *[[(True, 4.0)]] * 36, *[[(False, 4.0)]] * 4], depth=1)
    gated = chances(rows, 1.0)
    assert (gated.passes[0], gated.accepted[0]) == pytest.approx((2 / 3, 0.9))
    assert chances(rows, 0.0).accepted[0] == pytest.approx(41 / 60)


def test_drafts_that_the_recorded_gate_refused_count_among_those_that_do_not_pass() -> None:
    """Gate 2 was recorded: 60 drafts passed, 40 were refused. The same gate refuses them again."""
    rows = run_of([[(True, 3.0)]] * 60 + [[]] * 40, depth=1, gate=2.0)
    assert refused_steps(rows).sum() == 40
    for gate in (None, 2.0, 2.5):
        found = chances(rows, gate)
        assert found.passes[0] == pytest.approx(0.6)
        assert found.pass_rate == pytest.approx(0.6)


def test_what_a_lower_gate_would_let_pass_is_not_on_record() -> None:
    rows = run_of([[(True, 3.0)]] * 25 + [[]] * 76, depth=1, gate=2.0)
    with pytest.raises(ValueError, match=r"not on record: the gate of 2 refused drafts"):
        what_if(rows, gate=1.0)
    assert what_if(rows, gate=2.0).judged == 25
    kept = run_of([[(True, 3.0)]] * 25, depth=1, gate=2.0)
    assert what_if(kept, gate=1.0).judged == 25


def test_a_drafter_without_logits_is_not_refused_by_a_gate() -> None:
    """Lookup drafts as much as it finds: a short draft under a gate is no refusal."""
    short = step(0, [judged(1, True, draft_gap=None)], depth=3, tuning=Tuning(depth=3, gate=1.0))
    nothing = step(1, [], depth=3, outcome="plain", tuning=Tuning(depth=3, gate=1.0))
    full = step(2, [judged(1, True)], depth=1, tuning=Tuning(depth=1, gate=1.0))
    refused = step(3, [judged(1, True, draft_gap=3.0)], depth=3, tuning=Tuning(depth=3, gate=1.0))
    assert refused_steps(rows_from_steps([short, nothing, full, refused])).tolist() == [
        False,
        False,
        False,
        True,
    ]


def test_without_rows_there_are_chances_all_the_same() -> None:
    """No division by zero: a draft passes and fails."""
    found = chances(rows_from_steps([]), 1.0)
    assert (found.passes[0], found.accepted[0], found.pass_rate) == (1.0, 0.0, 1.0)
