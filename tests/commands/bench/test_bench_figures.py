"""Figures, uncertainty and advice of a bench, by numbers worked out by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ds4chat.commands.bench.advice import advise, uncertainty
from ds4chat.commands.bench.figures import figures
from ds4chat.commands.bench.report import plot
from ds4chat.commands.bench.result import WorkloadDocument
from ds4chat.commands.bench.runs import Measured, Run, ServerRun, deepest_gains, in_turn
from ds4chat.engine.events import Depth, Judged, Phases, Step, Token, Tuning


def step(
    index: int, drafted: int, accepted: int, verify: float, draft: float = 0.0, rest: float = 1.0
) -> Step:
    """A step at a fixed depth equal to ``drafted``; it emits accepted + 1 tokens."""
    judged = tuple(
        Judged(
            i + 1,
            5,
            "x",
            5 if i < accepted else 6,
            "x",
            i < accepted,
            "match" if i < accepted else "",
            1.0,
            9.0,
        )
        for i in range(min(accepted + 1, drafted))
    )
    tokens = tuple(Token(i, "x", "accepted" if i < accepted else "bonus") for i in range(accepted + 1))
    ms = Phases(draft, verify, rest, 0.0, 0.0, draft + verify + rest)
    outcome = "plain" if not drafted else "full" if accepted == drafted else "partial"
    return Step(1, index, tokens, drafted, judged, outcome, ms, Tuning(depth=drafted), drafted, "x", 10)


def run_of(text: str, prompt: int, depth: Depth, ms: float, steps: list[Step]) -> Run:
    ids = tuple(token.id for s in steps for token in s.tokens)
    return Run(text, prompt, depth, ids, ms, tuple(steps))


def plain(text: str, prompt: int, ms: float, tokens: int = 4) -> Run:
    return run_of(text, prompt, 0, ms, [step(i, 0, 0, 9.0) for i in range(tokens)])


def text_of(
    ratio: float, *, depth: int = 1, noise: float = 0.0, auto: float | None = None
) -> WorkloadDocument:
    """A kind of text whose one depth has this ratio; two plain runs differ by ``noise``."""
    runs = [plain("t", 0, 40.0), plain("t", 0, 40.0 * (1 + noise))]
    base = 4 / (20.0 * (2 + noise))
    steps = [step(0, depth, depth, 9.0, 1.0)]
    emitted = depth + 1
    runs.append(run_of("t", 0, depth, emitted / (ratio * base), steps))
    if auto is not None:
        runs.append(run_of("t", 0, "auto", emitted / (auto * base), steps))
    return figures(Measured(runs=runs), ["t"])[0]


def test_ratios_are_taken_against_the_mean_of_the_two_plain_runs_of_the_same_prompt() -> None:
    """Plain: 4 tokens in 30 and 50 ms, so 40 on average, 100 tokens/s. Depth 1: 4 tokens in 32 ms, 125."""
    drafting = [step(i, 1, 1, 12.0, 2.0) for i in range(2)]
    measured = Measured(runs=[plain("a", 0, 30.0), run_of("a", 0, 1, 32.0, drafting), plain("a", 0, 50.0)])
    (text,) = figures(measured, ["a", "never measured"])
    assert text.plain.tokens_per_s == pytest.approx(100)
    assert text.fixed[0].tokens_per_s == pytest.approx(125)
    assert text.fixed[0].ratio == pytest.approx(1.25)
    assert text.noise == [pytest.approx(50 / 30 - 1, abs=1e-4)]
    assert text.fixed[0].acceptance == 1.0


def test_medians_and_quartiles_are_over_prompts() -> None:
    """Ratios 1, 2 and 4: median 2, quartiles 1.5 and 3."""
    runs = []
    for prompt, factor in enumerate((1.0, 2.0, 4.0)):
        drafting = [step(i, 1, 1, 9.0, 1.0) for i in range(2)]
        runs += [plain("a", prompt, 40.0), run_of("a", prompt, 1, 40.0 / factor, drafting)]
    (text,) = figures(Measured(runs=runs), ["a"])
    assert text.fixed[0].ratio == pytest.approx(2)
    assert text.fixed[0].ratio_spread == (pytest.approx(1.5), pytest.approx(3))


def test_the_prediction_walks_the_deepest_run_at_the_measured_step_times() -> None:
    """Depth 2 recorded two full steps, 6 tokens; every draft was right. At depth 1 the same text takes 3
    steps of 2 tokens, each 12 + 2 + 1 ms: 6 tokens in 45 ms."""
    deep = [step(i, 2, 2, 15.0, 4.0) for i in range(2)]
    low = [step(i, 1, 1, 12.0, 2.0) for i in range(3)]
    measured = Measured(
        runs=[plain("a", 0, 60.0, 6), run_of("a", 0, 1, 45.0, low), run_of("a", 0, 2, 40.0, deep)]
    )
    (text,) = figures(measured, ["a"])
    assert [s.depth for s in text.fixed] == [1, 2]
    assert text.fixed[0].predicted_tokens_per_s == pytest.approx(6 / 45 * 1000, rel=0.02)
    assert text.fixed[1].predicted_tokens_per_s == pytest.approx(6 / 40 * 1000)


def test_the_limit_is_tokens_a_pass_over_verification_and_drafts() -> None:
    """Depth 2 in steps of 3, 1 and 2 tokens: E = 2. v(3) = 1.5 and c = 2 ms of 10, so S = 2 / (1.5 + 0.4);
    the steps took 16 ms each, 6 tokens in 48 ms, which is 1.25 times plain decoding."""
    drafting = [step(i, 2, accepted, 12.0, 4.0, 0.0) for i, accepted in enumerate((2, 0, 1))]
    runs = [plain("a", 0, 40.0), run_of("a", 0, 2, 48.0, drafting), plain("a", 0, 40.0)]
    (text,) = figures(Measured(verify_ms=[8.0, 10.0, 12.0], runs=runs), ["a"])
    assert text.fixed[0].limit == pytest.approx(2 / 1.9, abs=1e-4)
    assert text.fixed[0].limit_share == pytest.approx(1.25 * 1.9 / 2, abs=1e-4)
    (text,) = figures(Measured(verify_ms=[8.0, 10.0], runs=runs), ["a"])
    assert text.fixed[0].limit is None and text.fixed[0].limit_share is None


def test_a_step_without_drafts_counts_as_a_plain_pass_of_the_limit() -> None:
    """Lookup found two drafts in one step of three: 5 tokens for 1.5 + 2 * 0.1 + 1 + 1 passes."""
    looking = [step(0, 2, 2, 12.0, 2.0), step(1, 0, 0, 8.0), step(2, 0, 0, 8.0)]
    runs = [plain("a", 0, 40.0), run_of("a", 0, 2, 40.0, looking)]
    (text,) = figures(Measured(verify_ms=[8.0, 10.0, 12.0], runs=runs), ["a"])
    assert text.fixed[0].limit == pytest.approx(5 / 3.7, abs=1e-4)


def speeds(prompt: int, noise: float, **ms: float) -> list[Run]:
    """Runs of one prompt: plain in 40 ms and again slower by ``noise``, the depths in these milliseconds."""
    drafting = [step(i, 1, 1, 9.0, 1.0) for i in range(2)]
    runs = [plain("t", prompt, 40.0), plain("t", prompt, 40.0 * (1 + noise))]
    return runs + [run_of("t", prompt, int(depth[1:]), taken, drafting) for depth, taken in ms.items()]


@pytest.mark.parametrize(
    ("runs", "gains"),
    [
        (speeds(0, 0.02, d4=30.0, d8=29.0), True),
        (speeds(0, 0.05, d4=30.0, d8=29.0), False),
        (speeds(0, 0.02, d2=28.0, d4=30.0, d8=29.0), False),
        (speeds(0, 0.02, d4=20.0, d8=29.0) + speeds(1, 0.02, d4=30.0, d8=29.0), True),
        (speeds(0, 0.02, d8=29.0), False),
        ([], False),
    ],
    ids=["by more than the noise", "within it", "not the best", "on one prompt", "nothing beside it", "none"],
)
def test_the_deepest_depth_gains_where_it_is_the_fastest_beyond_the_noise(
    runs: list[Run], gains: bool
) -> None:
    assert deepest_gains(runs) is gains


def test_a_server_is_compared_with_plain_decoding_of_the_same_prompt() -> None:
    measured = Measured(runs=[plain("a", 0, 40.0)], server=[ServerRun("a", 0, 110.0)])
    (text,) = figures(measured, ["a"])
    assert text.server is not None and text.server.ratio == pytest.approx(1.1)


def test_a_servers_tokens_are_held_against_those_of_plain_decoding_where_it_names_them() -> None:
    same = plain("a", 0, 40.0).ids
    measured = Measured(
        runs=[plain("a", at, 40.0) for at in range(3)],
        server=[
            ServerRun("a", 0, 60.0, same, drafted=4, accepted=3),
            ServerRun("a", 1, 60.0, (*same[:-1], same[-1] + 1), drafted=4, accepted=2),
            ServerRun("a", 2, 60.0),
        ],
    )
    (text,) = figures(measured, ["a"])
    assert text.server is not None
    assert text.server.same_text == (1, 2)
    assert text.server.acceptance == 5 / 8


def test_a_block_begins_and_ends_plainly_and_turns_what_is_between() -> None:
    settings: tuple[Depth, ...] = (0, 1, 2, "auto", 0)
    assert in_turn(settings, 0) == [0, 1, 2, "auto", 0]
    assert in_turn(settings, 1) == [0, 1, "auto", 2, 0]
    assert in_turn(settings, 2) == [0, "auto", 1, 2, 0]
    assert in_turn((0, 0), 3) == [0, 0]


def test_uncertainty_shrinks_with_the_prompts() -> None:
    noisy = text_of(1.2, noise=0.2)
    assert uncertainty([noisy]) == pytest.approx(0.2)
    assert uncertainty([noisy] * 4) == pytest.approx(0.1)


# ------------------------------------------------------------------------------------ advice


def test_it_pays_where_a_depth_is_faster_over_all_texts() -> None:
    """The ratio over all is the geometric mean."""
    advice = advise([text_of(1.5, depth=2), text_of(1.2, depth=2)], "eagle3", [1.0, 1.2])
    assert (advice.pays, advice.set) == (True, 2)
    assert "1.34 times" in advice.sentence and "--mtp-draft 2" in advice.sentence


def test_auto_is_advised_where_it_is_nearly_as_good_as_the_best_depth() -> None:
    assert advise([text_of(1.5, auto=1.47)], "eagle3", []).set == "auto"
    assert advise([text_of(1.5, auto=1.40)], "eagle3", []).set == 1


def test_it_does_not_pay_where_the_best_depth_is_slower() -> None:
    advice = advise([text_of(0.8), text_of(0.7)], "eagle3", [1.0, 1.8])
    assert (advice.pays, advice.set) == (False, "off")
    assert "0.75" in advice.sentence and "1.80 times a plain step" in advice.sentence


def test_it_pays_on_one_kind_of_text_alone() -> None:
    good, bad = text_of(1.3, auto=1.1), text_of(0.7, auto=0.97)
    advice = advise([replace(good, prompts=2), bad, bad], "eagle3", [1.0, 1.8])
    assert advice.set == "auto" and "1.30 at depth 1" in advice.sentence


def test_one_prompt_or_a_gain_within_the_noise_is_not_a_kind_of_text_that_pays() -> None:
    """Two prompts whose plain runs differ by 15 % leave a ratio of 1.2 open: 0.15 / root 1 * 2 = 0.3."""
    bad = [text_of(0.7)] * 40
    assert advise([text_of(1.3), *bad], "eagle3", []).set == "off"
    noisy = replace(text_of(1.2, noise=0.15), prompts=2)
    assert advise([noisy, *bad], "eagle3", []).pays is False


def test_a_kind_of_text_that_was_broken_off_does_not_decide_for_its_only_depth() -> None:
    """The whole text has depths 1 (1.5) and 2 (1.2); of the other only depth 2 (1.3) was measured."""
    runs = [plain("t", 0, 40.0), plain("t", 0, 40.0)]
    runs += [run_of("t", 0, 1, 40 / 1.5, [step(i, 1, 1, 9.0, 1.0) for i in range(2)])]
    runs += [run_of("t", 0, 2, 30 / 1.2, [step(0, 2, 2, 9.0, 1.0)])]
    whole = figures(Measured(runs=runs), ["t"])[0]
    advice = advise([whole, text_of(1.3, depth=2)], "eagle3", [])
    assert (advice.pays, advice.set) == (True, 1)


def test_auto_that_never_drafts_is_not_said_to_speed_anything_up() -> None:
    """Its speed is plain decoding's; 1.2 would be noise."""
    runs = [plain("t", 0, 40.0), plain("t", 0, 40.0)]
    runs += [run_of("t", 0, 1, 50.0, [step(i, 1, 1, 20.0, 1.0) for i in range(2)])]
    runs += [run_of("t", 0, "auto", 33.0, [step(i, 0, 0, 9.0) for i in range(4)])]
    advice = advise(figures(Measured(runs=runs), ["t"]), "eagle3", [])
    assert (advice.pays, advice.set) == (False, "off")


