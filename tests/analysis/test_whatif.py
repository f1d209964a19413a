"""What-if by numbers worked out by hand, and against real reruns of a simulated drafter."""

from __future__ import annotations

import math
import random

import pytest
from kits.recorded import draft, judged, step
from kits.work import calls

from ds4chat.analysis.rows import rows_from_steps
from ds4chat.analysis.whatif import what_if
from ds4chat.engine.events import Judged, Step, Tuning


class Times:
    """A step costs 10 ms and 2 ms more for each draft."""

    def step_ms(self, drafts: int) -> float:
        return 10.0 + 2.0 * drafts


THREE = [
    step(0, draft("+++"), depth=3),  # 4 tokens
    step(1, draft("+-"), drafted=3, depth=3),  # 2 tokens
    step(2, draft("-"), drafted=3, depth=3),  # 1 token
]


def test_the_recorded_settings_give_the_recorded_figures_exactly() -> None:
    """7 tokens in 3 steps, 9 drafted, 6 judged, 4 accepted; 3 steps of 16 ms."""
    result = what_if(rows_from_steps(THREE), times=Times())
    assert (result.steps, result.tokens, result.drafted, result.judged, result.accepted) == (3, 7, 9, 6, 4)
    assert result.by_position == ((3, 2), (2, 1), (1, 1))
    assert result.acceptance == pytest.approx(4 / 6)
    assert result.ms == pytest.approx(48)
    assert result.plain_ms == pytest.approx(70)
    assert result.speedup == pytest.approx(70 / 48)
    assert result.tokens_per_s == pytest.approx(7 / 48 * 1000)
    assert (result.estimate, result.exact_share, result.changed) == (False, 1, 0)


def test_a_lower_depth_that_no_accepted_draft_exceeds_is_exact() -> None:
    """Depth 1 of steps that accepted 1, 0: the rejected second draft is not made, its token stays."""
    rows = rows_from_steps(
        [step(0, draft("+-"), drafted=3, depth=3), step(1, draft("-"), drafted=3, depth=3)]
    )
    result = what_if(rows, depth=1, times=Times())
    assert (result.steps, result.tokens, result.drafted, result.judged, result.accepted) == (2, 3, 2, 2, 1)
    assert result.ms == pytest.approx(24)
    assert not result.estimate


def test_a_lower_depth_cuts_a_long_step_into_several() -> None:
    """Depth 1 of +++ and its bonus: [+ then d2's token], [+ then the bonus]; two steps for four tokens. The
    second begins where no recorded step began, so it is an estimate."""
    result = what_if(rows_from_steps([step(0, draft("+++"), depth=3)]), depth=1, times=Times())
    assert (result.steps, result.judged, result.accepted) == (2, 2, 2)
    assert result.estimate
    assert result.exact_share == pytest.approx(0.5)


def test_depth_zero_is_plain_decoding() -> None:
    """Seven tokens, seven steps, nothing judged."""
    result = what_if(rows_from_steps(THREE), depth=0, times=Times())
    assert (result.steps, result.judged, result.drafted) == (7, 0, 0)
    assert result.acceptance is None
    assert result.speedup == pytest.approx(1)


def test_a_greater_depth_is_an_estimate_where_a_step_would_go_on() -> None:
    """A rejected draft ends a step at any depth: exact, with more drafts wasted. A full one would go on."""
    rejected = what_if(rows_from_steps([step(0, draft("+-"), depth=2)]), depth=4, times=Times())
    assert (rejected.judged, rejected.accepted, rejected.drafted) == (2, 1, 4)
    assert not rejected.estimate
    full = what_if(rows_from_steps([step(0, draft("+"), depth=1), step(1, draft("-"), depth=1)]), depth=2)
    assert full.estimate


def test_a_missing_verdict_counts_as_the_recorded_acceptance() -> None:
    """Depth 1, one "+" and one "-" and one "+": acceptance 2/3. At depth 2 the first step's second draft,
    for the bonus token, is accepted with 2/3."""
    rows = rows_from_steps(
        [step(0, draft("+"), depth=1), step(1, draft("-"), depth=1), step(2, draft("+"), depth=1)]
    )
    # Tokens: 0 (+), 1 bonus, 2 (-), 3 (+), 4 bonus, end. Step A begins at 0: judges 0, then 1 with 2/3.
    # Accepted (2/3): 2 is the target's own, the next begins at 3. Rejected (1/3): the next begins at 2, is
    # rejected there, and the next begins at 3 as well. Step C at 3: judges 3, then 4 with 2/3; nothing left.
    result = what_if(rows, depth=2, times=Times())
    assert result.judged == pytest.approx(2 + 1 / 3 + 2)
    assert result.accepted == pytest.approx(1 + 2 / 3 + 1 + 2 / 3)
    assert result.steps == pytest.approx(1 + 1 / 3 + 1)
    assert result.tokens == 5


