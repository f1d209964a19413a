"""Auto depth with lookup on recorded texts: what it chooses is judged at given costs, so that nothing is left
to the machine. The texts are the demo model's greedy replies to the prompts that ds4chat ships."""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from kits.world import FixedDepth

from ds4chat.engine.auto.acceptance import Ledger
from ds4chat.engine.auto.controller import AutoDepth
from ds4chat.engine.auto.costs import CostTable
from ds4chat.engine.drafters.base import Policy
from ds4chat.engine.drafters.lookup import Lookup

TEXTS = json.loads((Path(__file__).parent / "recorded_texts.json").read_text())
"""30 of {"kind", "prompt": token ids, "reply": token ids}, six of each kind."""
PLAIN_MS = 8.0
COSTS = {
    "Q4_1 on two cores": (1, 1.7, 2.07, 2.48, 2.9, 3.3, 3.6, 3.9, 4.2),
    "F16 on two cores": (1, 1.2, 1.45, 1.7, 1.95, 2.2, 2.45, 2.7, 2.95),
    "a GPU": (1, 1.13, 1.33, 1.37, 1.42, 1.42, 1.46, 1.52, 1.6),
}
"""v(0..8); each further row costs what the last one did."""


def table(costs: tuple[float, ...], change: float = 0.0) -> CostTable:
    """What measuring such a machine finds."""
    return CostTable(
        [PLAIN_MS * verify(costs, k) + 0.15 for k in range(17)],
        [0.0] + [0.06] * 16,
        [PLAIN_MS * change, PLAIN_MS * change],
    )


def verify(costs: tuple[float, ...], drafts: int) -> float:
    """Plain steps of a verification of this many drafts."""
    return costs[drafts] if drafts < 9 else costs[8] + (costs[8] - costs[7]) * (drafts - 8)


def answer(
    controller: AutoDepth,
    text: dict,
    tokens: int,
    costs: tuple[float, ...],
    rng: random.Random,
    change: float,
) -> tuple[int, float]:
    """Decode a recorded reply with lookup: its tokens and the plain steps that they took. What the
    controller is told of the time scatters by 3 %. ``change``: what a step takes longer that is the first or
    the second of its size."""
    prompt, reply = text["prompt"], text["reply"][:tokens]
    lookup = Lookup(max_depth=16)
    committed, last, at, cost = list(prompt[:-1]), prompt[-1], 0, 0.0
    rows, same = 0, 0
    lookup.observe(committed, 0, len(committed))
    controller.begin()
    while at < len(reply):
        limit = len(reply) - at - 1
        depth = controller.choose(limit) if limit else 0
        policy = Policy(0, lambda token: False, controller.keep_drafting, given=len(prompt))
        drafts = lookup.draft(committed, last, depth, policy).tokens if depth else []
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == reply[at + accepted]:
            accepted += 1
        emitted = reply[at : at + accepted + 1]
        rows, same = len(drafts) + 1, same + 1 if rows == len(drafts) + 1 else 0
        took = verify(costs, len(drafts)) + (change if same < 2 else 0.0)
        ms, draft_ms = PLAIN_MS * took * rng.gauss(1, 0.03), 0.06 if depth else 0.0
        judged = min(len(drafts), accepted + 1)
        controller.observe(len(drafts), judged, accepted, draft_ms, ms + draft_ms + 0.15, len(emitted))
        new = [last, *emitted[:-1]]
        lookup.observe(new, len(committed), len(new))
        committed, last, at, cost = committed + new, emitted[-1], at + len(emitted), cost + took
    return len(reply), cost


