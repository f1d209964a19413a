"""What must stay in sight at the usual sizes: the Tuning panel's first rows, and how full the context is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from kits.chat import PIECES, ended, loaded, steps_of
from kits.chat_stage import Chat, Open
from kits.panel_stage import step

from ds4chat.engine.events import DrafterInfo, Loaded, Prefill, Step, Tuning
from ds4chat.engine.stats import Stats
from ds4chat.tui.chat.status_line import Status, status_lines

# A chat is opened for each case.
pytestmark = pytest.mark.slow

LONG = (
    "the support file pairs with another model, whose width is 4096 where this one has 576: /mtp chooses one."
)


def steps(depth: int, tuning: Tuning | None = None) -> list[Step]:
    tuning = tuning or Tuning(depth=depth)
    return [step(index, depth * (index % 3 > 0), depth, tuning) for index in range(6)]


def looping() -> list[Step]:
    """Steps that go on with the same three tokens."""
    return [step(index, 2, 2, Tuning(depth=2)) for index in range(60)]


SCENES: dict[str, tuple[Loaded, Sequence[Step]]] = {
    "before a reply": (loaded(), []),
    "depth 2": (loaded(), steps(2)),
    "depth 4": (loaded(), steps(4)),
    "depth 5": (loaded(), steps(5)),
    "depth 16": (loaded(), steps(16)),
    "auto": (loaded(), steps(16, Tuning(depth="auto"))),
    "a loop": (loaded(), looping()),
    "a loop at depth 16": (loaded(), [*looping()[:40], *(replace(s, index=40 + s.index) for s in steps(16))]),
    "MTP off": (loaded(off_reason=LONG), [replace(s, drafted=0, judged=()) for s in steps(1)]),
    "an unknown outcome": (loaded(), [replace(s, outcome="unknown") for s in steps(16)]),
}


async def say(chat: Chat, what: Sequence[Step]) -> None:
    await chat.type("Hello", "enter")
    await chat.push(*(replace(one, reply=1) for one in what))
    while chat.screen.dock_view.drawing_due:
        await chat.pilot.pause(0.02)
    chat.screen.show_status()
    await chat.pilot.pause()


@pytest.mark.parametrize("scene", SCENES)
async def test_at_120x40_the_four_panels_fit_with_the_first_rows_of_tuning(scene: str, opened: Open) -> None:
    pair, taken = SCENES[scene]
    async with opened(size=(120, 40), answer=False, load=pair) as chat:
        await say(chat, taken)
        rows = [line[70:] for line in chat.shown().splitlines()]
    for title in ("▾ Acceptance", "▾ Timings", "▾ Confidence", "▾ Tuning"):
        assert any(title in row for row in rows), title
    tuning = next(at for at, row in enumerate(rows) if "▾ Tuning" in row)
    assert "MTP " in rows[tuning + 1] and "depth " in rows[tuning + 2]


CTX = "ctx 1,999/2,048"


def narrow(status: Status) -> str:
    return "".join(text for text, _ in status_lines(status, 80)[0]).rstrip()


def full(off: bool = False, repeating: bool = False) -> Stats:
    found = Stats()
    for one in looping() if repeating else steps_of(1, PIECES):
        found.fold(replace(one, judged=(), drafted=0) if off else one)
    found.context_used = 1999
    return found


NAME = "A model with quite a long name that goes on"
STATUSES: dict[str, Status] = {
    "ready": Status("ready", None, NAME, loaded(), Tuning(depth=2), full()),
    "queued": Status("writing", None, NAME, loaded(), Tuning(depth=2), full(), 12),
    "repeats itself": Status("writing", None, NAME, loaded(), Tuning(depth=2), full(repeating=True)),
    "repeats itself, approximate": Status(
        "writing", None, NAME, loaded(), Tuning(depth=2, margin=0.8), full(repeating=True), 3
    ),
    "repeats itself, strict at 16": Status(
        "writing",
        None,
        NAME,
        loaded(),
        Tuning(depth=16, strict=True, probe=True),
        full(repeating=True),
    ),
    "repeats itself, deeper than was loaded": Status(
        "writing",
        None,
        NAME,
        replace(loaded(), drafter=DrafterInfo("nextn-embedded", "", 4, "it has 4 heads")),
        Tuning(depth=16, margin=0.8),
        full(repeating=True),
    ),
    "MTP off": Status("ready", None, NAME, loaded(off_reason=LONG), Tuning(depth=2), full(off=True)),
    "paused": Status("writing", None, NAME, loaded(), Tuning(depth=0), full(off=True), 2),
    "off and repeats itself": Status(
        "writing", None, NAME, loaded(off_reason=LONG), Tuning(margin=0.8), full(True, True)
    ),
    "reading": Status("reading", Prefill(1, 123_000, 131_072, 0, 1.0), NAME, loaded(), Tuning(), full()),
    "checking": Status("checking", Prefill(1, 123_000, 131_072, 0, 1.0), NAME, loaded(), Tuning(), full()),
    "two drafters": Status(
        "writing",
        None,
        NAME,
        replace(loaded(), drafter=DrafterInfo("lookup+eagle3", "", 16)),
        Tuning(depth="auto", margin=0.8),
        full(repeating=True),
    ),
}


@pytest.mark.parametrize("what", STATUSES)
def test_at_80x24_the_context_gauge_stays(what: str) -> None:
    line = narrow(STATUSES[what])
    assert line.endswith(CTX) and len(line) <= 80
    assert ("Esc stops" in line) == STATUSES[what].stats.repeating


@pytest.mark.parametrize("off", [False, True], ids=["MTP on", "MTP off"])
async def test_the_gauge_stands_in_the_chat_at_80x24_while_a_reply_repeats_itself(
    off: bool, opened: Open
) -> None:
    pair = loaded(off_reason=LONG) if off else loaded()
    taken = [replace(s, judged=(), drafted=0) for s in looping()] if off else looping()
    async with opened(size=(80, 24), answer=False, load=pair) as chat:
        await say(chat, taken)
        line = next(row for row in chat.shown().splitlines() if "▶ writing" in row)
        assert line.rstrip().endswith("ctx 100/2,048") and "Esc stops" in line
        await chat.push(ended(1))
        chat.screen.show_status()
        await chat.pilot.pause()
        line = next(row for row in chat.shown().splitlines() if "● ready" in row)
        assert "ctx " in line and "/2,048" in line
