"""The Timings panel: the phases of a step in milliseconds, and the speed of prompt and reply."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult

from ds4chat.engine.events import Phases, Prefill, Step, Tuning
from ds4chat.engine.stats import PHASES, Stats
from ds4chat.tui.kit.charts import curve_lines, stacked_line
from ds4chat.tui.kit.figures import decimal, percent
from ds4chat.tui.kit.history import History
from ds4chat.tui.kit.lines import Line, LinesView
from ds4chat.tui.panels.panel import Panel

PARTS = PHASES[:-1]
"""Without the total."""


def phase_lines(last: Phases | None, stats: Stats) -> list[Line]:
    """A head and one line per phase: milliseconds of the last step, mean of all steps, share of the total."""
    lines: list[Line] = [((f"{'ms':<10}{'last':>8}{'mean':>8}{'share':>9}", "muted"),)]
    total = stats.ms["total"]
    whole_only = total > 0 and stats.ms["other"] == total
    for part in PHASES[-1:] if whole_only else PHASES:
        mean = stats.ms[part] / stats.steps if stats.steps else None
        share = stats.ms[part] / total if total else None
        swatch = ("  ", "") if part == "total" else ("■ ", part)
        lines.append(
            (
                swatch,
                (f"{part:<8}", "strong" if part == "total" else ""),
                (decimal(None if last is None else getattr(last, part), 8), ""),
                (decimal(mean, 8), ""),
                (f"  {percent(share)}", "muted"),
            )
        )
    return lines


def speed_lines(stats: Stats, prefill_rate: float | None, first_ms: float | None) -> list[Line]:
    """Prefill and decode speed in tokens per second, and the time to the first token."""
    return [
        (
            ("prefill", "muted"),
            (decimal(prefill_rate, 6), "strong"),
            (" tok/s first", "muted"),
            (decimal(first_ms, 7), "strong"),
            (" ms", "muted"),
        ),
        (("decode ", "muted"), (decimal(stats.decode_tokens_per_s, 6), "strong"), (" tok/s", "muted")),
    ]


class TimingsPanel(Panel):
    """Phases as figures and as one stacked bar, speeds, and the curve of milliseconds per step."""

    NAME = "timings"
    TITLE = "Timings"

    def __init__(self) -> None:
        super().__init__()
        self._view = LinesView(id="timings-lines")
        self._history = History()
        self._last: Phases | None = None
        self._last_tuning: Tuning | None = None
        self._stats = Stats()
        self._first_step_ms: float | None = None
        self.prefill: Prefill | None = None
        """How the prompt of the running reply was read, as far as it is known before the reply's end."""

    def compose_body(self) -> ComposeResult:
        yield self._view

    def add_steps(self, steps: Sequence[Step], stats: Stats, session: Stats) -> None:
        """Add new steps to the curve; nothing is drawn before ``draw``."""
        for step in steps:
            changed = self._last_tuning is not None and step.tuning != self._last_tuning
            self._last_tuning = step.tuning
            self._history.add(step.ms.total, 1, changed)
            self._last = step.ms
            if self._first_step_ms is None:
                self._first_step_ms = step.ms.total
        self._stats = stats

    def end(self, stats: Stats) -> None:
        self._stats = stats

    def reset(self) -> None:
        """A new reply: reset its figures and its curve."""
        self._history.clear()
        self._last = None
        self._stats = Stats()
        self._first_step_ms = self.prefill = None

    def draw(self) -> None:
        """Redraw."""
        width = self._view.size.width or 38
        lines = phase_lines(self._last, self._stats)
        if self._stats.ms["other"] == self._stats.ms["total"] > 0:
            lines.append((("the server does not report phases", "muted"),))
        else:
            lines.append(stacked_line([(part, self._stats.ms[part]) for part in PARTS], width))
        lines += speed_lines(self._stats, *self._begin())
        lines += curve_lines(self._history, width, "verify", unit="ms", compact=self.compact)
        self._view.set_lines(lines)
        mean = self._stats.ms["total"] / self._stats.steps if self._stats.steps else None
        self.title_bar.show(headline="" if mean is None else f"{mean:.1f} ms/step")

    def _begin(self) -> tuple[float | None, float | None]:
        """Prefill speed and time to the first token: at the end as measured, before that the time of the
        prefill and the first step, without rendering the prompt."""
        prefill = self.prefill
        if self._stats.first_token_ms:
            return self._stats.prefill_tokens_per_s, self._stats.first_token_ms
        if prefill is None or self._first_step_ms is None:
            return None, None
        fresh = prefill.done - prefill.reused
        rate = fresh / prefill.ms * 1000 if fresh and prefill.ms else None
        return rate, prefill.ms + self._first_step_ms
