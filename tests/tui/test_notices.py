"""Where notices stand on the chat screen."""

from __future__ import annotations

import pytest
from textual.widgets._toast import Toast
from tui.chat_stage import Open


@pytest.mark.parametrize("size", [(80, 24), (140, 45), (60, 16)])
async def test_a_notice_never_covers_the_prompt(opened: Open, size: tuple[int, int]) -> None:
    async with opened(size=size, notices=True) as chat:
        await chat.type("/draft 99", "enter")
        await chat.pilot.pause()
        (toast,) = chat.screen.query(Toast)
        assert toast.region.area > 0
        assert not toast.region.overlaps(chat.screen.prompt.region)
        assert not toast.region.overlaps(chat.screen.legend_row.region)
