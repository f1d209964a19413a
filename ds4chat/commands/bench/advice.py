"""One sentence: whether MTP pays here, and what to set. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ds4chat.commands.bench.result import FixedFigures, WorkloadDocument
from ds4chat.commands.bench.running import PAYS
from ds4chat.engine.events import Depth

PAYS_ON_ONE = 1.08
"""As PAYS for a single kind of text, which has fewer prompts behind it."""
COSTS_NOTHING = 0.97
UNCLEAR = 0.05
"""Twice the uncertainty from which ratios close to 1, and single kinds of text, decide nothing."""
DRAFTS = 0.25
"""Mean depth from which auto counts as speculating: below, its speed is plain decoding's, and noise."""
AUTO_IS_AS_GOOD = 0.97
"""Share of the best fixed depth's speed from which auto is advised: it adapts to other texts."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set, and why."""

    sentence: str
    pays: bool | None
    """None if nothing was compared."""
    set: Depth | Literal["off"] | None
    """The value for mtp-draft; "off": load no drafter."""


def advise(
    texts: Sequence[WorkloadDocument], drafter: str, verify_cost: Sequence[float], *, given_up: str = ""
) -> Advice:
    """The advice for these figures.

    drafter: its kind, empty without one. verify_cost: v by rows, 1 for one row. given_up: why the engine gave
    the drafter up during the bench, if it did.
    """
    if given_up:
        return Advice(f"MTP does not pay here: {given_up.rstrip('.')}. Leave this drafter off.", False, "off")
    if not drafter:
        return Advice(_nothing_to_draft_with(verify_cost), None, None)
    whole = _by_depth(texts)
    if not whole:
        return Advice("Nothing was compared yet: let the bench run on to its end for advice.", None, None)
    fixed = {depth: ratio for depth, ratio in whole.items() if depth != "auto"}
    best = max(fixed, key=lambda depth: fixed[depth])
    auto = whole.get("auto", math.nan)
    drafts = [text.auto.mean_depth for text in texts if text.auto]
    chosen: Depth = best
    if drafts and statistics.fmean(drafts) >= DRAFTS and auto >= AUTO_IS_AS_GOOD * fixed[best]:
        chosen = "auto"
    ratio = whole[chosen]
    error = 2 * uncertainty(texts)
    if error > UNCLEAR and 1 - error < ratio < 1 + error:
        return Advice(
            f"The machine was too busy to tell whether MTP pays: ratios may be off by {error:.0%}, and "
            f"{drafter} at {_called(chosen)} came to {ratio:.2f} of plain decoding's speed; run the bench "
            "again, without --quick, when nothing else runs.",
            None,
            None,
        )
    if ratio >= PAYS:
        low, high = _range(texts, chosen)
        return Advice(
            f"MTP pays here: {drafter} at {_called(chosen)} is {ratio:.2f} times as fast as plain decoding "
            f"over all kinds of text ({low} to {high}); set {_option(chosen)}.",
            True,
            chosen,
        )
    good = [text for text in texts if _pays_on(text)]
    if good and error <= UNCLEAR:
        return _sometimes(good, drafter, auto, fixed[best], best)
    lost = f"the best depth, {best}, reaches {fixed[best]:.2f} of plain decoding's speed"
    cost = f" ({_cost_of_a_draft(verify_cost)})" if len(verify_cost) > 1 else ""
    instead = "" if "lookup" in drafter else ", or try --lookup, which drafts for free where a reply copies"
    return Advice(f"MTP does not pay here: with {drafter} {lost}{cost}; leave it off{instead}.", False, "off")


def _best(text: WorkloadDocument) -> FixedFigures:
    """The fixed depth with the highest ratio."""
    return max(text.fixed, key=lambda fixed: fixed.ratio)


def _pays_on(text: WorkloadDocument) -> bool:
    """A depth is faster on this kind of text by more than noise explains. One prompt is not a kind."""
    if text.prompts < 2 or not text.fixed:
        return False
    return _best(text).ratio >= max(PAYS_ON_ONE, 1 + 2 * uncertainty([text]))


def _sometimes(
    good: Sequence[WorkloadDocument], drafter: str, auto: float, ratio: float, best: Depth
) -> Advice:
    """It pays on some kinds of text, but not over all."""
    where = " and ".join(
        f"{text.name} ({_best(text).ratio:.2f} at depth {_best(text).depth})" for text in good
    )
    if auto >= COSTS_NOTHING:
        return Advice(
            f"MTP pays here only on {where}, with {drafter}; auto loses nothing on the rest ({auto:.2f} "
            f"over all): set {_option('auto')}.",
            True,
            "auto",
        )
    return Advice(
        f"MTP pays here only on {where}, with {drafter}; over all kinds of text depth {best} reaches "
        f"{ratio:.2f} of plain decoding's speed: switch it on for such text, and leave it off otherwise.",
        True,
        "off",
    )


def _by_depth(texts: Sequence[WorkloadDocument]) -> dict[Depth, float]:
    """Ratio to plain decoding, by depth, over the kinds of text that have every setting; if none has, over
    those that have a fixed depth, for the settings that they share. A kind that was broken off must not
    decide for a depth because it lacks the others."""
    texts = [text for text in texts if text.fixed]
    every = dict.fromkeys(depth for text in texts for depth in text.settings)
    texts = [text for text in texts if len(text.settings) == len(every)] or texts
    shared = {
        depth: statistics.geometric_mean(text.settings[depth].ratio for text in texts)
        for depth in every
        if all(depth in text.settings for text in texts)
    }
    return shared if any(depth != "auto" for depth in shared) else {}


def _range(texts: Sequence[WorkloadDocument], depth: Depth) -> tuple[str, str]:
    """The kinds of text with the lowest and the highest ratio at this depth, each with its ratio."""
    ratios = [(text.settings[depth].ratio, text.name) for text in texts if depth in text.settings]
    low, high = min(ratios), max(ratios)
    return f"{low[0]:.2f} on {low[1]}", f"{high[0]:.2f} on {high[1]}"


def uncertainty(texts: Sequence[WorkloadDocument]) -> float:
    """How wrong a ratio over all kinds of text may be, as a share of it: the median difference of two plain
    runs of one prompt, over the root of the number of prompts; 0 if none was run twice."""
    noise = [value for text in texts for value in text.noise]
    return statistics.median(noise) / math.sqrt(len(noise)) if noise else 0.0


def _nothing_to_draft_with(verify_cost: Sequence[float]) -> str:
    """What a drafter would have to achieve: at depth 1 a step costs v(1) and yields 1 + a tokens."""
    given = "No drafter was given, so there is nothing to compare: give --mtp FILE, --mtp or --lookup"
    if len(verify_cost) < 2:
        return f"{given}."
    cost, needed = _cost_of_a_draft(verify_cost), verify_cost[1] - 1
    if needed >= 1:
        return f"{given}; but here {cost}, so depth 1 cannot pay."
    return (
        f"{given}; here {cost}, so depth 1 pays when more than {max(needed, 0):.0%} of its drafts are "
        "accepted."
    )


def _cost_of_a_draft(verify_cost: Sequence[float]) -> str:
    return f"verifying 1 draft costs {verify_cost[1]:.2f} times a plain step"


def _called(depth: Depth) -> str:
    return "auto depth" if depth == "auto" else f"depth {depth}"


def _option(depth: Depth) -> str:
    return f"--mtp-draft {depth}"
