"""One sentence: whether MTP pays here, and what to set. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ds4chat.commands.bench.figures import Setting, TextFigures, overall, uncertainty
from ds4chat.engine.events import Depth

PAYS = 1.03
"""Speed over plain decoding from which it is said to pay: less is within what two runs differ by."""
PAYS_ON_ONE = 1.08
"""The same on a single kind of text, which has fewer prompts behind it."""
COSTS_NOTHING = 0.97
UNCLEAR = 0.05
"""Twice the uncertainty from which ratios close to 1, and single kinds of text, decide nothing."""
DRAFTS = 0.25
"""Mean depth from which auto can be said to speculate: below, its speed is plain decoding's, and noise."""
AUTO_IS_AS_GOOD = 0.97
"""Share of the best fixed depth's speed from which auto is advised: it adapts to other texts."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set, and why."""

    sentence: str
    pays: bool | None
    """None where nothing was compared."""
    set: Depth | Literal["off"] | None
    """The value for mtp-draft; "off": load no drafter."""


def advise(
    texts: Sequence[TextFigures], drafter: str, verify_cost: Sequence[float], *, given_up: str = ""
) -> Advice:
    """The advice for these figures.

    drafter: its kind, empty without one. verify_cost: v by rows, 1 for one row. given_up: the reason with
    which the engine gave the drafter up meanwhile.
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
    drafts = [t.auto.mean_depth for t in texts if t.auto]
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
    cost = f" ({_rows(verify_cost, 1)})" if len(verify_cost) > 1 else ""
    instead = "" if "lookup" in drafter else ", or try --lookup, which drafts for free where a reply copies"
    return Advice(f"MTP does not pay here: with {drafter} {lost}{cost}; leave it off{instead}.", False, "off")


def _pays_on(text: TextFigures) -> bool:
    """A depth is faster on this kind of text beyond what its noise explains. One prompt is not a kind."""
    if text.prompts < 2 or text.best is None or text.best.ratio is None:
        return False
    return text.best.ratio.median >= max(PAYS_ON_ONE, 1 + 2 * uncertainty([text]))


def _sometimes(good: Sequence[TextFigures], drafter: str, auto: float, ratio: float, best: Depth) -> Advice:
    """It pays on some kinds of text and not over all."""
    where = " and ".join(
        f"{t.name} ({t.best.ratio.median:.2f} at depth {t.best.depth})"
        for t in good
        if t.best and t.best.ratio
    )
    if auto >= COSTS_NOTHING:
        return Advice(
            f"MTP pays here on {where} alone, with {drafter}; auto loses nothing on the rest ({auto:.2f} "
            f"over all): set {_option('auto')}.",
            True,
            "auto",
        )
    return Advice(
        f"MTP pays here on {where} alone, with {drafter}; over all kinds of text depth {best} reaches "
        f"{ratio:.2f} of plain decoding's speed: switch it on for such text, and leave it off otherwise.",
        True,
        "off",
    )


def _by_depth(texts: Sequence[TextFigures]) -> dict[Depth, float]:
    """Ratio to plain decoding over the kinds of text that have every setting; where none has, over those that
    have any, for the settings that they share. A kind that was broken off must not decide for a depth by
    lacking the others."""
    settings: dict[Depth, list[float]] = {}
    every = {setting.depth for text in texts for setting in _settings(text)}
    whole_texts = [text for text in texts if {setting.depth for setting in _settings(text)} == every]
    texts = whole_texts or [text for text in texts if text.fixed]
    for text in texts:
        for setting in _settings(text):
            if setting.ratio:
                settings.setdefault(setting.depth, []).append(setting.ratio.median)
    shared = {depth: overall(ratios) for depth, ratios in settings.items() if len(ratios) == len(texts)}
    return shared if any(depth != "auto" for depth in shared) else {}


def _settings(text: TextFigures) -> list[Setting]:
    return [*text.fixed, *([text.auto] if text.auto else [])]


def _range(texts: Sequence[TextFigures], depth: Depth) -> tuple[str, str]:
    """The kinds of text with the lowest and the highest ratio at this depth, each with it."""
    ratios = [
        (setting.ratio.median, text.name)
        for text in texts
        for setting in _settings(text)
        if setting.depth == depth and setting.ratio
    ]
    low, high = min(ratios), max(ratios)
    return f"{low[0]:.2f} on {low[1]}", f"{high[0]:.2f} on {high[1]}"


def _nothing_to_draft_with(verify_cost: Sequence[float]) -> str:
    """What a drafter would have to bring: at depth 1 a step costs v(1) and brings 1 + a tokens."""
    given = "No drafter was given, so there is nothing to compare: give --mtp FILE, --mtp or --lookup"
    if len(verify_cost) < 2:
        return f"{given}."
    needed = verify_cost[1] - 1
    if needed >= 1:
        return f"{given}; but here {_rows(verify_cost, 1)}, so depth 1 cannot pay."
    return (
        f"{given}; here {_rows(verify_cost, 1)}, so depth 1 pays when more than {max(needed, 0):.0%} of its "
        "drafts are accepted."
    )


def _rows(verify_cost: Sequence[float], drafts: int) -> str:
    return f"verifying {drafts} draft costs {verify_cost[drafts]:.2f} times a plain step"


def _called(depth: Depth) -> str:
    return "auto depth" if depth == "auto" else f"depth {depth}"


def _option(depth: Depth) -> str:
    return f"--mtp-draft {depth}"
