"""The Timings panel: where the milliseconds of a step go, and how fast prompt and reply are."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult

from ds4chat.engine.events import Ended, Loaded, Phases, Step, Tuning
from ds4chat.engine.stats import Stats
from ds4chat.tui.widgets.panels.charts import curve_lines, stacked_line
from ds4chat.tui.widgets.panels.figures import decimal, percent
from ds4chat.tui.widgets.panels.history import History
from ds4chat.tui.widgets.panels.lines import Line, LinesView
from ds4chat.tui.widgets.panels.panel import Panel

PARTS = ("draft", "verify", "accept", "rollback", "other")


def phase_lines(last: Phases | None, stats: Stats) -> list[Line]:
    """A head and one line a phase: milliseconds of the last step, mean of all steps, share of the total."""
    lines: list[Line] = [((f"{'ms':<11}{'last':>8}{'mean':>9}{'share':>9}", "muted"),)]
    total = stats.ms["total"]
    for part in (*PARTS, "total"):
        mean = stats.ms[part] / stats.steps if stats.steps else None
        share = stats.ms[part] / total if total else None
        swatch = ("  ", "") if part == "total" else ("■ ", part)
        lines.append(
            (
                swatch,
                (f"{part:<9}", "strong" if part == "total" else ""),
                (decimal(None if last is None else getattr(last, part), 8), ""),
                (decimal(mean, 9), ""),
                (f"  {percent(share)}", "muted"),
            )
        )
    return lines


def speed_lines(stats: Stats, ended: bool) -> list[Line]:
    """Prefill and decode speed and the time to the first token."""
    first = decimal(stats.first_token_ms if ended else None, 8)
    return [
        (
            ("prefill", "muted"),
            (decimal(stats.prefill_tokens_per_s, 8), "strong"),
            (" tok/s  first", "muted"),
            (first, "strong"),
            (" ms", "muted"),
        ),
        (("decode ", "muted"), (decimal(stats.decode_tokens_per_s, 8), "strong"), (" tok/s", "muted")),
    ]


class TimingsPanel(Panel):
    """Phases as figures and as one stacked bar, speeds, and the curve of milliseconds a step."""

    NAME = "timings"
    TITLE = "Timings"

    def __init__(self) -> None:
        super().__init__()
        self._view = LinesView(id="timings-lines")
        self._history = History()
        self._last: Phases | None = None
        self._last_tuning: Tuning | None = None
        self._stats = Stats()
        self._ended = False

    def compose_body(self) -> ComposeResult:
        yield self._view

    def on_mount(self) -> None:
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def set_engine(self, loaded: Loaded | None, state: str) -> None:
        """Nothing here depends on what is loaded."""

    def take(self, steps: Sequence[Step], stats: Stats, session: Stats) -> None:
        """Fold new steps into the curve; nothing is drawn before ``draw``."""
        for step in steps:
            changed = self._last_tuning is not None and step.tuning != self._last_tuning
            self._last_tuning = step.tuning
            self._history.add(step.ms.total, 1, changed)
            self._last = step.ms
        self._stats = stats

    def end(self, ended: Ended, stats: Stats) -> None:
        """The reply is over, and its prefill figures are known."""
        self._stats, self._ended = stats, True

    def reset(self) -> None:
        """A new reply: its figures and its curve begin at nothing."""
        self._history.clear()
        self._last = None
        self._stats = Stats()
        self._ended = False

    def draw(self) -> None:
        """Show what was taken."""
        width = self._view.size.width or 38
        lines = phase_lines(self._last, self._stats)
        lines.append(stacked_line([(part, self._stats.ms[part]) for part in PARTS], width))
        lines += speed_lines(self._stats, self._ended)
        lines += curve_lines(self._history, width, "verify", unit="ms", compact=self.compact)
        self._view.set_lines(lines)
        mean = self._stats.ms["total"] / self._stats.steps if self._stats.steps else None
        self.title_bar.show(headline="" if mean is None else f"{mean:.1f} ms/step")