def speeds(
    controller: AutoDepth, tokens: int, costs: tuple[float, ...], seed: int, change: float = 0.0
) -> dict[str, float]:
    """Tokens per plain step by kind of text; the kinds take turns, as in a bench."""
    rng = random.Random(seed)
    totals: dict[str, list[float]] = {}
    for text in sorted(range(30), key=lambda i: (i % 6, i // 6)):
        emitted, cost = answer(controller, TEXTS[text], tokens, costs, rng, change)
        total = totals.setdefault(TEXTS[text]["kind"], [0, 0])
        total[0] += emitted
        total[1] += cost
    return {kind: emitted / cost for kind, (emitted, cost) in totals.items()}


@pytest.mark.parametrize("tokens", [64, 128])
@pytest.mark.parametrize("machine", COSTS)
def test_auto_reaches_the_better_of_plain_and_the_best_fixed_depth(machine: str, tokens: int) -> None:
    """From a cold start, on five kinds of text from stories to copying: at least 0.97 of plain decoding or of
    the fixed depth that is best for the kind in hindsight, whichever is faster."""
    costs = COSTS[machine]
    fixed = [speeds(FixedDepth(depth), tokens, costs, 0) for depth in (1, 2, 3, 4, 6, 8)]
    auto = [speeds(AutoDepth(table(costs)), tokens, costs, seed) for seed in range(1, 6)]
    shares = {}
    for kind in ("chat", "code", "list", "rewrite", "story"):
        better = max(1.0, *(speed[kind] for speed in fixed))
        shares[kind] = statistics.mean(speed[kind] for speed in auto) / better
    assert min(shares.values()) >= 0.97, shares
    assert statistics.geometric_mean(shares.values()) >= 0.985, shares
    assert max(speed["rewrite"] for speed in fixed) > 1.2, "copying must pay, or this shows nothing"


@pytest.mark.parametrize("change", [0.1, 0.5, 1.0])
def test_auto_reckons_with_what_another_batch_size_costs(change: float) -> None:
    """A GPU with a small model, on which the first two steps of another size take up to a plain step longer
    each, so that a single draft costs up to four: over all kinds at least 0.95 of the better of plain
    decoding and the best fixed depth, and no kind much slower than plain decoding."""
    costs = COSTS["a GPU"]
    fixed = [speeds(FixedDepth(depth), 128, costs, 0, change) for depth in (1, 2, 3, 4, 6, 8)]
    plain = speeds(FixedDepth(0), 128, costs, 0, change)
    auto = [speeds(AutoDepth(table(costs, change)), 128, costs, seed, change) for seed in range(1, 6)]
    mean = {kind: statistics.mean(speed[kind] for speed in auto) for kind in plain}
    better = {kind: max(plain[kind], *(speed[kind] for speed in fixed)) for kind in plain}
    assert statistics.geometric_mean(mean[kind] / better[kind] for kind in plain) >= 0.95, (mean, better)
    assert min(mean[kind] / plain[kind] for kind in plain) >= 0.97, (mean, plain)


def test_a_longer_match_makes_lookup_surer() -> None:
    """In a text that nothing is known of: 0.64 after four tokens that were the same, 0.75 after five and six;
    0.83 after four in what was given."""
    asked: list[tuple[int, float]] = []
    lookup = Lookup(max_depth=4)
    text = [9, 8, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3]  # and 4 as the last token: four tokens as before
    lookup.observe(text, 0, len(text))
    policy = Policy(0, lambda token: False, lambda position, sure: asked.append((position, sure)) or True)
    assert lookup.draft(text, 4, 3, policy).tokens == [5, 6, 7]
    assert asked == [(1, pytest.approx(0.64)), (2, pytest.approx(0.75)), (3, pytest.approx(0.75))]
    asked.clear()
    lookup.draft(text, 4, 1, replace(policy, given=len(text)))
    assert asked == [(1, pytest.approx(0.83))]


def test_lookup_learns_from_copies_that_were_never_verified() -> None:
    """Every draft is refused. The token after 1 2 3 is 4 as before, then 4 again, then another one. Beside
    the start of 0.64, which counts as four outcomes, each outcome weighs 49/50 of the one after it."""
    lookup, asked, after_three = Lookup(max_depth=4), [], []
    refuse = Policy(0, lambda token: False, lambda position, sure: asked.append(sure) and False)
    text = [1, 2, 3, 4, 5]
    lookup.observe(text, 0, len(text))
    for other, follows in ((6, 4), (7, 4), (8, 9), (10, 9)):
        for token in (other, 1, 2, 3, follows):
            lookup.draft(text, token, 4, refuse)
            lookup.observe([token], len(text), 1)
            text.append(token)
            if token == 3:
                after_three.append(asked[-1])
    start, weight = 4 * 0.64, 4
    assert after_three == pytest.approx(
        [
            start / weight,
            (start + 1) / (weight + 1),
            (start + 1 + 49 / 50) / (weight + 1 + 49 / 50),
            (start + (1 + 49 / 50) * 49 / 50) / (weight + 1 + (1 + 49 / 50) * 49 / 50),
        ]
    )


def test_lookup_reads_the_text_it_was_given_last() -> None:
    """A drafter that knew another text drafts from the new one."""
    text = [9, 8, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    lookup = Lookup(max_depth=4)
    lookup.observe([9] * 5, 0, 5)
    policy = Policy(0, lambda token: False, lambda position, sure: True)
    assert lookup.draft(text, 4, 3, policy).tokens == [5, 6, 7]


def test_lookup_learns_nothing_from_what_the_user_writes() -> None:
    """The copy found at the end of a reply is not held against the prompt that follows."""
    lookup, asked = Lookup(max_depth=4), []
    refuse = Policy(0, lambda token: False, lambda position, sure: asked.append(sure) and False)
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    lookup.observe(text, 0, len(text))
    lookup.draft(text, 3, 4, refuse)
    lookup.rewind(len(text))  # as the next prompt begins
    prompt = [3, 4, 5, 6, 9, 1, 2]
    lookup.observe(prompt, len(text), len(prompt))
    lookup.draft([*text, *prompt], 3, 4, refuse)
    assert asked == pytest.approx([0.64, 0.64])


def asked_run(tokens: int, changed: float) -> list[int]:
    """Replies of 200 tokens from a drafter that is always right at a confidence of 0.97, v(k) = 1 + k / 5;
    another size is free, but the table says that its first two steps take ``changed`` plain steps longer.
    The tokens before each draft."""
    verify = [PLAIN_MS * (1 + k / 5) for k in range(9)]
    known = CostTable(verify, [0.0] + [0.01] * 8, [PLAIN_MS * changed] * 2)
    auto, drafted = AutoDepth(known), []
    at = 0
    while at < tokens:
        if at % 200 == 0:
            auto.begin()
        depth, drafts = auto.choose(8), 0
        while drafts < depth and auto.keep_drafting(drafts + 1, 0.97):
            drafts += 1
        if drafts:
            drafted.append(at)
        ms = PLAIN_MS * (1 + drafts / 5)
        auto.observe(drafts, drafts, drafts, 0.01, ms + 0.01, drafts + 1)
        at += drafts + 1
    return drafted


def test_a_change_of_size_that_was_mismeasured_is_measured_again() -> None:
    """A table that was measured on a busy machine makes a change look dearer than all that may be lost. After
    each 1,024 tokens without a draft one is made all the same, and drafting goes on."""
    drafted = asked_run(8000, 4.5)
    assert len([at for at in drafted if at > 4000]) > 100


def test_what_follows_a_prompt_is_no_loss() -> None:
    """Where each of the first two steps of another size takes a plain step longer, a reply's first ones do,
    with or without drafts: short replies without a draft leave all of the room there was, and plain
    steps cost what they did."""
    auto = AutoDepth(CostTable([PLAIN_MS], [0.0], [PLAIN_MS, PLAIN_MS]))
    for _ in range(12):
        auto.begin()
        for step in range(20):
            ms = PLAIN_MS * (2 if step < 2 else 1)
            assert auto.choose(0) == 0
            auto.observe(0, 0, 0, 0.0, ms, 1)
    assert auto._ledger.room == pytest.approx(Ledger.BOUND)
    assert auto.table is not None and auto.table.plain_ms == pytest.approx(PLAIN_MS)
