"""How sliders, keys and commands show and change the live settings of a Tuning. Pure.

Ranges and defaults come from the option table, which checks every value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ds4chat.engine.events import MAX_DEPTH, Depth, Loaded, Mode, ServerInfo, Tuning
from ds4chat.engine.from_settings import changed
from ds4chat.settings.schema import BY_KEY, TUNING, Option, Slider
from ds4chat.settings.validate import SettingError, unknown_key

MODES: tuple[Mode, ...] = ("exact", "approximate", "strict")
FIRST_MARGIN = 0.8
"""Initial margin when the mode control switches to approximate and none was set before."""


@dataclass(slots=True)
class Memory:
    """The values that a control returns to: the depth before a pause, the margin of the last approximate
    mode; and the depth limit of the loaded drafter."""

    depth: Depth = 1
    margin: float = FIRST_MARGIN
    deepest: int = MAX_DEPTH

    def note(self, tuning: Tuning) -> None:
        """Remember these values of ``tuning``."""
        if tuning.depth != 0:
            self.depth = tuning.depth
        if tuning.margin < 1:
            self.margin = tuning.margin


@dataclass(frozen=True, slots=True)
class Knob:
    """One control: its value as text, what that means, how it moves and what may be typed."""

    name: str
    label: str
    option: Option
    """Its help and range apply, and what is typed sets it."""
    shown: Callable[[Tuning], str]
    says: Callable[[Tuning], str]
    step: Callable[[Tuning, int, Memory], Tuning]
    share: Callable[[Tuning, Memory], float] | None = None
    """The value's position in its usual range, 0..1 or beyond; None if it is not a number, which can be typed
    and dragged."""


def _number(option: Option, slider: Slider) -> Knob:
    """The knob of a number."""
    field = option.tuning
    low = option.low if option.low is not None else float("-inf")
    high = option.high if option.high is not None else float("inf")

    def move(tuning: Tuning, by: int, memory: Memory) -> Tuning:
        moved = round((getattr(tuning, field) + by * slider.step) / slider.step) * slider.step
        value = min(high, max(low, round(moved, slider.places)))
        changes: dict[str, Any] = {field: value if slider.places else int(value)}
        return replace(tuning, **changes)

    def share(tuning: Tuning, memory: Memory) -> float:
        return float((getattr(tuning, field) - slider.low) / (slider.high - slider.low))

    return Knob(
        name=option.key.removeprefix("mtp-"),
        label=option.short,
        option=option,
        shown=lambda tuning: f"{getattr(tuning, field):.{slider.places}f}",
        says=lambda tuning: slider.says(getattr(tuning, field)),
        step=move,
        share=share,
    )


def _step_depth(tuning: Tuning, by: int, memory: Memory) -> Tuning:
    """From 1 to as deep as the drafter drafts, and then auto; from a pause the first press takes up
    speculation again."""
    if tuning.depth == 0:
        return replace(tuning, depth=memory.depth if by > 0 else 0)
    auto = memory.deepest + 1
    now = auto if tuning.depth == "auto" else min(tuning.depth, memory.deepest)
    moved = min(auto, max(1, now + by))
    return replace(tuning, depth="auto" if moved == auto else moved)


def _depth_share(tuning: Tuning, memory: Memory) -> float:
    return 1.0 if tuning.depth == "auto" else min(1.0, tuning.depth / (memory.deepest + 1))


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


def _step_pause(tuning: Tuning, by: int, memory: Memory) -> Tuning:
    return replace(tuning, depth=memory.depth if tuning.depth == 0 else 0)


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            "pause",
            "MTP",
            BY_KEY["mtp-draft"],
            shown=lambda tuning: "paused" if tuning.depth == 0 else "on",
            says=lambda tuning: "plain decoding" if tuning.depth == 0 else "speculation runs",
            step=_step_pause,
        ),
        Knob(
            "depth",
            "depth",
            BY_KEY["mtp-draft"],
            shown=lambda tuning: str(tuning.depth),
            says=_say_depth,
            step=_step_depth,
            share=_depth_share,
        ),
        Knob(
            "mode",
            "mode",
            BY_KEY["mtp-strict"],
            shown=lambda tuning: {"approximate": "approx"}.get(tuning.mode, tuning.mode),
            says=_say_mode,
            step=_step_mode,
        ),
        *(_number(option, option.slider) for option in TUNING if option.slider and option.tuning != "depth"),
    )
}
"""By name. Pause, depth and mode have rules of their own; every other one follows from the table."""


def set_value(tuning: Tuning, key: str, raw: str) -> Tuning:
    """The tuning with one option set from what the user typed. Raises SettingError."""
    if key not in BY_KEY:
        raise SettingError(unknown_key(key, [option.key for option in TUNING]))
    if not BY_KEY[key].tuning:
        raise SettingError(f"{key} cannot change while a reply runs. /settings has all settings.")
    return changed(tuning, {key: raw})


def fixed_by(server: ServerInfo | None) -> dict[str, str]:
    """Fields of a Tuning that no request to this server changes, each with the reason; none without a
    server."""
    if server is None:
        return {}
    fixed = dict(server.fixed)
    return {
        option.tuning: fixed.get(option.tuning, f"{server.kind} does not accept it in a request")
        for option in TUNING
        if option.tuning not in server.live
    }


def without_fixed(before: Tuning, wanted: Tuning, server: ServerInfo | None) -> tuple[Tuning, str]:
    """The possible part of a change: ``wanted`` without the fields that the server fixes, and a sentence for
    the first of those, or ""."""
    kept = [(f, why) for f, why in fixed_by(server).items() if getattr(wanted, f) != getattr(before, f)]
    if not kept:
        return wanted, ""
    field, why = kept[0]
    return replace(wanted, **{f: getattr(before, f) for f, _ in kept}), f"{field} stays as it is: {why}."


def depth_bound(tuning: Tuning, loaded: Loaded | None) -> str:
    """Why drafts are limited below the depth that is set; empty if they are not."""
    drafter = loaded.drafter if loaded else None
    if drafter is None or not isinstance(tuning.depth, int) or tuning.depth <= drafter.max_depth:
        return ""
    return f"at most {drafter.max_depth} tokens are drafted, {drafter.note}"
