"""The what-if values, how they move and read, and their figures beside the recorded ones. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ds4chat.analysis.rows import JudgedRows
from ds4chat.analysis.times import StepTimes
from ds4chat.analysis.whatif import WhatIf
from ds4chat.engine.events import Tuning
from ds4chat.engine.stats import PHASES
from ds4chat.settings.schema import TUNING, Option, Slider
from ds4chat.settings.validate import SettingError, check
from ds4chat.tui.kit.figures import decimal, percent
from ds4chat.tui.kit.figures import ratio as factor
from ds4chat.tui.kit.lines import Line

Name = Literal["depth", "margin", "gate"]
AS_RECORDED = "–"


@dataclass(frozen=True, slots=True)
class Scenario:
    """The settings to ask about; what is None stays as recorded."""

    depth: int | None = None
    margin: float | None = None
    gate: float | None = None

    def apply(self, tuning: Tuning) -> Tuning:
        """The live settings with these values. A margin below 1 needs a mode that is not strict."""
        values: dict[str, Any] = {
            name: value for name in ("depth", "margin", "gate") if (value := getattr(self, name)) is not None
        }
        if self.margin is not None and self.margin < 1:
            values["strict"] = False
        return replace(tuning, **values)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the record itself says."""

    depth: int
    margin: float
    gate: float
    """The values of most steps: where a control begins."""
    acceptance: float | None
    tokens_per_step: float | None
    tokens_per_s: float | None
    speedup: float | None
    """Over plain decoding; None where the record does not tell."""


def recorded(rows: JudgedRows, times: StepTimes) -> Recorded:
    """The figures of the recorded steps."""
    tokens, steps = int(rows.step_emitted.sum()), rows.steps
    ms = float(np.nansum(rows.step_ms[:, PHASES.index("total")]))
    speed = tokens / ms * 1000 if ms > 0 else None
    return Recorded(
        depth=int(_most(rows.step_depth, 1)),
        margin=float(_most(rows.step_margin, 1.0)),
        gate=float(_most(rows.step_gate, 0.0)),
        acceptance=float(rows.accepted.mean()) if len(rows) else None,
        tokens_per_step=tokens / steps if steps else None,
        tokens_per_s=speed,
        speedup=times.plain.speedup,
    )


def _most(values: Any, default: float) -> float:
    found, counts = np.unique(values, return_counts=True)
    return float(found[int(np.argmax(counts))]) if len(found) else default


@dataclass(frozen=True, slots=True)
class Handle:
    """One control: how the value of its option moves and reads."""

    name: Name
    option: Option
    slider: Slider

    def moved(self, scenario: Scenario, by: int, base: Recorded) -> Scenario:
        """``scenario`` with this value moved by steps, from the recorded one where it was not set."""
        now = getattr(scenario, self.name)
        value = getattr(base, self.name) if now is None else now
        low = 0 if self.name == "depth" else self.option.low
        high = self.option.high
        assert low is not None and high is not None
        return self.put(scenario, min(high, max(low, round(value + by * self.slider.step, 2))))

    def typed(self, scenario: Scenario, text: str) -> Scenario:
        """``scenario`` with what was typed; nothing means as recorded. Raises SettingError."""
        text = text.strip()
        if not text or text == AS_RECORDED:
            return self.put(scenario, None)
        if self.name == "depth" and text == "0":
            return self.put(scenario, 0)
        value = check(self.option, text)
        if isinstance(value, str):
            raise SettingError("a number from 0 to 16")
        return self.put(scenario, value)

    def put(self, scenario: Scenario, value: float | None) -> Scenario:
        """``scenario`` with this value."""
        new: Any = value if value is None or self.slider.places else int(value)
        changed: dict[str, Any] = {self.name: new}
        return replace(scenario, **changed)

    def text(self, scenario: Scenario) -> str:
        """The value as the control shows it."""
        value = getattr(scenario, self.name)
        return AS_RECORDED if value is None else f"{value:.{self.slider.places}f}"

    def share(self, scenario: Scenario, base: Recorded) -> float:
        """How far the value, or the recorded one where none is set, has come in its usual range."""
        value = getattr(scenario, self.name)
        return float(getattr(base, self.name) if value is None else value) / self.slider.high

    def explained(self, scenario: Scenario, base: Recorded) -> str:
        """What the value means."""
        value = getattr(scenario, self.name)
        if value is None:
            return f"as recorded, mostly {getattr(base, self.name):.{self.slider.places}f}"
        return self.slider.says(value)


