"""Dragging and turning the wheel, as a terminal reports them."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.pilot import Pilot
from textual.widget import Widget


async def press_at(pilot: Pilot[Any], widget: Widget, x: int) -> None:
    """The pointer moves to a cell of the widget's line and the button goes down there."""
    await pilot.mouse_down(widget, offset=(x, 0))


async def drag_to(pilot: Pilot[Any], widget: Widget, x: int) -> None:
    """The pointer moves, button down, to a cell counted from the widget's left edge; it may lie outside."""
    region = widget.region
    await pilot._post_mouse_events([events.MouseMove], offset=(region.x + x, region.y), button=1)


async def let_go(pilot: Pilot[Any], widget: Widget, x: int) -> None:
    """The button goes up at that cell."""
    region = widget.region
    await pilot.mouse_up(offset=(region.x + x, region.y))


async def drag(pilot: Pilot[Any], widget: Widget, start: int, *stops: int) -> None:
    """A whole drag from one cell over others; the button goes up at the last."""
    await press_at(pilot, widget, start)
    for x in stops:
        await drag_to(pilot, widget, x)
    await let_go(pilot, widget, stops[-1])


async def wheel(pilot: Pilot[Any], widget: Widget, notches: int, x: int) -> None:
    """The wheel turned up (notches > 0) or down with the pointer at a cell; the pointer does not move."""
    kind = events.MouseScrollUp if notches > 0 else events.MouseScrollDown
    for _ in range(abs(notches)):
        await pilot._post_mouse_events([kind], widget, offset=(x, 0))
