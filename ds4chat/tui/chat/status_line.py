"""The status line: the model, its speculation or why there is none, the speed, and the current activity."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events

from ds4chat.engine.events import Loaded, Loading, Prefill, ServerInfo, Tells, Tuning
from ds4chat.engine.stats import Stats
from ds4chat.text import with_short_paths
from ds4chat.tui.controller import Chat, EngineState
from ds4chat.tui.kit.charts import speedup_role
from ds4chat.tui.kit.figures import decimal, grouped, rate_bar, whole_percent
from ds4chat.tui.kit.lines import Line, LinesView, Span, style_sheet
from ds4chat.tui.messages import CommandRequested

STATES: dict[EngineState, tuple[str, str]] = {
    "none": ("○ no model", "muted"),
    "loading": ("◐ loading", "mark"),
    "ready": ("● ready", "good"),
    "saving": ("◐ saving", "mark"),
    "reading": ("◐ reading", "mark"),
    "writing": ("▶ writing", "mark"),
    "checking": ("◐ checking", "mark"),
    "comparing": ("◐ comparing", "mark"),
    "stopping": ("■ stopping", "warning"),
    "failed": ("✕ not loaded", "bad"),
    "died": ("✕ engine died", "bad"),
}
VERY_WIDE = 150
"""Cells from which there is room for a long name and all figures."""
STATE_WIDTH = 10
NEARLY_FULL = 0.8
"""Share of the context from which the user is warned."""
WHY_CELLS = 160
"""Room for the reason while speculation is off: two rows of 80 columns, and at least two."""


@dataclass(frozen=True, slots=True)
class Status:
    """All that the line shows."""

    state: EngineState
    progress: Loading | Prefill | None
    model: str
    loaded: Loaded | None
    tuning: Tuning
    stats: Stats
    """Of the running reply, or of the last one."""
    queued: int = 0


def status_lines(status: Status, width: int) -> list[Line]:
    """One line of figures, and below it the reason while speculation is off, or how strict mode verifies."""
    inner = max(10, width - 2)
    line: list[Span] = [(" ", "")]
    for number, part in enumerate(_fitting(_parts(status, inner), inner)):
        line += [("  ", "")] if number else []
        line += part.spans
    lines: list[Line] = [tuple(line)]
    why, strict = why_off(status), strict_note(status)
    server = status.loaded.server if status.loaded else None
    if server is not None:
        lines += _rows(_server_sentence(server, why), inner, "warning" if why or server.exposed else "muted")
    elif why:
        lines += _rows(f"MTP is off: {why}", inner, "warning")
    elif strict:
        lines += _rows(f"Strict mode: {strict}.", inner, "muted")
    return lines


def command_at(status: Status, width: int, column: int) -> str:
    """The slash command for the part at a column of the line of figures; empty for none."""
    inner = max(10, width - 2)
    at = 1
    for part in _fitting(_parts(status, inner), inner):
        if at <= column < at + part.width:
            return part.command
        at += part.width + 2
    return ""


def _rows(text: str, width: int, role: str) -> list[Line]:
    """The sentence in a few rows; where it does not fit, its paths are shortened before its end is cut."""
    rows = max(2, WHY_CELLS // width)
    pieces = textwrap.wrap(text, width)
    if len(pieces) > rows:
        pieces = textwrap.wrap(with_short_paths(text), width, max_lines=rows, placeholder=" …")
    return [((f" {piece}", role),) for piece in pieces]


TELLS: dict[Tells, str] = {
    "exact": "reports every token's origin",
    "exact at the end": "reports every token's origin at a reply's end",
    "by step": "reports how many of a step's tokens were accepted",
    "counters": "reports the totals of a reply",
    "nothing": "reports nothing about its drafts",
}


def _server_sentence(server: ServerInfo, why: str) -> str:
    """Which server answers, what it reports, and what it does not."""
    exposed = ", over plain http that others can read" if server.exposed else ""
    who = f"{server.kind} at {server.name}{exposed}"
    if server.speculates is False:
        return f"{who}. MTP is off: {why}"
    return f"{who} {TELLS[server.tells]}; {server.why}."


def why_off(status: Status) -> str:
    """Why speculation is off, as a sentence; empty while it is on, nothing is loaded or a server does not
    say."""
    if status.loaded is None:
        return ""
    if status.loaded.server is not None:
        return status.loaded.off_reason if status.loaded.server.speculates is False else ""
    if status.loaded.drafter is None:
        return status.loaded.off_reason or "no drafter is loaded. /mtp FILE or /mtp lookup loads one."
    if status.tuning.depth == 0:
        return "paused by you. Ctrl+T or /mtp on resumes it."
    return ""


def strict_note(status: Status) -> str:
    """How drafts are verified in strict mode; empty while it is off or nothing is loaded."""
    if status.loaded is None or not status.tuning.strict:
        return ""
    return status.loaded.strict_note or (
        "verification is one token at a time until /model loads the model again and tests batches"
    )


class _Part(NamedTuple):
    rank: int
    """0 is always shown; of the others the highest is hidden first."""
    spans: list[Span]
    command: str = ""
    """The slash command that a click runs."""
    short: Span | None = None
    """What it shows where what is always shown, the context and a warning do not fit on one line."""

    def shortened(self) -> _Part:
        return self._replace(spans=[self.short]) if self.short else self

    @property
    def width(self) -> int:
        return sum(cell_len(text) for text, _ in self.spans)


def _parts(status: Status, width: int) -> list[_Part]:
    text, role = STATES[status.state]
    parts = [_Part(0, [(text.ljust(STATE_WIDTH), role)], short=(text, role))]
    progress = status.progress
    if status.state == "loading" and isinstance(progress, Loading):
        filled, rest = rate_bar(progress.fraction, 10)
        parts.append(_Part(0, [(filled, "accept"), (rest, "track"), (f" {progress.fraction:4.0%}", "")]))
        parts.append(_Part(2, [(progress.stage, "muted")]))
        parts.append(_Part(1, [("Esc stops", "muted")], "/stop"))
    elif status.state in ("reading", "checking", "comparing") and isinstance(progress, Prefill):
        filled, rest = rate_bar(progress.done / max(1, progress.total), 10)
        parts.append(_Part(0, [(filled, "accept"), (rest, "track")]))
        parts.append(_Part(1, [(f"{progress.done:,}/{progress.total:,}", "muted")]))
    if status.state == "writing" and status.stats.repeating:
        short = "loops; Esc stops", "warning"
        parts.append(_Part(1, [("repeats itself; Esc stops", "warning")], short=short))
    if status.model:
        name = _short(status.model, 28 if width < VERY_WIDE else 44)
        parts.append(_Part(6, [(name, "strong")], "/model"))
    if status.queued:
        parts.append(_Part(2, [(f"{status.queued} queued", "mark")]))
    return parts if status.loaded is None else parts + _figures(status, status.loaded)


def _figures(status: Status, loaded: Loaded) -> list[_Part]:
    tuning, stats = status.tuning, status.stats
    if loaded.server is not None:
        parts = [_Part(0, [_served(loaded)])]
    elif loaded.drafter is None or tuning.depth == 0:
        parts = [_Part(0, [("MTP off", "warning")], "/mtp on")]
    else:
        probe = " probe" if tuning.probe else ""
        most, depth = loaded.drafter.max_depth, tuning.depth
        beyond = f" of {depth} asked" if isinstance(depth, int) and depth > most else ""
        shown = f"{most if beyond else depth}{probe}"
        spans = [(f"{loaded.drafter.kind} depth ", ""), (shown, "strong")]
        parts = [_Part(0, spans, "/mtp off", short=(f"depth {shown}", "strong"))]
        if beyond:
            spans.append((beyond, "warning"))
    if loaded.server is None:
        parts.append(_Part(0, [_mode(tuning)]))
    parts.append(_Part(2, [(decimal(stats.decode_tokens_per_s, 5), "strong"), (" tok/s", "muted")]))
    plain = stats.plain
    if plain.speedup is not None:
        label = " plain at load" if plain.at_load else " plain"
        parts.append(_Part(3, [(f"{plain.speedup:4.2f}×", speedup_role(stats)), (label, "muted")]))
    if stats.acceptance is not None:
        rate = whole_percent(stats.acceptance)
        parts.append(_Part(4, [(rate, "strong"), (" accepted", "muted")], "/explore"))
    used = f"{grouped(stats.context)}/{loaded.n_ctx:,}" if loaded.n_ctx else grouped(stats.context)
    parts.append(
        _Part(1, [("ctx ", "muted"), (used, "warning" if nearly_full(loaded, stats) else "")], "/ctx")
    )
    return parts


def nearly_full(loaded: Loaded | None, stats: Stats) -> bool:
    """The context is nearly full."""
    return loaded is not None and 0 < NEARLY_FULL * loaded.n_ctx <= stats.context_used


def _served(loaded: Loaded) -> Span:
    """The drafter of a server, as far as it says."""
    if loaded.drafter is not None:
        return loaded.drafter.kind, "strong"
    off = loaded.server is not None and loaded.server.speculates is False
    return ("MTP off", "warning") if off else ("MTP unknown", "muted")


def _mode(tuning: Tuning) -> Span:
    if tuning.mode == "approximate":
        return f" APPROXIMATE ≥{tuning.margin:.2f} ", "approximate"
    return tuning.mode, "muted" if tuning.mode == "exact" else "strong"


def _fitting(parts: list[_Part], width: int) -> list[_Part]:
    """The parts in order, without those of the highest rank until the rest fits. Before a part of rank 1 is
    hidden, all are shortened."""
    kept = list(parts)
    while not _fit(kept, width):
        last = max(kept, key=lambda part: part.rank)
        if last.rank <= 1:
            short = [part.shortened() for part in kept]
            if last.rank == 0 or _fit(short, width):
                return short
        kept.remove(last)
    return kept


def _fit(parts: list[_Part], width: int) -> bool:
    return sum(part.width + 2 for part in parts) - 2 <= width


def _short(name: str, width: int) -> str:
    return name if cell_len(name) <= width else name[: width - 1] + "…"


class StatusLine(LinesView):
    """Draws a Status."""

    DEFAULT_CSS = style_sheet(__package__, "status_line.tcss")
    COMPONENT_CLASSES: ClassVar[set[str]] = {"lines--approximate"}

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._status: Status | None = None

    def show(self, status: Status) -> None:
        """Show this."""
        self._status = status
        self.set_lines(status_lines(status, self.size.width or 80))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if self._status is not None and event.y == 0:
            command = command_at(self._status, self.size.width or 80, event.x)
            if command:
                self.post_message(CommandRequested(command))

    def show_chat(self, chat: Chat, stats: Stats) -> None:
        """Show the chat's state; ``stats`` are the running reply's, or the last one's."""
        self.show(
            Status(
                chat.state, chat.progress, chat.model_name, chat.loaded, chat.tuning, stats, len(chat.queue)
            )
        )

    def on_resize(self) -> None:
        if self._status is not None:
            self.show(self._status)
