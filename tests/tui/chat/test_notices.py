"""Where notices stand on the chat screen, and that no key of a setting does nothing in silence."""

from __future__ import annotations

import pytest
from kits.chat_stage import Open
from textual.widgets._toast import Toast


@pytest.mark.parametrize("size", [(80, 24), (140, 45), (60, 16)])
async def test_a_notice_never_covers_the_prompt(opened: Open, size: tuple[int, int]) -> None:
    async with opened(size=size, notices=True) as chat:
        await chat.type("/draft 99", "enter")
        await chat.pilot.pause()
        (toast,) = chat.screen.query(Toast)
        assert toast.region.area > 0
        assert not toast.region.overlaps(chat.screen.prompt.region)
        assert not toast.region.overlaps(chat.screen.legend_row.region)


@pytest.mark.parametrize(
    ("key", "settings", "words"),
    [
        ("f7", {"mtp_draft": 1}, "depth 1 is the lowest: Ctrl+T pauses drafting"),
        ("f8", {"mtp_draft": "auto"}, "auto is the last: F7 goes back"),
        ("f9", {"mtp_margin": 0.0}, "margin 0 is the loosest"),
        ("f10", {}, "margin 1.00 is exact, the tightest"),
        ("ctrl+r", {}, "no change of a setting to undo"),
    ],
)
async def test_a_key_at_the_end_of_its_range_says_so(
    opened: Open, key: str, settings: dict, words: str
) -> None:
    async with opened(**settings) as chat:
        before = chat.app.chat.tuning
        await chat.press(key)
        assert chat.app.chat.tuning == before
        assert words in chat.shown()
