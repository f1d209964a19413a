"""The demo offers prompts to begin with; a click on one sends it."""

from __future__ import annotations

from kits.chat_stage import Open

from ds4chat.tui.chat.welcome import STARTERS


async def test_the_demo_offers_prompts_and_a_click_sends_one(opened: Open) -> None:
    async with opened(size=(100, 30), model="", demo=True) as chat:
        rows = chat.shown().splitlines()
        for text, _ in STARTERS:
            assert any(text in row for row in rows)
        y = next(y for y, row in enumerate(rows) if STARTERS[1][0] in row)
        await chat.pilot.click(offset=(rows[y].index(STARTERS[1][0]) + 3, y))
        await chat.settle()
        assert [g.messages[-1].content for g in chat.engine.generates] == [STARTERS[1][0]]


async def test_other_models_offer_none(opened: Open) -> None:
    async with opened(size=(100, 30)) as chat:
        assert "/try" not in chat.shown() and "Enter sends" in chat.shown()


async def test_they_fit_a_terminal_of_80_by_24(opened: Open) -> None:
    async with opened(size=(80, 24), model="", demo=True) as chat:
        shown = chat.shown()
        assert all(text in shown for text, _ in STARTERS) and "Enter sends" in shown
