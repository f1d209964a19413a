"""What plain decoding takes for a reply, by made-up costs whose sums are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from kits.engine import load_of, opened

from ds4chat.engine.baseline import PlainPasses, PlainTime, PlainTotal, plain_steps
from ds4chat.engine.events import Tuning
from ds4chat.engine.session import Control

Cost = Callable[[int], float]


def simulate(
    tokens: int,
    plain_ms: Cost,
    drafting_ms: Cost,
    *,
    drafted: int = 2,
    emitted: int = 2,
    change_ms: float = 0.0,
    settling: int = 1,
    measure: bool = True,
    interrupted: Callable[[int], float] = lambda step: 0.0,
) -> tuple[PlainTime, float, list[int]]:
    """A reply at a fixed depth, its costs by the tokens so far: the baseline, the reply's milliseconds and
    the number of each pass. ``change_ms``: what each of the ``settling`` steps after a change of size takes
    longer; ``interrupted``: what a step takes longer because of something else."""
    passes, plain = PlainPasses(settling), PlainTime()
    taken, done, index, rows, same = 0.0, 0, 0, 0, 0
    numbers = []
    while done < tokens:
        plainly = measure and passes.due()
        now = 1 if plainly else drafted + 1
        same = same + 1 if now == rows else 0
        rows = now
        ms = (plain_ms if plainly else drafting_ms)(done) + interrupted(index)
        ms += change_ms if same < settling else 0.0
        came = 1 if plainly else emitted
        is_pass = passes.add(rows, came, ms, ms)
        plain.add(rows=rows, tokens=came, total_ms=ms, draft_ms=0.0, is_pass=is_pass)
        if is_pass:
            numbers.append(index)
        taken, done, index = taken + ms, done + came, index + 1
    return plain, taken, numbers


def plainly(tokens: int, cost: Cost) -> float:
    """Milliseconds of plain decoding."""
    return sum(cost(n) for n in range(tokens))


@pytest.mark.parametrize("begin", [0, 1900])
@pytest.mark.parametrize("tokens", [200, 2000])
def test_a_growing_context_counts_as_it_grows(begin: int, tokens: int) -> None:
    """A plain step takes 11 ms and 12 us for each token before it; a step of 2 drafts 1.6 times as much."""

    def cost(n: int) -> float:
        return 11 + 0.012 * (begin + n)

    plain, taken, _ = simulate(tokens, cost, lambda n: 1.6 * cost(n), change_ms=1.0)
    assert plain.ms == pytest.approx(plainly(tokens, cost), rel=0.015)
    assert plain.speedup == pytest.approx(plainly(tokens, cost) / taken, rel=0.015)


def test_tokens_after_the_last_run_take_longer_as_the_steps_around_them_do() -> None:
    """One run at the begin and 600 tokens behind it, the context grown by as much: 11 ms become 18."""

    def cost(n: int) -> float:
        return 11 + 0.012 * n

    plain = PlainTime()
    plain.add(rows=1, tokens=1, total_ms=cost(0), draft_ms=0.0, is_pass=True)
    for n in range(1, 601, 2):
        plain.add(rows=3, tokens=2, total_ms=2 * cost(n), draft_ms=0.0, is_pass=False)
    assert plain.ms == pytest.approx(plainly(601, cost), rel=0.02)


def test_a_load_that_comes_and_goes_counts_where_it_was() -> None:
    """Everything takes three times as long in the second quarter of the reply."""

    def load(n: int) -> float:
        return 3.0 if 500 <= n < 1000 else 1.0

    plain, _, _ = simulate(2000, lambda n: 10 * load(n), lambda n: 16 * load(n))
    assert plain.ms == pytest.approx(plainly(2000, lambda n: 10 * load(n)), rel=0.02)


def test_without_speculation_it_is_the_reply_itself() -> None:
    """Whatever the steps take: 2,000 plain ones, every 50th of them interrupted for twenty times its time."""

    def interrupted(step: int) -> float:
        return 200.0 if step % 50 == 49 else 0.0

    plain, _, _ = simulate(
        2000, lambda n: 10 + n / 100, lambda n: 10 + n / 100, drafted=0, emitted=1, interrupted=interrupted
    )
    assert plain.speedup == pytest.approx(1.0)


def test_an_interrupted_pass_does_not_stand_for_the_steps_around_it() -> None:
    """One of the passes takes 100 times as long: of 2,000 x 10 ms that is 5 % more, on either side."""
    _, _, passes = simulate(2000, lambda n: 10.0, lambda n: 16.0)
    for hit in (passes[3], passes[8]):
        plain, taken, _ = simulate(
            2000, lambda n: 10.0, lambda n: 16.0, interrupted=lambda step, hit=hit: 1000.0 * (step == hit)
        )
        assert plain.speedup == pytest.approx(20_000 / (taken - 1000), rel=0.02)


def test_drafting_steps_that_are_interrupted_do_not_make_plain_decoding_look_fast() -> None:
    """Every 50th step takes 320 ms longer, two fifths of the drafting time: plain decoding would not have
    been spared."""
    plain, _, _ = simulate(
        2000, lambda n: 10.0, lambda n: 16.0, interrupted=lambda step: 320.0 * (step % 50 == 20)
    )
    assert plain.speedup == pytest.approx(20_000 / 16_000, rel=0.05)


@pytest.mark.parametrize("settling", [1, 2])
def test_what_a_change_of_size_costs_is_left_out(settling: int) -> None:
    """A graph that is built anew takes twice as long as the pass. Plain decoding, too, begins with that."""
    plain, _, _ = simulate(2000, lambda n: 10.0, lambda n: 16.0, change_ms=20.0, settling=settling)
    assert plain.ms == pytest.approx(20_000 + settling * 20, abs=10)  # a last step may emit one more


@pytest.mark.parametrize(
    ("drafting_ms", "emitted", "change_ms", "settling"),
    [(12.0, 2, 0.0, 1), (12.0, 4, 0.5, 1), (9.0, 4, 30.0, 2), (30.0, 1, 0.0, 1)],
)
@pytest.mark.parametrize("tokens", [300, 3000])
def test_measuring_adds_a_hundredth_to_the_reply_at_most(
    drafting_ms: float, emitted: int, change_ms: float, settling: int, tokens: int
) -> None:
    """The reply with passes against the one without; the first pass, which each reply has, is apart."""
    costs = (tokens, lambda n: 10.0, lambda n: drafting_ms)
    more = {"emitted": emitted, "change_ms": change_ms, "settling": settling}
    _, without, _ = simulate(*costs, **more, measure=False)
    _, taken, passes = simulate(*costs, **more)
    assert len(passes) >= 1
    first = (settling + 1) * 10 + 2 * settling * change_ms
    assert taken - without <= 0.01 * taken + first + drafting_ms  # a last step may be half used


def test_a_pass_comes_with_the_first_steps_and_two_every_32_steps() -> None:
    """A step that settles the size, the pass; 32 steps later one that settles, two passes."""
    _, _, passes = simulate(200, lambda n: 10.0, lambda n: 30.0)
    assert passes == [1, 35, 36, 70, 71]
    _, _, passes = simulate(200, lambda n: 10.0, lambda n: 30.0, settling=2)
    assert passes == [2, 37, 38, 73, 74]


def test_steps_that_draft_nothing_of_their_own_are_passes_and_no_run_is_due() -> None:
    """Every fifth stretch of lookup finds nothing for three steps."""
    passes = PlainPasses(1)
    for rows in (1, 1, 4):
        passes.add(rows, rows, 10.0, 10.0)
    for number in range(200):
        assert not passes.due()
        rows = 1 if number % 15 < 3 else 4
        assert passes.add(rows, rows, 10.0, 10.0) == (rows == 1 and number % 15 > 0)


def test_a_step_in_which_something_went_wrong_is_no_pass() -> None:
    passes = PlainPasses(1)
    assert [passes.add(rows, 1, 10.0, 10.0) for rows in (1, 1, 0, 1, 1)] == [False, True, False, False, True]


def test_before_a_pass_the_load_stands_in() -> None:
    plain = PlainTime(20.0)
    assert (plain.at_load, plain.ms, plain.tokens_per_s, plain.speedup) == (True, None, 50.0, None)
    plain.add(rows=3, tokens=3, total_ms=30.0, draft_ms=5.0, is_pass=False)
    assert (plain.at_load, plain.ms, plain.tokens_per_s, plain.speedup) == (True, 60.0, 50.0, 2.0)
    plain.add(rows=1, tokens=1, total_ms=12.0, draft_ms=2.0, is_pass=True)
    assert (plain.at_load, plain.passes, plain.ms) == (False, 1, 40.0)
    assert plain.speedup == 40 / 42


def test_without_a_pass_and_a_load_nothing_is_said() -> None:
    plain = PlainTime()
    plain.add(rows=3, tokens=3, total_ms=30.0, draft_ms=5.0, is_pass=False)
    assert plain.ms is plain.tokens_per_s is plain.speedup is None


def test_the_draft_that_a_step_of_one_row_was_asked_for_in_vain_is_left_out() -> None:
    plain = PlainTime()
    plain.add(rows=1, tokens=1, total_ms=15.0, draft_ms=5.0, is_pass=True)
    assert plain.ms == 10.0


def test_a_check_weighs_as_a_pass_for_each_token() -> None:
    """One pass says 4 x 10 ms, a check of 4 tokens 65: (40 + 4 x 65) / 5."""
    plain = PlainTime()
    plain.add(rows=1, tokens=1, total_ms=10.0, draft_ms=0.0, is_pass=True)
    plain.add(rows=3, tokens=3, total_ms=20.0, draft_ms=5.0, is_pass=False)
    plain.checked_ms = 65.0
    assert plain.ms == pytest.approx(60.0)


def test_several_replies_together_are_those_that_tell() -> None:
    first, second, silent = PlainTime(), PlainTime(), PlainTime()
    first.add(rows=1, tokens=1, total_ms=10.0, draft_ms=0.0, is_pass=True)
    second.add(rows=1, tokens=1, total_ms=30.0, draft_ms=10.0, is_pass=True)
    silent.add(rows=3, tokens=3, total_ms=30.0, draft_ms=0.0, is_pass=False)
    together = PlainTotal.of([first, second, silent])
    assert (together.ms, together.tokens, together.speedup, together.at_load) == (30.0, 2, 0.75, False)


def test_an_end_token_takes_plain_decoding_a_step() -> None:
    """Emitted and judged: a correction, a bonus, an accepted end token, a plain end token."""
    assert [plain_steps(*step) for step in ((2, 2), (3, 2), (1, 2), (0, 0))] == [2, 3, 2, 1]


# -- in the engine


@pytest.mark.parametrize("temp", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["llama-draft", "deepseek4-support", "eagle3", "qwen35-nextn"])
def test_plain_steps_in_between_leave_the_text_as_it_is(tiny_dir: Path, drafter: str, temp: float) -> None:
    """The first pass is the reply's second step, and the drafter goes on behind every run."""
    with opened(load_of(tiny_dir, drafter, wrong_every=3)) as bench:
        bench.session.reset()
        without = bench.ask(n=150, depth=2, temp=temp, seed=7, ignore_eos=True)
        bench.session.reset()
        got = bench.ask(n=150, depth=2, temp=temp, seed=7, ignore_eos=True, baseline=True)
    assert got.ids == without.ids
    assert [step.drafted for step in got.steps[:3]] == [0, 0, 2]
    assert {step.depth for step in got.steps[:-3]} == {2}  # near the end there is room for fewer
    assert got.steps[1].baseline and not got.steps[0].baseline
    assert {step.drafted for step in got.steps if step.baseline} == {0}
    assert got.stats.plain.passes >= 1
    assert not [step for step in without.steps[:-1] if not step.drafted]


