"""What the panels show when another conversation comes onto the screen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kits.chat import PIECES, ended, steps_of
from kits.chat_stage import Chat, Open
from textual.app import ComposeResult
from textual.strip import Strip

from ds4chat.engine.events import Prefill, Step
from ds4chat.engine.stats import Stats
from ds4chat.tui.conversation import Conversation, Reply, UserTurn
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.panels.panel import Panel

WIDE = (140, 45)


def figures(chat: Chat) -> str:
    """The counters, the timings and the headline of the confidence log, once they were drawn."""
    dock = chat.screen.dock_view
    dock._draw()
    return "\n".join(view.text for view in dock.query(LinesView))


def stored(number: int) -> Conversation:
    """One prompt, and a reply of fifteen judged drafts, twelve of them accepted."""
    reply = Reply(number, "tiny")
    for step in steps_of(number, PIECES):
        reply.add_step(step)
    reply.end(ended(number))
    return Conversation(turns=[UserTurn("How?"), reply], key=7)


async def test_a_stored_conversation_brings_its_last_replys_figures(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        assert "rate          –" in figures(chat)
        chat.app.chat.resume(stored(50))
        chat.screen.show_conversation()
        await chat.settle()
        shown = figures(chat)
        assert "rate       80.0 %" in shown
        assert "prefill 500.0 tok/s" in shown
        log = chat.screen.dock_view.confidence.log_view
        assert {row.reply for row in log.rows} == {50} and len(log.rows) == 15


async def test_a_new_conversation_begins_at_nothing_and_the_log_goes_on(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await chat.type("one", "enter")
        assert "rate       80.0 %" in figures(chat)
        await chat.type("/new", "escape", "enter")
        assert "rate          –" in figures(chat)
        assert len(chat.screen.dock_view.confidence.log_view.rows) == 15


async def test_going_back_to_an_earlier_reply_does_not_repeat_its_rows(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        await chat.type("one", "enter")
        await chat.type("two", "enter")
        await chat.type("/undo", "escape", "enter")
        shown = figures(chat)
        assert "rate       80.0 %" in shown
        assert len(chat.screen.dock_view.confidence.log_view.rows) == 30


async def test_the_panels_know_the_prefill_of_the_running_reply(opened: Open) -> None:
    async with opened(size=WIDE, answer=False) as chat:
        await chat.type("one", "enter")
        await chat.push(Prefill(1, 40, 40, 0, 80.0), *steps_of(1, PIECES))
        assert "prefill 500.0 tok/s first  105.0 ms" in figures(chat)


@pytest.mark.parametrize("what", ["f5", "undo", "other"])
async def test_nothing_of_the_text_before_stays_on_the_screen(opened: Open, what: str) -> None:
    """Every row that had text is drawn anew, also those below the end of a shorter conversation."""
    async with opened(answer=False) as chat:
        for number in (1, 2):
            await chat.type("one", "enter")
            await chat.push(*steps_of(number, PIECES * 2), ended(number))
        transcript, drawn = chat.transcript, set()
        before, render_line = transcript.virtual_size.height, transcript.render_line

        def drawing(y: int) -> Strip:
            drawn.add(y)
            return render_line(y)

        transcript.render_line = drawing  # type: ignore[method-assign]
        if what == "f5":
            await chat.press("f5")
        elif what == "undo":
            chat.screen.run_command("/undo")
        else:
            chat.app.chat.resume(Conversation(turns=[UserTurn("How?")], key=7))
            chat.screen.show_conversation()
        await chat.settle()
        assert transcript.virtual_size.height < before <= transcript.size.height
        assert drawn >= set(range(before)), sorted(set(range(before)) - drawn)


class _Counting(Panel):
    """A panel that keeps how many steps it got."""

    NAME = "counting"
    TITLE = "Counting"
    steps = 0

    def compose_body(self) -> ComposeResult:
        yield LinesView()

    def add_steps(self, steps: Sequence[Step], stats: Stats, session: Stats) -> None:
        self.steps += len(steps)


async def test_every_panel_gets_the_steps_of_a_stored_reply(opened: Open) -> None:
    async with opened(size=WIDE) as chat:
        panel = _Counting()
        chat.screen.dock_view._panels.append(panel)
        await chat.screen.dock_view.mount(panel)
        chat.app.chat.resume(conversation := stored(50))
        chat.screen.show_conversation()
        assert conversation.last_reply is not None
        assert panel.steps == len(conversation.last_reply.steps) > 0
