"""The sentence about a reply that drafts made slower, from steps whose figures are counted out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.chat import PIECES, ended, steps_of

from ds4chat.engine.events import Origin
from ds4chat.tui.conversation import Reply
from ds4chat.tui.transcript.slower import why_slower
from ds4chat.tui.transcript.summary import summary_lines

BRINGS_TWO: tuple[tuple[str, Origin], ...] = (("a", "accepted"), ("b", "corrected"))


def reply_of(count: int, step_ms: float, pass_ms: float = 10.0) -> Reply:
    """Two passes of plain decoding, then steps of three rows that bring two tokens each."""
    plain = [
        replace(step, baseline=True, ms=replace(step.ms, draft=0.0))
        for step in steps_of(1, [("x", "plain"), ("y", "plain")], step_ms=pass_ms)
    ]
    drafting = steps_of(1, BRINGS_TWO * count, first=2, step_ms=step_ms)
    reply = Reply(1, "tiny")
    for step in [*plain, *drafting]:
        reply.add_step(step)
    reply.end(ended(1))
    return reply


def why(reply: Reply) -> str:
    return why_slower(reply.steps, reply.stats.plain)


def test_what_a_step_costs_in_passes_and_what_it_brings() -> None:
    # 26 ms where a pass takes 10, for two tokens: 20 ms of plain decoding.
    slow = reply_of(20, step_ms=26.0)
    assert why(slow) == (
        "Slower than plain decoding: a step with 2 drafts takes as long as 2.6 plain passes and yields only "
        "2.0 tokens."
    )


@pytest.mark.parametrize(("count", "step_ms"), [(20, 18.0), (7, 26.0)])
def test_nothing_is_said_of_a_faster_reply_or_of_a_few_steps(count: int, step_ms: float) -> None:
    assert why(reply_of(count, step_ms)) == ""


def test_nothing_is_said_where_no_pass_was_measured() -> None:
    reply = Reply(1, "tiny")
    reply.stats.plain.load_ms = 1.0
    for step in steps_of(1, PIECES * 5, step_ms=26.0):
        reply.add_step(step)
    assert reply.stats.plain.speedup is not None and reply.stats.plain.speedup < 1
    assert why(reply) == ""


def test_it_stands_below_the_figures_of_the_reply() -> None:
    lines = [spans[0][0] for spans in summary_lines(reply_of(20, step_ms=26.0), 200)]
    assert lines[-1].startswith("Slower than plain decoding")
    assert len(summary_lines(reply_of(20, step_ms=18.0), 200)) == 1