def test_a_paused_stretch_feeds_the_baseline(tiny_dir: Path) -> None:
    """Paused at the fifth step: all but the first of the paused ones are passes."""
    with opened(load_of(tiny_dir, "llama-draft", wrong_every=0)) as bench:

        def pause(event: object, control: Control) -> None:
            if getattr(event, "index", None) == 4:
                control.tuning = dataclasses.replace(control.tuning, depth=0)

        got = bench.ask(n=60, tuning=Tuning(depth=2), hook=pause, ignore_eos=True)
    paused = got.steps[5:]
    assert [step.baseline for step in paused] == [False, *[True] * (len(paused) - 1)]


def test_without_a_drafter_a_reply_is_as_fast_as_plain_decoding(tiny_dir: Path) -> None:
    with opened(dataclasses.replace(load_of(tiny_dir, "llama-draft"), support="")) as bench:
        got = bench.ask(n=200, depth=2, ignore_eos=True, baseline=True)
    assert got.stats.plain.passes == 199
    assert got.stats.plain.speedup == pytest.approx(1.0)


def test_a_probe_drafts_in_every_step_and_is_all_passes(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft", wrong_every=3)) as bench:
        got = bench.ask(n=20, depth=2, probe=True, ignore_eos=True, baseline=True)
    assert [step.drafted for step in got.steps[:-1]] == [1] * 19
    assert [step.baseline for step in got.steps] == [False] + [True] * 19


def test_a_check_tells_what_plain_decoding_of_the_whole_reply_took(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft", wrong_every=0)) as bench:
        got = bench.ask(n=40, depth=2)
        replayed = bench.check()
    assert replayed.equal and replayed.plain_ms > 0
    got.stats.fold(replayed)
    assert got.stats.plain.checked_ms == replayed.plain_ms
    assert not got.stats.plain.at_load
