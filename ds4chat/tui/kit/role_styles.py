"""Styles of a widget's component classes by role, looked up once each."""

from __future__ import annotations

from collections.abc import Collection

from rich.style import Style
from textual.widget import Widget


class RoleStyles(dict[str, Style]):
    """``styles[role]`` is the style of the component class ``<prefix>--<role>``, and the widget's own for the
    role "". The style sheets are queried once per role; ``clear`` empties the cache.

    Roles in ``partial`` have only what their rules set, to be combined with another style.
    """

    def __init__(self, widget: Widget, prefix: str, partial: Collection[str] = ()) -> None:
        super().__init__()
        self._widget = widget
        self._prefix = prefix
        self._partial = partial

    def __missing__(self, role: str) -> Style:
        style = self[role] = (
            self._widget.get_component_rich_style(f"{self._prefix}--{role}", partial=role in self._partial)
            if role
            else self._widget.rich_style
        )
        return style