def test_a_machine_too_busy_to_tell_is_said_to_be() -> None:
    advice = advise([text_of(1.1, noise=0.3)], "eagle3", [])
    assert advice.pays is None and "too busy" in advice.sentence
    assert advise([text_of(2.5, noise=0.3)], "eagle3", []).pays is True


def test_without_a_drafter_it_says_what_to_give_and_what_it_must_bring() -> None:
    advice = advise([], "", [1.0, 1.7])
    assert advice.set is None and "--mtp FILE" in advice.sentence and "70%" in advice.sentence
    assert "cannot pay" in advise([], "", [1.0, 2.1]).sentence


def test_a_drafter_that_was_given_up_is_advised_off() -> None:
    advice = advise([], "eagle3", [], given_up="Speculation is off: nothing was accepted.")
    assert advice.set == "off" and "nothing was accepted" in advice.sentence


# ------------------------------------------------------------------------------------ the picture


def test_a_bar_is_as_long_as_its_ratio_and_plain_decoding_is_marked() -> None:
    """The longest bar, 2.0, has 44 cells; plain decoding 22, and 0.5 has 11 with a mark at plain's end."""
    text = text_of(2.0, depth=1, auto=0.5)
    plain_line, fast, slow = plot([text]).splitlines()
    assert plain_line.count("█") == 22 and plain_line.endswith("1.00")
    assert fast.count("█") == 44 and fast.endswith("2.00")
    assert slow.count("█") == 11 and slow.endswith("0.50")
    assert slow.index("│") == plain_line.rindex("█")
