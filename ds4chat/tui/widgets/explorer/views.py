"""The bar of views, where the screen is too narrow for all of them side by side."""

from __future__ import annotations

from textual import events
from textual.message import Message

from ds4chat.tui.widgets.panels.lines import Line, LinesView, Span

VIEWS = ("rows", "charts", "what-if")
_GAP = 3


class ViewBar(LinesView):
    """The names of the views with their keys, the one in sight marked; a click opens one."""

    class Chosen(Message):
        """A view was clicked."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view = view

    def __init__(self) -> None:
        super().__init__(id="view-bar")
        self.show(VIEWS[0])

    def show(self, view: str) -> None:
        """Mark the view in sight."""
        self.set_lines([self._line(view)])

    def _line(self, view: str) -> Line:
        spans: list[Span] = []
        for number, name in enumerate(VIEWS, start=1):
            here = name == view
            spans += [(f"{number} {name.capitalize()}", "mark" if here else "muted"), (" " * _GAP, "")]
        return (*spans, ("F2 next", "track"))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        at = 0
        for name in VIEWS:
            width = len(name) + 2
            if offset is not None and at <= offset.x < at + width:
                event.stop()
                self.post_message(self.Chosen(name))
            at += width + _GAP
