"""The Acceptance panel: how many drafts were accepted, at which positions, and the effect on speed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from textual.app import ComposeResult

from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Loaded, Outcome, Step, Tells, Tuning
from ds4chat.engine.stats import OUTCOMES, PositionCount, Stats
from ds4chat.tui.kit.charts import (
    baseline_words,
    changes,
    curve_lines,
    position_lines,
    side_by_side,
    speedup_role,
)
from ds4chat.tui.kit.figures import count, decimal, percent, ratio
from ds4chat.tui.kit.history import History
from ds4chat.tui.kit.lines import BLANK, Line, LinesView
from ds4chat.tui.panels.panel import Panel

OUTCOME_ROLES: dict[Outcome, str] = {
    "full": "good",
    "partial": "accept",
    "miss": "bad",
    "gated": "other",
    "plain": "muted",
    "fallback": "warning",
    "unknown": "muted",
}


_REPORTED: dict[Tells, str] = {
    "exact": "the server reports every step",
    "exact at the end": "acceptance follows a reply's end",
    "by step": "only accepted tokens are known",
    "counters": "only totals are known, at the end",
    "nothing": "drafts are not reported",
}


def counter_lines(stats: Stats, session: Stats, width: int = 46) -> list[Line]:
    """Drafted, judged, accepted, rate, mean accepted length, tokens per step; two per line where they fit."""
    unknown = bool(stats.outcomes["unknown"])  # unknown figures of a server are not zeros
    drafted, accepted, judged = (
        count(None if unknown and not value else value, 8)
        for value in (stats.drafted, stats.accepted, stats.judged)
    )
    figures = [
        ("drafted", drafted),
        ("accepted", accepted),
        ("judged", judged),
        ("rate", percent(stats.acceptance)),
        ("mean len", decimal(stats.mean_accepted, 8, 2)),
        ("tok/step", decimal(stats.tokens_per_step, 8, 2)),
        ("lossy", count(stats.lossy, 8)),
        ("session", percent(session.acceptance)),
    ]
    if stats.loop_judged:
        figures += [
            ("in loops", percent(stats.loop_acceptance)),
            ("elsewhere", percent(stats.acceptance_elsewhere)),
        ]
    cells = [((f"{name:<9}", "muted"), (f"{figure:>8}", "strong")) for name, figure in figures]
    return side_by_side(cells, width, most=2, gap=3)


def outcome_lines(stats: Stats, width: int = 46) -> list[Line]:
    """How the steps ended, at most three outcomes per line, each with its name, and in its colour once it
    occurred."""

    def cell(outcome: Outcome) -> Line:
        times = stats.outcomes[outcome]
        return (f"{outcome:<8}", OUTCOME_ROLES[outcome] if times else "muted"), (count(times, 5), "")

    shown = OUTCOMES if stats.outcomes["unknown"] else OUTCOMES[:6]
    return side_by_side([cell(outcome) for outcome in shown], width, most=3, gap=1)


def speed_lines(stats: Stats, loaded: Loaded | None = None) -> list[Line]:
    """Speed and its ratio against plain decoding, and how that baseline was measured."""
    plain = stats.plain
    head: Line = (
        (decimal(stats.decode_tokens_per_s, 6), "strong"),
        (" tok/s  ", "muted"),
        (ratio(plain.speedup), speedup_role(stats)),
        (" plain decoding", "muted"),
    )
    if plain.tokens_per_s is not None:
        note = f"{plain.tokens_per_s:.1f} tok/s plain: {baseline_words(plain)}"
    elif loaded is not None and loaded.server is not None:
        note = _REPORTED[loaded.server.tells]
    else:
        note = "plain speed was not measured here"
    return [head, ((note, "muted"),)]


def off_sentence(loaded: Loaded | None, state: str) -> str:
    """Why nothing is drafted; empty if a drafter is loaded. ``state``: the engine's, in words."""
    if loaded is None:
        return state or "No model is loaded."
    if loaded.drafter:
        return ""
    unknown = loaded.server is not None and loaded.server.speculates is None
    return f"{'MTP' if unknown else 'Speculation is off'}: {loaded.off_reason or 'No drafter is loaded.'}"


class AcceptancePanel(Panel):
    """Counters, bars by position, outcomes, the curve of acceptance, and the speed against plain decoding."""

    NAME = "acceptance"
    TITLE = "Acceptance"

    def __init__(self) -> None:
        super().__init__()
        self._view = LinesView(id="acceptance-lines")
        self._history = History()
        self.depth: int | str = 1
        """The depth in force, which the dock sets: each of its positions has a row before anything is judged
        there."""
        self._last_tuning: Tuning | None = None
        self._last_change = ""
        self._loaded: Loaded | None = None
        self._state = ""
        self._stats = Stats()
        self._session = Stats()

    def compose_body(self) -> ComposeResult:
        yield self._view

    def set_engine(self, loaded: Loaded | None, state: str) -> None:
        """What is loaded, and the engine's state in words."""
        self._loaded, self._state = loaded, state
        if not self._stats.steps:
            self._stats = self._nothing_yet()

    def add_steps(self, steps: Sequence[Step], stats: Stats, session: Stats) -> None:
        """Add new steps to the curve; nothing is drawn before ``draw``."""
        for step in steps:
            last, self._last_tuning = self._last_tuning, step.tuning
            change = "" if last is None or step.tuning == last else changes(last, step.tuning)
            if change:
                self._last_change = f"▲ step {step.index}: {change}"
            accepted = sum(row.accepted for row in step.judged)
            self._history.add(accepted, len(step.judged), bool(change))
        self._stats, self._session = stats, session

    def end(self, stats: Stats) -> None:
        self._stats = stats

    def reset(self) -> None:
        """A new reply: reset its counters and its curve."""
        self._history.clear()
        self._last_change = ""
        self._stats = self._nothing_yet()

    def _nothing_yet(self) -> Stats:
        return Stats(plain=PlainTime(self._loaded.plain_ms if self._loaded else 0.0))

    def draw(self) -> None:
        """Redraw."""
        width = self._view.size.width or 38
        stats = self._stats
        why = off_sentence(self._loaded, self._state)
        lines: list[Line] = [((line, "warning"),) for line in textwrap.wrap(why, max(10, width))]
        space = [] if self.compact else [BLANK]
        lines += counter_lines(stats, self._session, width)
        lines += [*space, *position_lines(self._positions(), width, compact=self.compact)]
        lines += outcome_lines(stats, width)
        lines += space
        lines += curve_lines(
            self._history, width, "accept", top=1.0, unit="%", scale=100, compact=self.compact
        )
        lines.append(
            ((self._last_change, "mark"),) if self._last_change else (("▲ marks a changed setting", "muted"),)
        )
        lines += speed_lines(stats, self._loaded)
        self._view.set_lines(lines)
        self.title_bar.show(headline=percent(stats.acceptance).strip())

    def _positions(self) -> list[PositionCount]:
        """Counts up to the depth in force: a row that appears takes a new layout of the whole screen."""
        drafts = self._loaded is not None and self._loaded.drafter is not None
        depth = self.depth if drafts and isinstance(self.depth, int) else 1
        rows = max(len(self._stats.by_position), depth, 1)
        counted = list(self._stats.by_position)
        return counted + [PositionCount() for _ in range(rows - len(counted))]