def test_a_gate_that_drops_only_rejected_drafts_is_exact() -> None:
    """Gate 0.5 drops the rejected row with gap 0.2: it is judged no more, and the step's text is the same."""
    rows = rows_from_steps(
        [step(0, [judged(1, True, draft_gap=3.0), judged(2, False, draft_gap=0.2)], drafted=2, depth=2)]
    )
    result = what_if(rows, gate=0.5, times=Times())
    assert (result.judged, result.accepted, result.drafted, result.steps) == (1, 1, 1, 1)
    assert result.ms == pytest.approx(12)
    assert not result.estimate


def test_a_gate_that_drops_an_accepted_draft_is_an_estimate() -> None:
    """Its token becomes the target's own, and the next step begins after it, within the recorded step."""
    rows = rows_from_steps(
        [step(0, [judged(1, True, draft_gap=0.2), judged(2, True, draft_gap=3.0)], depth=2, emitted=3)]
    )
    result = what_if(rows, gate=0.5, times=Times())
    # Step A: dropped at once, emits token 0. Step B: token 1 accepted; token 2 has no verdict.
    assert result.steps == pytest.approx(2)
    assert result.by_position[0] == pytest.approx((1, 1))
    assert result.estimate


def test_a_gate_leaves_drafts_without_logits_alone() -> None:
    """Lookup has no gap: no gate drops its drafts."""
    rows = rows_from_steps([step(0, draft("+-", draft_gap=None), depth=2)])
    assert what_if(rows, gate=5.0).judged == 2


def test_a_margin_that_changes_no_verdict_is_exact() -> None:
    """Rejected rows have a ratio of 0.125: a margin of 0.5 leaves them rejected."""
    result = what_if(rows_from_steps(THREE), margin=0.5, times=Times())
    assert (result.accepted, result.changed, result.estimate) == (4, 0, False)


def test_a_lower_margin_accepts_more_and_changes_the_text() -> None:
    """A margin of 0.1 reverses both rejections: it is an estimate, with two changed verdicts."""
    result = what_if(rows_from_steps(THREE), margin=0.1, times=Times())
    assert result.changed == 2
    assert result.estimate
    assert result.acceptance == pytest.approx(1)


def test_a_stricter_margin_rejects_what_the_ratio_alone_had_accepted() -> None:
    """Recorded at margin 0.1; in exact mode the first of the two drafts fails."""
    tuning = Tuning(depth=2, margin=0.1)
    rows = rows_from_steps(
        [step(0, [judged(1, True, by_ratio=True), judged(2, True)], depth=2, tuning=tuning)]
    )
    result = what_if(rows, margin=1.0, times=Times())
    assert result.changed == 1
    assert result.estimate
    assert result.by_position[0][0] == pytest.approx(
        2
    )  # rejected at token 0; the next step begins at token 1


def test_replies_are_walked_apart() -> None:
    """A step never drafts into the next reply."""
    rows = rows_from_steps(
        [step(0, draft("+"), depth=1, reply=1, emitted=1), step(0, draft("+"), depth=1, reply=2, emitted=1)]
    )
    result = what_if(rows, depth=4, times=Times())
    assert (result.steps, result.judged, result.accepted) == (2, 2, 2)


def test_without_rows_there_is_nothing_to_say() -> None:
    """No division by zero."""
    result = what_if(rows_from_steps([]))
    assert (result.steps, result.tokens, result.acceptance, result.tokens_per_s) == (0, 0, None, None)


@pytest.mark.parametrize("setting", [{"depth": 17}, {"margin": 1.5}, {"gate": -1.0}, {"gate": math.nan}])
def test_settings_out_of_range_are_refused(setting: dict[str, float]) -> None:
    """The sentence names the range."""
    with pytest.raises(ValueError, match="out of range"):
        what_if(rows_from_steps(THREE), **setting)  # type: ignore[arg-type]


