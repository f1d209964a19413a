"""A terminal too small for the chat: a sentence says so, nothing is lost, and growing it is enough."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from kits.chat import loaded
from kits.chat_stage import Chat, Open
from textual.geometry import Size

from ds4chat.tui.kit.too_small import SAYINGS, is_too_small, saying


def rows(chat: Chat) -> list[str]:
    return [row.rstrip() for row in chat.shown().splitlines()]


TOO_SMALL = {
    (10, 3): ["Too small:", "make it", "20×5."],
    (19, 9): [
        "This terminal is",
        "too small for",
        "ds4chat. Make it at",
        "least 20 columns",
        "wide and 5 rows",
        "high. What you",
        "typed is kept.",
        "",
    ],
    (40, 2): ["Too small. Make it 20×5 or more: what", "you typed is kept."],
    (5, 1): ["20×5!"],
}


async def test_a_terminal_that_is_too_small_says_what_is_needed(opened: Open) -> None:
    async with opened(size=(10, 3), notices=True) as chat:
        chat.app.notify("A notice must not hide it.", timeout=60)
        await chat.pilot.pause()
        for size, shown in TOO_SMALL.items():
            await chat.pilot.resize_terminal(*size)
            await chat.settle()
            assert rows(chat) == shown, size


async def test_it_comes_back_with_all_that_was_typed_when_the_terminal_grows(opened: Open) -> None:
    async with opened(size=(60, 12)) as chat:
        await chat.type("one", "enter")
        await chat.type("kept")
        before = rows(chat)
        for width, height in ((19, 12), (60, 4), (10, 3), (1, 1)):
            await chat.pilot.resize_terminal(width, height)
            await chat.settle()
            assert "kept" not in chat.shown().replace("is kept", "") and "pass" not in chat.shown()
            await chat.pilot.resize_terminal(60, 12)
            await chat.settle()
            assert rows(chat) == before
        await chat.pilot.resize_terminal(10, 3)
        await chat.press("exclamation_mark")
        await chat.pilot.resize_terminal(20, 5)
        await chat.settle()
        assert rows(chat)[-2] == " kept!" and rows(chat)[-1].startswith(" ● ready")


OFF = loaded(off_reason="The target has no NextN block. /mtp chooses a drafter.")


async def at_small_sizes(chat: Chat) -> AsyncIterator[tuple[int, int]]:
    """Sizes at which there is hardly room, once the chat has each."""
    for size in ((20, 5), (24, 6), (30, 8), (60, 9)):
        await chat.pilot.resize_terminal(*size)
        await chat.settle()
        yield size


async def test_the_prompt_stays_in_sight_whatever_else_there_is_to_say(opened: Open) -> None:
    """A banner, and a status line that says at length why speculation is off."""
    async with opened(size=(20, 5), load=OFF) as chat:
        chat.screen._banner.show("The engine has not answered for a while. " * 3, "F5 loads it again.")
        await chat.type("typed")
        field = chat.screen.prompt.text_field
        async for size in at_small_sizes(chat):
            assert field.region.height > 0 and "\n typed\n" in chat.shown(), size
            assert "● ready" in chat.shown() and "█ The engine" in chat.shown(), size
    async with opened(size=(20, 5), model="") as chat:
        await chat.type("typed")
        async for size in at_small_sizes(chat):
            assert "█ No model" in chat.shown() and "\n typed\n" in chat.shown(), size


@pytest.mark.parametrize(
    "size",
    [
        (20, 5),
        (60, 9),
        *(pytest.param(size, marks=pytest.mark.slow) for size in ((24, 6), (30, 8), (60, 10), (60, 14))),
    ],
)
async def test_completions_and_waiting_prompts_leave_the_prompt_in_sight(
    opened: Open, size: tuple[int, int]
) -> None:
    async with opened(size=size, load=OFF, answer=False) as chat:
        for text in ("one", "two", "three", "four"):
            await chat.type(text, "enter")
        await chat.type("typed")
        assert len(chat.app.chat.queue) == 3 and "typed" in chat.shown()
    async with opened(size=size, load=OFF) as chat:
        await chat.type("/", "down", "down")
        chosen = chat.screen.prompt.menu.chosen
        assert chosen is not None and f"❯ {chosen.label[:8]}" in chat.shown()
        field = chat.screen.prompt.text_field
        assert chat.screen.region.contains_region(field.region) and field.region.height > 0
        assert not chat.screen._status.region.overlaps(field.region)


def test_the_longest_sentence_that_fits_is_said() -> None:
    assert [is_too_small(Size(*size)) for size in ((20, 5), (19, 5), (20, 4), (200, 4))] == [
        False,
        True,
        True,
        True,
    ]
    assert saying(Size(200, 1)) == SAYINGS[0]
    assert saying(Size(0, 0)) == saying(Size(3, 1)) == "20×5!"
