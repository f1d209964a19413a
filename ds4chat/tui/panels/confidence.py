"""The Confidence panel: one row per judged draft, the newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from ds4chat.engine.events import UNKNOWN_ID, Judged, Step
from ds4chat.engine.stats import Stats
from ds4chat.tui.kit.drawn import DrawnLines
from ds4chat.tui.kit.figures import NONE, count, decimal, token_text
from ds4chat.tui.kit.lines import Line, LinesView, style_sheet
from ds4chat.tui.kit.scrolling import GrowingView
from ds4chat.tui.messages import TokenPicked
from ds4chat.tui.panels.panel import Panel

CAPACITY = 4000
"""Most rows kept. The explorer has the whole log of a conversation."""

FIXED_WIDTH = 5 + 3 + 2 + 6 + 6 + 2
GAP_WIDTH = 6
PROB_WIDTH = 6
MIN_TEXT = 6


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """One judged draft and its step."""

    reply: int
    step: int
    judged: Judged

    @property
    def token(self) -> int:
        """Index in the step's tokens of the token that this row decided."""
        return self.judged.position - 1


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths of the columns that fit; 0 hides a column."""

    text: int
    draft_gap: int
    draft_prob: int


def columns(width: int) -> Columns:
    """The columns for a panel of ``width`` cells: the draft's gap is hidden first, then its probability."""
    for gap, prob in ((GAP_WIDTH, PROB_WIDTH), (GAP_WIDTH, 0), (0, 0)):
        text = (width - FIXED_WIDTH - gap - prob) // 2
        if text >= MIN_TEXT:
            return Columns(min(text, 24), gap, prob)
    return Columns(max(1, (width - FIXED_WIDTH) // 2), 0, 0)


def head_line(fit: Columns) -> Line:
    """The names of the columns."""
    names = f"{'step':>5} {'p':>2} {'draft':<{fit.text}} {'target':<{fit.text}} {'ratio':>5} {'gap':>5}"
    names += f" {'d.gap':>5}" if fit.draft_gap else ""
    names += f" {'prob':>5}" if fit.draft_prob else ""
    return ((names, "muted"),)


def row_spans(row: JudgedRow, fit: Columns) -> Line:
    """One row: step, position, draft and target text, ratio, gaps, and a mark for the verdict."""
    judged = row.judged
    role = {"match": "accept", "server": "accept", "ratio": "approximate", "": "bad"}[judged.by]
    mark = {"match": "✓", "server": "✓", "ratio": "≈", "": "✗"}[judged.by]
    named = judged.accepted or judged.draft != UNKNOWN_ID
    figures = f" {decimal(judged.ratio, 5, 3)} {decimal(judged.gap, 5, 2)}"
    figures += f" {decimal(judged.draft_gap, 5, 2)}" if fit.draft_gap else ""
    figures += f" {decimal(judged.draft_prob, 5, 3)}" if fit.draft_prob else ""
    target = token_text(judged.target_text, fit.text)
    same = judged.draft == judged.target
    return (
        (f"{count(row.step, 5)} {judged.position:>2} ", "muted"),
        (token_text(judged.draft_text, fit.text) if named else f"{NONE:<{fit.text}}", role),
        (" ", ""),
        (target, "muted" if same else ""),
        (figures, ""),
        (f" {mark}", role),
    )


class ConfidenceLog(GrowingView, DrawnLines, can_focus=True):
    """The rows. It follows the newest until the user scrolls away, and again after End."""

    STYLES = "confidence"
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "confidence--muted",
        "confidence--accept",
        "confidence--approximate",
        "confidence--bad",
        "confidence--cursor",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Previous draft", show=False, id="confidence.up"),
        Binding("down", "move(1)", "Next draft", show=False, id="confidence.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="confidence.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="confidence.page_down"),
        Binding("home", "first", "Oldest draft", show=False, id="confidence.first"),
        Binding("end", "follow", "Follow the newest draft", id="confidence.follow"),
        Binding("enter", "pick", "Show this draft in the text", id="confidence.pick"),
    ]

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__(id="confidence-log")
        self._rows: deque[JudgedRow] = deque(maxlen=capacity)
        self._dropped = 0
        """Number of rows dropped from the front: row ``_rows[i]`` has the permanent number ``_dropped +
        i``."""
        self._cursor: int | None = None

    @property
    def rows(self) -> Sequence[JudgedRow]:
        """The rows kept, oldest first."""
        return self._rows

    @property
    def cursor_row(self) -> JudgedRow | None:
        """The row under the cursor."""
        return None if self._cursor is None else self._rows[self._cursor - self._dropped]

    def extend(self, rows: Sequence[JudgedRow]) -> None:
        """Append rows; the oldest are dropped when the log is full, and the view keeps its place."""
        if not rows:
            return
        before = len(self._rows)
        self._rows.extend(rows)
        lost = before + len(rows) - len(self._rows)
        self._dropped += lost
        if self._cursor is not None and self._cursor < self._dropped:
            self._cursor = None
        width = self.scrollable_content_region.width
        self.grow_to(Size(width, len(self._rows)))
        if lost and not self.following:
            self.scroll_to(y=max(0, self.scroll_offset.y - lost), animate=False, immediate=True)
        if lost:
            self.refresh()
        else:
            self.refresh_rows(before, before + len(rows))

    def clear(self) -> None:
        """Forget every row."""
        self._dropped += len(self._rows)
        self._rows.clear()
        self._cursor = None
        self.set_following(True)
        self.virtual_size = Size(self.size.width, 0)
        self.refresh()

    # -- scrolling

    def on_resize(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._rows))
        if self.following:
            self.scroll_end(animate=False, immediate=True, x_axis=False)

    # -- cursor

    def action_move(self, by: int) -> None:
        """Move the cursor by rows; the first press selects the newest visible row."""
        if not self._rows:
            return
        last = self._dropped + len(self._rows) - 1
        if self._cursor is None:
            bottom = self.scroll_offset.y + self.scrollable_content_region.height - 1
            self._put_cursor(min(last, self._dropped + bottom))
        else:
            self._put_cursor(min(last, max(self._dropped, self._cursor + by)))

    def action_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self.action_move(by * max(1, self.scrollable_content_region.height - 1))

    def action_first(self) -> None:
        """The oldest row kept."""
        if self._rows:
            self._put_cursor(self._dropped)

    def action_follow(self) -> None:
        """Remove the cursor and follow the newest row again."""
        self._cursor = None
        super().action_follow()
        self.refresh()

    def action_pick(self) -> None:
        """Show the row under the cursor in the text."""
        row = self.cursor_row
        if row is not None:
            self.post_message(TokenPicked(row.reply, row.step, row.token))

    def on_click(self, event: events.Click) -> None:
        y = event.get_content_offset(self)
        if y is None:
            return
        index = y.y + self.scroll_offset.y
        if 0 <= index < len(self._rows):
            self._put_cursor(self._dropped + index)
            self.action_pick()

    def _put_cursor(self, number: int) -> None:
        old, self._cursor = self._cursor, number
        for changed in (old, number):
            if changed is not None:
                self.refresh_rows(changed - self._dropped, changed - self._dropped + 1)
        index = number - self._dropped
        self.set_following(False)
        self.scroll_to_region(Region(0, index, 1, 1), animate=False, immediate=True, force=True, x_axis=False)

    # -- drawing

    def lines_drawn(self) -> range:
        return range(self._dropped, self._dropped + len(self._rows))

    def draw_line(self, number: int) -> Strip:
        index = number - self._dropped
        width = self.scrollable_content_region.width
        if not 0 <= index < len(self._rows):
            return self.strip_of((), width)
        over = None
        if number == self._cursor:
            # It replaces each cell's ground and keeps its colour.
            style = self.style_of("cursor")
            over = Style(bgcolor=style.bgcolor, bold=style.bold, reverse=style.reverse)
        return self.strip_of(row_spans(self._rows[index], columns(width)), width, over)