def record_run(right: list[float], depth: int, gate: float, seed: int) -> list[Step]:
    """Run a drafter over a text. ``right``: for each token, how easy it is, 0..1; a draft is right
    with that chance, less 1 % for each position it is away from the step's begin."""
    rng = random.Random(seed)
    steps: list[Step] = []
    token = 0
    while token < len(right):
        rows: list[Judged] = []
        drafted = 0
        rejected = False
        for position in range(1, depth + 1):
            if token + position > len(right):
                break
            ease = right[token + position - 1]
            draft_gap = 4 * ease + rng.random()
            if draft_gap < gate:
                break
            drafted += 1
            if not rejected:
                accepted = rng.random() < ease * 0.99 ** (position - 1)
                rows.append(judged(position, accepted, draft_gap=draft_gap))
                rejected = not accepted
        accepted_count = sum(row.accepted for row in rows)
        emitted = min(accepted_count + 1, len(right) - token)
        steps.append(
            step(
                len(steps),
                rows,
                drafted=drafted,
                depth=depth,
                emitted=emitted,
                tuning=Tuning(depth=depth, gate=gate),
            )
        )
        token += max(emitted, accepted_count)
    return steps


def passages(tokens: int, seed: int) -> list[float]:
    """Text of easy and hard passages, as copying and free prose alternate."""
    rng = random.Random(seed)
    text: list[float] = []
    while len(text) < tokens:
        text += [rng.choice((0.95, 0.8, 0.45, 0.2))] * rng.randint(5, 25)
    return text[:tokens]


@pytest.mark.slow  # simulates long texts under both settings
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("recorded", [5, 8])
def test_a_rerun_at_a_lower_depth_comes_out_as_predicted(recorded: int, depth: int) -> None:
    """Acceptance within two points, tokens a step within 3 %. Counting recorded positions up to the new depth
    instead misses by four or more."""
    text = passages(20_000, 1)
    rows = rows_from_steps(record_run(text, recorded, 0.0, 2))
    rerun = what_if(rows_from_steps(record_run(text, depth, 0.0, 3)))
    predicted = what_if(rows, depth=depth)
    assert predicted.acceptance == pytest.approx(rerun.acceptance, abs=0.02)
    assert predicted.tokens_per_step == pytest.approx(rerun.tokens_per_step, rel=0.03)
    if depth == 1:
        naive = rows.accepted[rows.position == 1].mean()
        assert rerun.acceptance is not None
        assert abs(naive - rerun.acceptance) > 0.04


@pytest.mark.slow  # simulates long texts under both settings
@pytest.mark.parametrize("gate", [1.5, 2.5, 3.5])
def test_a_rerun_at_a_higher_gate_comes_out_as_predicted(gate: float) -> None:
    """Acceptance within two points, tokens a step within 3 %."""
    text = passages(20_000, 4)
    rows = rows_from_steps(record_run(text, 4, 0.0, 5))
    rerun = what_if(rows_from_steps(record_run(text, 4, gate, 6)))
    predicted = what_if(rows, gate=gate)
    assert predicted.acceptance == pytest.approx(rerun.acceptance, abs=0.02)
    assert predicted.tokens_per_step == pytest.approx(rerun.tokens_per_step, rel=0.03)


@pytest.mark.slow  # simulates long texts under both settings
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("recorded", "gate"), [(1.5, 1.5), (1.5, 2.5), (2.5, 2.5)])
def test_a_gated_record_predicts_lower_depths_and_higher_gates(
    recorded: float, gate: float, depth: int
) -> None:
    """What its gate refused is refused again: acceptance within two points, tokens a step within 3 %."""
    text = passages(20_000, 9)
    rows = rows_from_steps(record_run(text, 4, recorded, 10))
    rerun = what_if(rows_from_steps(record_run(text, depth, gate, 11)))
    predicted = what_if(rows, depth=depth, gate=gate)
    assert predicted.acceptance == pytest.approx(rerun.acceptance, abs=0.02)
    assert predicted.tokens_per_step == pytest.approx(rerun.tokens_per_step, rel=0.03)


def test_two_hundred_thousand_rows_are_walked_in_the_time_of_few_steps() -> None:
    """The cost grows with the rows and no faster."""
    small = rows_from_steps(record_run(passages(2_000, 7), 4, 0.0, 8))
    large = rows_from_steps(record_run(passages(20_000, 7), 4, 0.0, 8))
    work = [calls(lambda rows=rows: what_if(rows, depth=2)) for rows in (small, large)]
    assert work[1] < 12 * work[0]