HANDLES: tuple[Handle, ...] = tuple(
    Handle(name, option, option.slider)
    for option in TUNING
    for name in get_args(Name)
    if option.tuning == name and option.slider
)


def result_lines(base: Recorded, result: WhatIf | None, scenario: Scenario, times: StepTimes) -> list[Line]:
    """A table of the recorded figures, the expected ones and what changes; then what they rest on.

    ``result`` None: it is being worked out. An ``≈`` stands before what the record does not determine.
    """
    asked = scenario != Scenario()
    shown = result if asked else None
    unsure = bool(shown and shown.estimate)
    speed = shown.tokens_per_s if shown else None
    speedup = shown.speedup if shown and base.speedup else None
    lines: list[Line] = [((f"{'':<12}{'recorded':>9}  {'what if':>9}  {'change':>8}", "muted"),)]
    lines.append(
        _row(
            "acceptance",
            percent(base.acceptance).strip(),
            percent(shown.acceptance if shown else None).strip(),
            _points(base.acceptance, shown.acceptance if shown else None),
            unsure,
        )
    )
    lines.append(
        _row(
            "tokens/step",
            decimal(base.tokens_per_step, 1, 2)
            if base.tokens_per_step is None
            else f"{base.tokens_per_step:.2f}",
            "–" if not shown or shown.tokens_per_step is None else f"{shown.tokens_per_step:.2f}",
            _times(base.tokens_per_step, shown.tokens_per_step if shown else None),
            unsure,
        )
    )
    lines.append(
        _row(
            "tokens/s",
            "–" if base.tokens_per_s is None else f"{base.tokens_per_s:.1f}",
            "–" if speed is None else f"{speed:.1f}",
            _times(base.tokens_per_s, speed),
            True,
        )
    )
    lines.append(_row("against plain", factor(base.speedup).strip(), factor(speedup).strip(), "", True))
    return [*lines, *_grounds(result, scenario, times)]


def _row(label: str, before: str, after: str, change: str, unsure: bool) -> Line:
    mark = "≈" if unsure and after != "–" else " "
    good = change.startswith("+") or (change.endswith("×") and change > "1.00×")
    role = "" if change in ("", "±0.0", "1.00×") else "good" if good else "bad"
    return (
        (f"{label:<13}"[:13], "muted"),
        (f"{before:>8}", ""),
        (f"  {mark}", "mark"),
        (f"{after:>8}", "strong"),
        (f"  {change:>8}", role),
    )


def _points(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    change = round((after - before) * 100, 1)
    return f"{change:+.1f}".replace("-", "−") if change else "±0.0"


def _times(before: float | None, after: float | None) -> str:
    return f"{after / before:.2f}×" if before and after is not None else ""


def _grounds(result: WhatIf | None, scenario: Scenario, times: StepTimes) -> list[Line]:
    """Two lines that say how far the figures are determined."""
    if scenario == Scenario():
        return [(("Change a value to see what it would do.", "muted"),), ((" ", ""),)]
    if result is None:
        return [(("Working it out …", "muted"),), ((" ", ""),)]
    if not result.estimate:
        first: Line = (("exact", "good"), (": the record determines every step", "muted"))
    else:
        first = (
            ("≈ estimate", "mark"),
            (f": the record determines {result.exact_share * 100:.0f} % of the steps", "muted"),
        )
    if result.changed:
        turned = "verdict turns" if result.changed == 1 else "verdicts turn"
        return [first, ((f"{result.changed:,} {turned}: the text would part there", "warning"),)]
    if math.isnan(result.ms):
        return [first, (("No speed: the record has no step times.", "muted"),)]
    unmeasured = scenario.depth is not None and not times.timed(scenario.depth)
    if unmeasured:
        return [first, ((f"Speed: no step of depth {scenario.depth} was timed.", "muted"),)]
    return [first, (("Speed: from the step times on record.", "muted"),)]