class ConfidencePanel(Panel):
    """The log under the names of its columns."""

    DEFAULT_CSS = style_sheet(__package__, "confidence.tcss")
    NAME = "confidence"
    TITLE = "Confidence"

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__()
        self._head = LinesView(id="confidence-head")
        self.log_view = ConfidenceLog(capacity)
        self._pending: deque[JudgedRow] = deque(maxlen=capacity)

    def words_at(self, widget: Widget, row: int) -> str:
        return super().words_at(*((self._head, 0) if widget is self.log_view else (widget, row)))

    def compose_body(self) -> ComposeResult:
        yield self._head
        yield self.log_view

    def add_steps(self, steps: Sequence[Step], stats: Stats, session: Stats) -> None:
        """Keep the rows of new steps for the next ``draw``."""
        self._pending.extend(
            JudgedRow(step.reply, step.index, judged) for step in steps for judged in step.judged
        )

    def has(self, reply: int) -> bool:
        """The log has rows of the reply with this number."""
        return any(row.reply == reply for rows in (self._pending, self.log_view.rows) for row in rows)

    def draw(self) -> None:
        """Redraw."""
        self.log_view.extend(tuple(self._pending))
        self._pending.clear()
        self._head.set_lines([head_line(columns(self.log_view.scrollable_content_region.width or 38))])
        self._show_headline()

    def _show_headline(self) -> None:
        rows = f"{len(self.log_view.rows):,} rows"
        self.title_bar.show(headline=rows if self.log_view.following else f"▼ End follows · {rows}")

    def on_growing_view_follow_changed(self, event: GrowingView.FollowChanged) -> None:
        event.stop()
        self._show_headline()
