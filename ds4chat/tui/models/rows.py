"""A row of a list of models."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ds4chat.text import one_line


def model_row(mark: str, name: str, right: str, width: int) -> Text:
    """A row of exactly ``width`` cells: mark, name, and the rest at the right."""
    name, right = one_line(name), one_line(right)
    room = max(8, width - cell_len(right) - 4)
    if cell_len(name) > room:
        name = set_cell_size(name, room - 1) + "…"
    gap = " " * max(1, width - 2 - cell_len(name) - cell_len(right))
    return Text(f"{mark} {name}{gap}{right}", no_wrap=True, overflow="ellipsis", end="")
