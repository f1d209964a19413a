"""The explorer's view of the conversation over time: the list of replies, and the strip below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from ds4chat.settings.schema import TUNING, Option
from ds4chat.tui.explorer.replies import ReplyRow, Strip, detail_lines, head_line, row_line
from ds4chat.tui.kit.lines import LinesView, style_sheet
from ds4chat.tui.kit.row_list import RowList


class ReplyList(RowList):
    """The replies, oldest first."""

    DEFAULT_CSS = style_sheet(__package__, "replies_view.tcss")
    HELP_GROUP = "Confidence explorer"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"row-list--accept", "row-list--good", "row-list--bad"}


class RepliesView(Vertical):
    """A row per reply, the strip of milliseconds per token, and the settings of the current reply."""

    class Picked(Message):
        """The chat should show this reply."""

        def __init__(self, row: ReplyRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self) -> None:
        super().__init__(id="explorer-replies")
        self.list = ReplyList(id="reply-list")
        self._head = LinesView(id="reply-head")
        self._strip_view = LinesView(id="reply-strip")
        self._detail = LinesView(id="reply-detail")
        self._rows: Sequence[ReplyRow] = ()
        self._options: Sequence[Option] = TUNING
        self._strip = Strip(())

    def compose(self) -> ComposeResult:
        yield self._head
        yield self.list
        yield self._strip_view
        yield self._detail

    def show(self, rows: Sequence[ReplyRow], options: Sequence[Option]) -> None:
        """Show these replies; the current row stays current, at first the last one."""
        keep = self.list.current
        self._rows, self._options, self._strip = rows, options, Strip(rows)
        self.list.show(len(rows), self._drawn, current=len(rows) - 1 if keep is None else keep)
        self._draw()

    def on_resize(self) -> None:
        """The lines fill the width."""
        self.call_after_refresh(self._draw)

    @on(RowList.Moved)
    def moved(self, event: RowList.Moved) -> None:
        """Highlight another reply in the strip."""
        event.stop()
        self._draw()

    @on(RowList.Chosen)
    def chosen(self, event: RowList.Chosen) -> None:
        """Have the chat show the reply."""
        event.stop()
        if self.list.current is not None:
            self.post_message(self.Picked(self._rows[self.list.current]))

    def _drawn(self, index: int, width: int) -> list[Text]:
        drawn = Text()
        for text, role in row_line(self._rows[index], width, self._options):
            drawn.append(text, self.list.look(role) if role else "")
        return [drawn]

    def _draw(self) -> None:
        width, current = self.list.scrollable_content_region.width, self.list.current
        if not width:
            return
        self._head.set_lines([head_line(width)])
        if current is None:
            return
        self._strip_view.set_lines(self._strip.lines(width, current))
        self._detail.set_lines(detail_lines(self._rows[current], width, self._options))
