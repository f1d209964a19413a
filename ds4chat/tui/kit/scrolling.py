"""Growing a scrolling list cheaply."""

from __future__ import annotations

from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.widget import Widget


def set_virtual_size(view: ScrollView, size: Size) -> None:
    """Set the size of a ScrollView's content without a new layout of the screen.

    Assigning ``virtual_size`` lays out and then draws the whole screen, because the scrollbar might come or
    go. If it is always shown (``overflow-y: scroll``) only its thumb changes.
    """
    view.set_reactive(Widget.virtual_size, size)
    if view.show_vertical_scrollbar:
        view.vertical_scrollbar.window_virtual_size = size.height
