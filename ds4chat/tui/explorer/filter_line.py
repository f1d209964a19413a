"""The filter line: a field, and below it examples or what is wrong with the text."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Static

from ds4chat.analysis.filters import Filter
from ds4chat.tui.explorer.query import EXAMPLES, QueryError, complete, parse_query
from ds4chat.tui.kit.lines import style_sheet


class QuerySuggester(Suggester):
    """Completes the last word of the line."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """The completed line, or None."""
        return complete(value)


class FilterLine(Vertical):
    """Posts the filter after every change. A line that is not a filter changes nothing and says why."""

    DEFAULT_CSS = style_sheet(__package__, "filter_line.tcss")

    class Changed(Message):
        """The line is another filter."""

        def __init__(self, wanted: Filter) -> None:
            super().__init__()
            self.wanted = wanted

    class Done(Message):
        """Enter was pressed."""

    def __init__(self) -> None:
        super().__init__(id="filter-line")
        self.field = Input(
            suggester=QuerySuggester(), placeholder="all rows", id="filter-field", compact=True
        )
        self._hint = Static(EXAMPLES, id="filter-hint", markup=False)

    def compose(self) -> ComposeResult:
        with Horizontal(id="filter-row"):
            yield Static("filter", id="filter-label")
            yield self.field
        yield self._hint

    @property
    def hint(self) -> str:
        """The line below the field."""
        return str(self._hint.content)

    @on(Input.Changed, "#filter-field")
    def changed(self, event: Input.Changed) -> None:
        """Parse the line."""
        event.stop()
        try:
            wanted = parse_query(event.value)
        except QueryError as error:
            self._hint.update(str(error))
            self._hint.add_class("-error")
            return
        self._hint.update(EXAMPLES)
        self._hint.remove_class("-error")
        self.post_message(self.Changed(wanted))

    @on(Input.Submitted, "#filter-field")
    def submitted(self, event: Input.Submitted) -> None:
        """Leave the field."""
        event.stop()
        self.post_message(self.Done())
