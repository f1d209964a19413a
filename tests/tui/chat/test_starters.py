"""The demo offers prompts to begin with; a click on one sends it."""

from __future__ import annotations

from collections import Counter

import pytest
from kits.chat_stage import Open

from ds4chat.engine.control import Control
from ds4chat.engine.events import Event, Generate, Message, Step, Tuning
from ds4chat.engine.from_settings import load_of
from ds4chat.engine.opening import open_session
from ds4chat.engine.stats import Stats
from ds4chat.settings.load import DEMO_DEPTH
from ds4chat.settings.schema import Settings
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


@pytest.mark.slow
def test_each_shows_hits_misses_and_bonus_tokens_and_what_is_said_of_it() -> None:
    """The demo itself: the first hits most of the time, and the others miss often."""
    session, _ = open_session(load_of(Settings(demo=True, ctx_size=512)), lambda event: None, forgiving=False)
    rates, misses = [], []
    try:
        for number, (text, _) in enumerate(STARTERS):
            stats, origins = Stats(), Counter[str]()

            def take(event: Event, stats: Stats = stats, origins: Counter[str] = origins) -> None:
                stats.fold(event)
                if isinstance(event, Step):
                    origins.update(token.origin for token in event.tokens)

            tuning = Tuning(depth=DEMO_DEPTH)
            request = Generate(number, (Message("user", text),), tuning=tuning, max_tokens=96)
            session.reset()
            session.generate(request, Control(tuning), take)
            assert min(origins["accepted"], origins["corrected"], origins["bonus"]) >= 5, (text, origins)
            assert stats.loop_since is None
            rates.append(stats.acceptance or 0.0)
            misses.append(stats.outcomes["miss"] / stats.drafting_steps)
    finally:
        session.close()
    assert rates[0] > 0.8 > max(rates[1:])
    assert misses[0] < 0.15 and min(misses[1:]) > 0.2
