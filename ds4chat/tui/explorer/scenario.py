"""The values of a what-if, how they move and are shown, and its figures beside the recorded ones. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ds4chat.analysis.rows import JudgedRows
from ds4chat.analysis.times import StepTimes
from ds4chat.analysis.whatif import WhatIf
from ds4chat.engine.events import Tuning
from ds4chat.engine.stats import PHASES
from ds4chat.settings.schema import TUNING, Option, Slider
from ds4chat.settings.validate import SettingError, check
from ds4chat.tui.kit.figures import NONE, decimal, percent
from ds4chat.tui.kit.figures import ratio as factor
from ds4chat.tui.kit.lines import BLANK, Line

AS_RECORDED = "–"


@dataclass(frozen=True, slots=True)
class Scenario:
    """The settings to ask about; None stays as recorded."""

    depth: int | None = None
    margin: float | None = None
    gate: float | None = None

    def apply(self, tuning: Tuning) -> Tuning:
        """The live settings with these values. A margin below 1 ends strict mode."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        if values.get("margin", 1) < 1:
            values["strict"] = False
        return replace(tuning, **values)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The settings and figures of a record."""

    depth: int
    margin: float
    gate: float
    """The values of most steps, from which the controls start."""
    acceptance: float | None
    tokens_per_step: float | None
    tokens_per_s: float | None
    speedup: float | None
    """Over plain decoding; None if the record does not tell."""


def recorded(rows: JudgedRows, times: StepTimes) -> Recorded:
    """The settings and figures of the recorded steps."""
    tokens, steps = int(rows.step_emitted.sum()), rows.steps
    ms = float(np.nansum(rows.step_ms[:, PHASES.index("total")]))
    return Recorded(
        depth=int(_most(rows.step_depth, 1)),
        margin=float(_most(rows.step_margin, 1.0)),
        gate=float(_most(rows.step_gate, 0.0)),
        acceptance=float(rows.accepted.mean()) if len(rows) else None,
        tokens_per_step=tokens / steps if steps else None,
        tokens_per_s=tokens / ms * 1000 if ms > 0 else None,
        speedup=times.plain.speedup,
    )


def _most(values: Any, default: float) -> float:
    found, counts = np.unique(values, return_counts=True)
    return float(found[int(np.argmax(counts))]) if len(found) else default


@dataclass(frozen=True, slots=True)
class Handle:
    """A value of a Scenario: how it moves, what may be typed, and how it is shown."""

    option: Option
    slider: Slider

    @property
    def name(self) -> str:
        """The field of Scenario, Recorded and Tuning."""
        return self.option.tuning

    def moved(self, scenario: Scenario, by: int, base: Recorded) -> Scenario:
        """``scenario`` with this value moved by steps, from the recorded one if it was not set."""
        low = 0 if self.name == "depth" else self.option.low
        high = self.option.high
        assert low is not None and high is not None
        moved = round(self._value(scenario, base) + by * self.slider.step, 2)
        return self.put(scenario, min(high, max(low, moved)))

    def typed(self, scenario: Scenario, text: str) -> Scenario:
        """``scenario`` with the typed value; no text means as recorded. Raises SettingError."""
        text = text.strip()
        if not text or text == AS_RECORDED:
            return self.put(scenario, None)
        if self.name == "depth" and text == "0":
            return self.put(scenario, 0)
        value = check(self.option, text, "chat")
        if isinstance(value, str):
            raise SettingError(f"{text} cannot be asked about: give a depth from 0 to {self.option.high:g}.")
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
        """The position of the value, or of the recorded one if it is not set, in its usual range: 0..1."""
        return self._value(scenario, base) / self.slider.high

    def explained(self, scenario: Scenario, base: Recorded) -> str:
        """What the value means."""
        value = getattr(scenario, self.name)
        if value is None:
            return f"as recorded, mostly {getattr(base, self.name):.{self.slider.places}f}"
        return self.slider.says(value)

    def _value(self, scenario: Scenario, base: Recorded) -> float:
        value = getattr(scenario, self.name)
        return float(getattr(base, self.name) if value is None else value)


HANDLES = {
    option.tuning: Handle(option, option.slider)
    for option in TUNING
    if option.slider and option.tuning in ("depth", "margin", "gate")
}
"""By name."""


def result_lines(base: Recorded, result: WhatIf | None, scenario: Scenario, times: StepTimes) -> list[Line]:
    """A table of the recorded figures, the expected ones and the change, and two lines on how far the record
    determines them.

    ``result`` is None while it is worked out, or if nothing is asked. An ``≈`` marks an estimate.
    """

    def after(name: str) -> float | None:
        return getattr(result, name, None)

    estimate = result is not None and result.estimate
    acceptance, per_step, speed = after("acceptance"), after("tokens_per_step"), after("tokens_per_s")
    speedup = after("speedup") if base.speedup else None
    return [
        ((f"{'':<12}{'recorded':>9}  {'what if':>9}  {'change':>8}", "muted"),),
        _row(
            "acceptance",
            percent(base.acceptance).strip(),
            percent(acceptance).strip(),
            _points(base.acceptance, acceptance),
            estimate,
        ),
        _row(
            "tokens/step",
            decimal(base.tokens_per_step, 8, 2),
            decimal(per_step, 8, 2),
            _times(base.tokens_per_step, per_step),
            estimate,
        ),
        _row(
            "tokens/s",
            decimal(base.tokens_per_s, 8),
            decimal(speed, 8),
            _times(base.tokens_per_s, speed),
            True,
        ),
        _row("against plain", factor(base.speedup).strip(), factor(speedup).strip(), "", True),
        *_grounds(result, scenario, times),
    ]


def _row(label: str, before: str, after: str, change: str, estimate: bool) -> Line:
    mark = "≈" if estimate and after.strip() != NONE else " "
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
    """Two lines on how far the record determines the figures."""
    if scenario == Scenario():
        return [(("Change a value to see what it would do.", "muted"),), BLANK]
    if result is None:
        return [(("Working it out …", "muted"),), BLANK]
    first: Line = (("exact", "good"), (": the record determines every step", "muted"))
    if result.estimate:
        share = f": the record determines {result.exact_share * 100:.0f} % of the steps"
        first = (("≈ estimate", "mark"), (share, "muted"))
    if result.changed:
        verdicts = "verdict changes" if result.changed == 1 else "verdicts change"
        return [first, ((f"{result.changed:,} {verdicts}: the text would differ there", "warning"),)]
    if math.isnan(result.ms):
        speed = "No speed: the record has no step times."
    elif scenario.depth is not None and not times.timed(scenario.depth):
        speed = f"Speed: no step of depth {scenario.depth} was timed."
    else:
        speed = "Speed: from the step times on record."
    return [first, ((speed, "muted"),)]
