"""A reply that repeats itself says so, while it is written and afterwards."""

from __future__ import annotations

from dataclasses import replace

from kits.chat import ended, steps_of
from kits.chat_stage import Open

from ds4chat.engine.events import Origin, Step
from ds4chat.engine.stats import Stats
from ds4chat.tui.messages import SettingsSaved
from ds4chat.tui.panels.acceptance import counter_lines

LOOP: tuple[tuple[str, Origin], ...] = (("yes", "accepted"), (" no", "accepted"), (" and", "bonus"))


def looping(reply: int) -> list[Step]:
    """Two misses, then 90 tokens of a passage of three."""
    steps = steps_of(reply, [("Well", "corrected"), (" then", "corrected"), *(LOOP * 30)])
    return [
        replace(s, tokens=tuple(replace(t, id=t.id if t.id < 2 else 2 + t.id % 3) for t in s.tokens))
        for s in steps
    ]


async def test_a_reply_that_repeats_itself_says_so_and_how_to_stop_it(opened: Open) -> None:
    async with opened(answer=False, size=(120, 40)) as chat:
        await chat.type("one", "enter")
        steps = looping(1)
        await chat.push(*steps[:20])
        assert "repeats itself" not in chat.shown()
        await chat.push(*steps[20:])
        chat.screen.show_status()
        await chat.pilot.pause()
        assert "repeats itself; Esc stops" in chat.shown().splitlines()[-1]
        await chat.push(ended(1, tokens=92, ms=800.0))
        shown = chat.shown()
        # Two tokens before the passage and its three; it is the sixth that only repeats.
        assert "repeats itself from token 6" in shown and "Esc stops" not in shown.splitlines()[-1]


def test_the_panel_tells_acceptance_in_a_loop_from_that_elsewhere() -> None:
    stats = Stats()
    for step in looping(1):
        stats.fold(step)
    # Two misses and the passage's own two hits, then 29 times two hits.
    last = "".join(text for text, _ in counter_lines(stats, stats)[-1])
    assert last.split() == ["in", "loops", "100.0", "%", "elsewhere", "50.0", "%"]
    assert "in loops" not in str(counter_lines(Stats(), stats))


async def test_replies_end_at_a_loop_as_is_set_for_what_is_loaded(opened: Open) -> None:
    async with opened(end_loops="on") as chat:
        await chat.type("one", "enter")
        assert chat.engine.generates[-1].end_loops
        chat.app.post_message(SettingsSaved(replace(chat.app.settings, end_loops="off")))
        await chat.settle()
        await chat.type("two", "enter")
        assert not chat.engine.generates[-1].end_loops
        chat.app.load(end_loops="on")
        await chat.settle()
        await chat.type("three", "enter")
        assert chat.engine.generates[-1].end_loops
