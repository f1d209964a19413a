"""The comparison while it runs and when it is over: a row per setting, one of which can be kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import set_cell_size
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.widgets import Static

from ds4chat.engine.events import Tuning
from ds4chat.tui.compare.comparison import ORDER, Comparison, Side
from ds4chat.tui.kit.figures import decimal, percent, ratio
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.kit.row_list import RowList
from ds4chat.tui.kit.sheet import Sheet, StyleSheets

DRAW_SECONDS = 0.2
HEADS = (f"{'tok/s':>9}", f"{'ms/token':>10}", f"{'accepted':>10}", f"{'tok/step':>9}", f"{'×':>6} ")
LEAST_NAME = 8
"""Least cells for a setting's name; with fewer, only its speed and its ratio are beside it."""


def head_line(width: int) -> str:
    """The names of the columns."""
    return _line("setting", HEADS, width)


def side_line(side: Side, speedup: float | None, width: int) -> str:
    """A setting's row: its name, speed, time per token, acceptance, tokens per step, and speed over that of
    the first one."""
    figures = (
        decimal(side.tokens_per_s, 9),
        decimal(side.ms_per_token, 10),
        f"{percent(side.stats.acceptance):>10}",
        decimal(side.stats.tokens_per_step, 9, 2),
        f" {ratio(speedup)}",
    )
    return _line(side.label, figures, width)


def _line(name: str, figures: Sequence[str], width: int) -> str:
    if width < LEAST_NAME + sum(map(len, figures)):
        figures = figures[0], figures[-1]
    shown = "".join(figures)
    return set_cell_size(name, max(0, width - len(shown))) + shown


class CompareScreen(Sheet[Tuning | None]):
    """Dismissed with the setting to keep, or None. ``stop`` stops the running answer."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "The last prompt under two settings"
    AUTO_FOCUS = "#compare-rows"
    HINT = "[b]↑ ↓[/b] choose   [b]Enter[/b] keeps this one   [b]Esc[/b] stops"
    OVER_HINT = "[b]↑ ↓[/b] choose   [b]Enter[/b] keeps this one   [b]Esc[/b] closes"

    def __init__(self, comparison: Comparison, stop: Callable[[], object]) -> None:
        super().__init__()
        self.comparison = comparison
        self._stop = stop
        self._head = LinesView(id="compare-head")
        self._rows = RowList(id="compare-rows")
        self._verdict = Static(id="compare-verdict", markup=False)

    def compose_sheet(self) -> ComposeResult:
        yield self._head
        yield self._rows
        yield self._verdict

    def on_mount(self) -> None:
        self.set_interval(DRAW_SECONDS, self.draw)
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show the figures so far."""
        comparison = self.comparison
        self._head.set_lines([((head_line(self._rows.size.width), "muted"),)])
        speedups = (1.0 if comparison.speedup else None, comparison.speedup)
        sides = comparison.sides

        def row(index: int, width: int) -> list[Text]:
            return [Text(side_line(sides[index], speedups[index], width))]

        self._rows.show(len(sides), row, current=self._rows.current or 0)
        if comparison.over:
            self.show_hint(self.OVER_HINT)
        self._verdict.update(f"{self.state}\n{comparison.trouble or comparison.verdict}")

    @property
    def state(self) -> str:
        """A sentence on how far the comparison is."""
        comparison = self.comparison
        if comparison.stopped:
            return "Stopped: the figures are of the answers so far."
        if comparison.over:
            return "Done: both answered by turns."
        return f"Answer {comparison.done + 1} of {len(ORDER)}, by turns …"

    @on(RowList.Chosen)
    def chosen(self, event: RowList.Chosen) -> None:
        """Keep the current setting."""
        event.stop()
        self._end()
        self.dismiss(self.comparison.sides[self._rows.current or 0].tuning)

    def action_close(self) -> None:
        """Stop the comparison, or close the screen if it is over."""
        if not self._end():
            self.dismiss(None)

    def _end(self) -> bool:
        """Stop the running answer; False if none is."""
        running = not self.comparison.over
        if running:
            self._stop()
        return running
