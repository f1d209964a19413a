"""The bar of views, for a screen that is too narrow to show them side by side."""

from __future__ import annotations

from textual import events
from textual.message import Message

from ds4chat.tui.kit.lines import Line, LinesView, Span

VIEWS = ("rows", "charts", "what-if", "replies")
KEYS = {
    "rows": "[b]/[/b] filter · [b]←→[/b] sort · [b]r[/b] reverse · [b]Enter[/b] text · [b]e[/b] export",
    "charts": "[b]h[/b] another chart · [b]/[/b] filter · [b]e[/b] export",
    "what-if": "[b]↑↓[/b] choose · [b]←→[/b] change · [b]Del[/b] as recorded · [b]a[/b] applies",
    "replies": "[b]↑↓[/b] choose · [b]Enter[/b] text",
}
"""Markup of the keys of each view."""
_GAP = 3


def hint(view: str, *, wide: bool) -> str:
    """Markup of the line at the foot: the keys of the view; on a wide screen, of all that are visible."""
    keys = KEYS[view]
    if wide and view == "replies":
        keys += " · [b]1[/b] rows"
    elif wide:
        keys = f"{KEYS['rows']} · [b]h[/b] chart · [b]w[/b] what if · [b]4[/b] replies"
    return f"{keys} · [b]Esc[/b] closes"


class ViewBar(LinesView):
    """The names of the views with their keys, the visible one marked; a click shows a view."""

    class Chosen(Message):
        """A view was clicked."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view = view

    def __init__(self) -> None:
        super().__init__(id="view-bar")
        self.show(VIEWS[0])

    def show(self, view: str) -> None:
        """Mark the visible view."""
        self.set_lines([self._line(view)])

    def _line(self, view: str) -> Line:
        spans: list[Span] = []
        for number, name in enumerate(VIEWS, start=1):
            # In the controls of the what-if, digits are values.
            key = " " if view == "what-if" else str(number)
            spans += [(f"{key} {name.capitalize()}", "mark" if name == view else "muted"), (" " * _GAP, "")]
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
