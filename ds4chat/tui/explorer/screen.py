"""The confidence explorer: the judged drafts of a record as rows, charts, a what-if and replies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Static

from ds4chat.analysis.histogram import reliability
from ds4chat.engine.events import Tuning
from ds4chat.tui.explorer import charts
from ds4chat.tui.explorer.export import ExportError, FileExistsAlready, export_rows
from ds4chat.tui.explorer.filter_line import FilterLine
from ds4chat.tui.explorer.replies_view import RepliesView
from ds4chat.tui.explorer.source import Source, SourceError
from ds4chat.tui.explorer.table import LABELS, RowTable, TableHead, detail_line
from ds4chat.tui.explorer.views import VIEWS, ViewBar, hint
from ds4chat.tui.explorer.whatif import WhatIfPanel
from ds4chat.tui.kit.charts import changes
from ds4chat.tui.kit.lines import BLANK, LinesView
from ds4chat.tui.kit.row_list import RowList
from ds4chat.tui.kit.sheet import Sheet, StyleSheets
from ds4chat.tui.messages import TokenPicked, TuningChanged

NARROW = 70
"""Columns below which the two charts are on top of each other."""
WIDE = 120
"""Columns from which the table, the charts and the what-if are side by side."""
CHART_SECONDS = 0.1
"""The charts follow the filter after this time; the table follows each key."""


class ExplorerScreen(Sheet[None]):
    """``load`` reads the rows or raises SourceError; it is called in a thread. ``tuning`` returns the chat's
    live settings, which Apply changes."""

    AUTO_FOCUS = "RowTable"
    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "Confidence explorer"
    FIELD_HINT = "[b]Enter[/b] accepts the text · [b]Esc[/b] goes back"
    HELP_GROUP = "Confidence explorer"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close the field, then the explorer", id="explorer.close"),
        Binding("slash,ctrl+f", "filter", "Filter the rows", id="explorer.filter"),
        Binding("f2", "next_view", "Rows, charts, what-if or replies", id="explorer.view"),
        Binding("1", "view('rows')", "Rows", show=False, id="explorer.rows"),
        Binding("2", "view('charts')", "Charts", show=False, id="explorer.charts"),
        Binding("3", "view('what-if')", "What-if", show=False, id="explorer.what_if_view"),
        Binding("4", "view('replies')", "Replies in time", show=False, id="explorer.replies"),
        Binding("h", "next_chart", "Another histogram", id="explorer.chart"),
        Binding("w", "what_if", "Other settings: what if", id="explorer.what_if"),
        Binding("a", "apply", "Apply the what-if to the chat", id="explorer.apply"),
        Binding("e", "export", "Write the rows shown to a file", id="explorer.export"),
        Binding("f5", "reload", "Read the rows again", id="explorer.reload"),
    ]

    def __init__(self, load: Callable[[], Source], tuning: Callable[[], Tuning]) -> None:
        super().__init__()
        self._load = load
        self._tuning = tuning
        self.source: Source | None = None
        self.table = RowTable()
        self.filter_line = FilterLine()
        self.what_if = WhatIfPanel()
        self.replies = RepliesView()
        self._bar = ViewBar()
        self._head = TableHead()
        self._detail = LinesView(id="row-detail")
        self._histogram = LinesView(id="histogram")
        self._reliability = LinesView(id="reliability")
        self._empty = Static(id="explorer-empty", markup=False)
        self._state = Static(id="explorer-state", markup=False)
        self._export = Input(placeholder="rows.csv or rows.jsonl", id="explorer-export", compact=True)
        self._columns = itertools.cycle(charts.NAMES)
        self._column = next(self._columns)
        """The column of the histogram."""
        self._view = VIEWS[0]
        self._trouble = ""
        """Why there are no rows, as a sentence."""
        self._overwrite = ""
        """The name of an existing file, which Enter on the same name overwrites."""

    def compose_sheet(self) -> ComposeResult:
        yield self.filter_line
        yield self._bar
        with Horizontal(id="explorer-main"):
            with Vertical(id="explorer-rows"):
                yield self._head
                yield self._empty
                yield self.table
                yield self._detail
            with VerticalScroll(id="explorer-side", can_focus=False):
                with Container(id="explorer-charts"):
                    yield self._histogram
                    yield self._reliability
                yield self.what_if
        yield self.replies
        with Horizontal(id="explorer-foot"):
            yield self._export
            yield self._state

    def on_mount(self) -> None:
        self._export.display = self._empty.display = False
        self._show_view(self._view)
        self.action_reload()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= WIDE, "-wide")
        self.set_class(event.size.width < NARROW, "-narrow")
        self._show_view(self._view)
        self.call_after_refresh(self._draw_charts)

    # -- the rows

    def action_reload(self) -> None:
        """Read the rows, the first time or again."""
        self._say("Reading the rows …")
        self._read()

    @work(exclusive=True, exit_on_error=False, group="source")
    async def _read(self) -> None:
        try:
            source = await asyncio.to_thread(self._load)
        except (SourceError, MemoryError) as error:
            self._trouble = str(error) or "The record is too long for the memory of this machine."
            self._show_state()
            return
        self.source, self._trouble = source, ""
        listing = source.listing
        before = self.table.listing
        listing.narrow(before.filter)
        listing.sort(before.column, before.descending)
        self.retitle(f"{self.TITLE_TEXT}  {source.title}")
        self.table.show_listing(listing)
        self.what_if.show(listing.rows, source.times)
        self.replies.show(source.replies, source.options)
        self._draw_charts()

    @on(FilterLine.Changed)
    def filter_changed(self, event: FilterLine.Changed) -> None:
        """Show the rows that pass, and after a moment their charts."""
        event.stop()
        self.table.narrow(event.wanted)
        self._draw_charts_soon()

    @on(FilterLine.Done)
    def filter_done(self, event: FilterLine.Done) -> None:
        """Go from the filter to the rows."""
        event.stop()
        self.action_view("rows")
        self.table.focus()

    @on(TableHead.Clicked)
    def head_clicked(self, event: TableHead.Clicked) -> None:
        """Sort by that column; a second click reverses the order."""
        event.stop()
        listing = self.table.listing
        self.table.sort(event.column, event.column == listing.column and not listing.descending)

    @on(RowTable.Changed)
    def table_changed(self, event: RowTable.Changed) -> None:
        """Mark the sorted column, and show how many rows there are."""
        event.stop()
        listing = self.table.listing
        self._head.show(listing.column, listing.descending)
        self._show_state()

    @on(RowList.Moved)
    def row_moved(self, event: RowList.Moved) -> None:
        """Show what the row's step did."""
        event.stop()
        row = self.table.current_row
        self._detail.set_lines([BLANK if row is None else detail_line(self.table.listing.rows, row)])

    @on(RowList.Chosen)
    def row_chosen(self, event: RowList.Chosen) -> None:
        """Close, and have the chat show the token."""
        event.stop()
        row = self.table.current_row
        if row is not None:
            rows = self.table.listing.rows
            step = rows.step[row]
            self._jump(int(rows.step_reply[step]), int(rows.step_index[step]), int(rows.position[row]) - 1)

    @on(RepliesView.Picked)
    def reply_picked(self, event: RepliesView.Picked) -> None:
        """Close, and have the chat show the reply's first token."""
        event.stop()
        if event.row.first is None:
            self._say(f"Reply {event.row.number} has no text.")
        else:
            self._jump(event.row.number, event.row.first, 0)

    def _jump(self, reply: int, step: int, token: int) -> None:
        if self.source is None or not self.source.in_chat:
            title = self.source.title if self.source else "the record"
            self._say(f"The text of {title} is not in the chat: open the conversation to go to its tokens.")
            return
        # To the app: the chat is below this screen, not around it.
        number = self.source.numbers[reply - 1] if self.source.numbers else reply
        self.app.post_message(TokenPicked(number, step, token))
        self.dismiss(None)

    # -- charts

    def action_next_chart(self) -> None:
        """Show the histogram of the next column."""
        self._column = next(self._columns)
        if self._view == "replies" or (not self.has_class("-wide") and self._view != "charts"):
            self.action_view("charts")
        self._draw_charts()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._histogram:
            self.action_next_chart()

    @work(exclusive=True, group="charts")
    async def _draw_charts_soon(self) -> None:
        await asyncio.sleep(CHART_SECONDS)
        self._draw_charts()

    def _draw_charts(self) -> None:
        if self.source is None:
            return
        rows, shown = self.table.listing.rows, self.table.listing.shown
        if width := self._histogram.size.width:
            found = charts.column_histogram(rows, shown, self._column)
            self._histogram.set_lines(charts.histogram_lines(found, self._column, width))
        if width := self._reliability.size.width:
            curve = reliability(rows.draft_prob[shown], rows.accepted[shown])
            self._reliability.set_lines(charts.reliability_lines(curve, width))

    # -- what-if

    def action_what_if(self) -> None:
        """Go to the first control of the what-if."""
        if self.source is not None:
            self.action_view("what-if")

    def action_apply(self) -> None:
        """Apply the what-if to the chat."""
        self.what_if.apply()

    @on(WhatIfPanel.Applied)
    def applied(self, event: WhatIfPanel.Applied) -> None:
        """Change the chat's live settings to these values."""
        event.stop()
        before = self._tuning()
        after = event.scenario.apply(before)
        changed = changes(before, after)
        if not changed:
            self._say("Nothing to apply: the chat's settings have these values already.")
            return
        self.app.post_message(TuningChanged(after))
        self._say(f"Applied: {changed}. It takes effect at the next step; Ctrl+R in the chat undoes it.")

    # -- views

    def action_view(self, view: str) -> None:
        """Focus a view, and show it if the views are not side by side. Without rows there is only the table
        with the sentence that says why."""
        if self.source is None:
            view = "rows"
        self._show_view(view)
        if view == "rows":
            self.table.focus()
        elif view == "what-if":
            self.what_if.query("Control").first().focus()
        elif view == "replies":
            self.replies.list.focus()
        elif not self.has_class("-wide"):
            self.set_focus(None)
        self.call_after_refresh(self._draw_charts)

    def action_next_view(self) -> None:
        """Show the next view; the first follows the last."""
        self.action_view(VIEWS[(VIEWS.index(self._view) + 1) % len(VIEWS)])

    @on(ViewBar.Chosen)
    def view_clicked(self, event: ViewBar.Chosen) -> None:
        """Show the view that was clicked."""
        event.stop()
        self.action_view(event.view)

    def _show_view(self, view: str) -> None:
        self._view = view
        for name in VIEWS:
            self.set_class(name == view, f"-{name}")
        self._bar.show(view)
        self.show_hint(hint(view, wide=self.has_class("-wide")))

    # -- export

    def action_export(self) -> None:
        """Ask for the name of the file."""
        if self.source is not None:
            self._overwrite = ""
            self._export.display = True
            self.set_focus(self._export)
            self._say(f"{len(self.table.listing):,} rows into a .csv or .jsonl file, in this order")

    @on(Input.Submitted, "#explorer-export")
    def export_named(self, event: Input.Submitted) -> None:
        """Write the file; an existing one only when it is named twice."""
        event.stop()
        self._write(event.value, event.value == self._overwrite)

    @work(exit_on_error=False, group="export")
    async def _write(self, name: str, overwrite: bool) -> None:
        rows, shown = self.table.listing.rows, self.table.listing.shown
        try:
            path, count = await asyncio.to_thread(export_rows, rows, shown, name, overwrite=overwrite)
        except ExportError as error:
            if isinstance(error, FileExistsAlready):
                self._overwrite = name
            self._say(str(error), error=True)
        else:
            self._close_export()
            self._say(f"{count:,} rows written to {path}.")

    def _close_export(self) -> None:
        self._export.value = ""
        self._export.display = False
        self.table.focus()

    # -- the line at the foot

    def action_filter(self) -> None:
        """Go to the filter line."""
        self.set_focus(self.filter_line.field)

    def action_close(self) -> None:
        """Close the file name, clear and leave the filter, or close the screen."""
        if self._export.display:
            self._close_export()
            self._show_state()
        elif self.filter_line.field.has_focus:
            if self.filter_line.field.value:
                self.filter_line.field.value = ""
            else:
                self.action_view("rows")
        else:
            self.dismiss(None)

    def _show_state(self) -> None:
        listing = self.table.listing
        shown, total = len(listing), len(listing.rows)
        why = self._trouble or ("No row passes the filter." if total and not shown else "")
        self._empty.update(why)
        self._empty.display = bool(why)
        self.set_class(self.source is None, "-no-source")
        if self.source is None:
            self._say("F5 tries again · Esc closes")
            return
        parts = [f"{shown:,} rows" if shown == total else f"{shown:,} of {total:,} rows"]
        if shown:
            parts.append(f"{listing.rows.accepted[listing.shown].mean() * 100:.1f} % accepted")
        parts.append(f"by {LABELS[listing.column]} {'↓' if listing.descending else '↑'}")
        if self.source.note:
            parts.append(self.source.note)
        self._say(" · ".join(parts))

    def _say(self, sentence: str, *, error: bool = False) -> None:
        self._state.set_class(error, "-error")
        self._state.update(sentence)

    @property
    def said(self) -> str:
        """The line at the foot."""
        return str(self._state.content)
