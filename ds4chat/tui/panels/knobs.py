"""What each control of the Tuning panel shows, says, and does to a Tuning. Pure.

Ranges and defaults are those of the option table: a value reaches a Tuning only through its check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ds4chat.engine.events import MAX_DEPTH, Depth, Mode, Tuning
from ds4chat.settings.schema import BY_KEY, Option
from ds4chat.settings.validate import check

MODES: tuple[Mode, ...] = ("exact", "approximate", "strict")
SEED_SCALE = 99
"""Seed at which its slider is full: what people choose by hand is mostly below it."""
GATE_SCALE = 10.0
"""Logit lead at which the gate's slider is full: few drafts lead by more."""
FIRST_MARGIN = 0.8
"""Margin that the mode control begins with when it turns approximate and none was set before."""


@dataclass(slots=True)
class Memory:
    """What a control returns to: the depth before a pause, the margin of the last approximate mode."""

    depth: Depth = 1
    margin: float = FIRST_MARGIN

    def note(self, tuning: Tuning) -> None:
        """Remember what ``tuning`` holds of it."""
        if tuning.depth != 0:
            self.depth = tuning.depth
        if tuning.margin < 1:
            self.margin = tuning.margin


@dataclass(frozen=True, slots=True)
class Knob:
    """One control: how it looks, what it says of its value, how it moves and what may be typed into it."""

    name: str
    label: str
    key: str
    """The option whose help and range apply."""
    shown: Callable[[Tuning], str]
    says: Callable[[Tuning], str]
    step: Callable[[Tuning, int, Memory], Tuning]
    typed: Callable[[Tuning, Any], Tuning] | None = None
    """Take a checked value; None where nothing can be typed."""
    share: Callable[[Tuning], float] | None = None
    """How far the value has come in its usual range, 0..1 or beyond; None for what is no number."""

    @property
    def option(self) -> Option:
        return BY_KEY[self.key]

    def read(self, tuning: Tuning, raw: str) -> Tuning:
        """``tuning`` with the typed value. Raises SettingError with the sentence to show."""
        if self.typed is None:
            return tuning
        return self.typed(tuning, check(self.option, raw.strip()))


def _number(
    name: str,
    key: str,
    step: float,
    places: int,
    says: Callable[[float], str],
    usual: tuple[float, float],
    label: str = "",
) -> Knob:
    """A knob for a number. ``usual`` is where its slider begins and ends; what is typed may go further."""
    option = BY_KEY[key]
    field = option.attribute.removeprefix("mtp_")
    low = option.low if option.low is not None else float("-inf")
    high = option.high if option.high is not None else float("inf")

    def move(tuning: Tuning, by: int, memory: Memory) -> Tuning:
        moved = round((getattr(tuning, field) + by * step) / step) * step
        value = min(high, max(low, round(moved, places)))
        return _with(tuning, field, int(value) if places == 0 else float(value))

    def share(tuning: Tuning) -> float:
        return float((getattr(tuning, field) - usual[0]) / (usual[1] - usual[0]))

    return Knob(
        name=name,
        label=label or name,
        key=key,
        shown=lambda tuning: f"{getattr(tuning, field):.{places}f}",
        says=lambda tuning: says(getattr(tuning, field)),
        step=move,
        typed=lambda tuning, value: _with(tuning, field, value),
        share=share,
    )


def _with(tuning: Tuning, field: str, value: Any) -> Tuning:
    changes: dict[str, Any] = {field: value}
    return replace(tuning, **changes)


def _step_depth(tuning: Tuning, by: int, memory: Memory) -> Tuning:
    """1..16 and then auto; from a pause the first press takes up speculation again."""
    if tuning.depth == 0:
        return replace(tuning, depth=memory.depth if by > 0 else 0)
    now = MAX_DEPTH + 1 if tuning.depth == "auto" else tuning.depth
    moved = min(MAX_DEPTH + 1, max(1, now + by))
    return replace(tuning, depth="auto" if moved > MAX_DEPTH else moved)


def _depth_share(tuning: Tuning) -> float:
    return 1.0 if tuning.depth == "auto" else tuning.depth / (MAX_DEPTH + 1)


def _say_depth(tuning: Tuning) -> str:
    if tuning.depth == "auto":
        return "the fastest, as measured"
    return "no drafts while paused" if tuning.depth == 0 else "drafts a step at most"


def _step_mode(tuning: Tuning, by: int, memory: Memory) -> Tuning:
    mode = MODES[(MODES.index(tuning.mode) + by) % len(MODES)]
    margin = memory.margin if mode == "approximate" else 1.0
    return replace(tuning, strict=mode == "strict", margin=margin)


def _say_mode(tuning: Tuning) -> str:
    return {
        "exact": "the target's own text",
        "approximate": "lossy: text may differ",
        "strict": "as one-token greedy",
    }[tuning.mode]


def _say_margin(margin: float) -> str:
    return "only the target's choice" if margin >= 1 else f"also ratios of ≥{margin:.2f}"


def _say_gate(gate: float) -> str:
    return "off: drafts up to depth" if gate <= 0 else "stop below this d.gap"


def _say_temp(temp: float) -> str:
    return "always the likeliest" if temp <= 0 else "samples the target"


def _say_top_p(top_p: float) -> str:
    return "off" if top_p >= 1 else f"likeliest {top_p:.0%} of mass"


def _say_min_p(min_p: float) -> str:
    return "off" if min_p <= 0 else f"drops under {min_p:.0%} of top"


def _say_top_k(top_k: float) -> str:
    return "off: all tokens" if top_k <= 0 else f"among the {top_k:.0f} likeliest"


def _say_repeat_penalty(penalty: float) -> str:
    return "off" if penalty == 1 else "divides repeated logits"


def _say_seed(seed: float) -> str:
    return "a new one each reply" if seed < 0 else "repeats the sampling"


def _step_pause(tuning: Tuning, by: int, memory: Memory) -> Tuning:
    return replace(tuning, depth=memory.depth if tuning.depth == 0 else 0)


KNOBS: tuple[Knob, ...] = (
    Knob(
        "pause",
        "MTP",
        "mtp-draft",
        shown=lambda tuning: "paused" if tuning.depth == 0 else "on",
        says=lambda tuning: "plain decoding" if tuning.depth == 0 else "speculation runs",
        step=_step_pause,
    ),
    Knob(
        "depth",
        "depth",
        "mtp-draft",
        shown=lambda tuning: str(tuning.depth),
        says=_say_depth,
        step=_step_depth,
        typed=lambda tuning, value: replace(tuning, depth=value),
        share=_depth_share,
    ),
    Knob(
        "mode",
        "mode",
        "mtp-strict",
        shown=lambda tuning: {"approximate": "approx"}.get(tuning.mode, tuning.mode),
        says=_say_mode,
        step=_step_mode,
    ),
    _number("margin", "mtp-margin", 0.05, 2, _say_margin, (0, 1)),
    _number("gate", "mtp-gate", 0.5, 2, _say_gate, (0, GATE_SCALE)),
    _number("temp", "temp", 0.1, 2, _say_temp, (0, 2)),
    _number("top-k", "top-k", 5, 0, _say_top_k, (0, 100)),
    _number("top-p", "top-p", 0.05, 2, _say_top_p, (0, 1)),
    _number("min-p", "min-p", 0.01, 2, _say_min_p, (0, 0.25)),
    _number("repeat-penalty", "repeat-penalty", 0.05, 2, _say_repeat_penalty, (1, 2), label="repeat"),
    _number("seed", "seed", 1, 0, _say_seed, (-1, SEED_SCALE)),
)
