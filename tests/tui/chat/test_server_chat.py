"""The chat over a server: what is told stands on the screen, what is fixed stays, what comes late
recolours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kits.chat import ended, served, steps_of
from kits.chat_stage import Open
from servers.kit import events_of, late

from ds4chat.analysis.rows import rows_from_steps
from ds4chat.analysis.whatif import what_if
from ds4chat.engine.events import Counters, Phases, Revised, Step
from ds4chat.engine.stats import Stats
from ds4chat.servers.llama_server import LlamaReader
from ds4chat.store import Store, open_store
from ds4chat.store.recording import Request
from ds4chat.tui.kit.charts import baseline_words


def whole(step: Step, **more: object) -> Step:
    """A step as a server tells it: its time alone."""
    judged = tuple(replace(row, ratio=None, gap=None, draft_gap=None, draft_prob=None) for row in step.judged)
    total = step.ms.total
    return replace(step, judged=judged, ms=Phases(0, 0, 0, 0, total, total), **more)


async def test_the_status_line_names_server_model_drafter_and_what_is_not_told(opened: Open) -> None:
    async with opened(load=served(), size=(150, 30)) as chat:
        shown = chat.shown()
    assert "llama-server at box reports every token's origin" in shown
    assert "neither rejected drafts nor probabilities" in shown
    assert "draft-eagle3" in shown and "Tiny Chat" in shown
    assert "MTP off" not in shown


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"speculates": False}, "MTP is off"),
        ({"speculates": None, "tells": "nothing", "why": "it has no word for drafts"}, "MTP unknown"),
        ({"exposed": True}, "over plain http that others can read"),
    ],
)
async def test_what_is_off_untold_or_exposed_is_said(
    opened: Open, info: dict[str, object], says: str
) -> None:
    loaded = served(**info)
    if info.get("speculates") is False:
        loaded = replace(loaded, off_reason="the server runs without a drafter")
    async with opened(load=loaded, size=(150, 30)) as chat:
        assert says in " ".join(chat.shown().split())


async def test_what_a_server_fixes_stays_as_it_is_with_the_reason(opened: Open) -> None:
    async with opened(load=served(), size=(150, 60)) as chat:
        before = chat.screen.chat.tuning
        await chat.press("f8")
        await chat.press("ctrl+g")
        assert chat.screen.chat.tuning == before
        assert any("--spec-draft-n-max" in said for said in chat.said())
        await chat.type("/set temp 0.7", "enter")
        assert chat.screen.chat.tuning.temp == 0.7
        assert "the server's own" in chat.shown()


@pytest.mark.parametrize("goes_on", [True, False])
async def test_going_on_is_offered_where_the_server_can(opened: Open, goes_on: bool) -> None:
    async with opened(load=served(goes_on=goes_on), answer=False, size=(150, 50)) as chat:
        await chat.type("x", "enter")
        step = steps_of(1, [("so", "plain")])[0]
        await chat.push(whole(step, outcome="plain"), ended(1, reason="length", tokens=1))
        assert ("Ctrl+G or /continue continues it" in chat.shown()) == goes_on


async def test_tokens_that_nobody_knows_of_have_a_look_of_their_own_and_the_legend_says_so(
    opened: Open,
) -> None:
    async with opened(load=served(), answer=False, size=(150, 50)) as chat:
        await chat.type("x", "enter")
        assert "unknown" not in chat.shown()
        step = steps_of(1, [("so", "unknown")])[0]
        await chat.push(whole(step, outcome="unknown", drafted=0), ended(1, tokens=1))
        assert "unknown" in chat.shown()
        kinds = {span[1] for row in range(chat.transcript.stack.height) for span in _row(chat, row)}
        assert "unknown" in kinds


def _row(chat: object, row: int) -> list[tuple[str, str]]:
    stack = chat.transcript.stack  # type: ignore[attr-defined]
    index, at = stack.at(row)
    return list(stack[index].row(at))


async def test_origins_that_come_at_the_end_recolour_the_reply_and_the_panels(opened: Open) -> None:
    *before, revised, end = late()
    assert isinstance(revised, Revised)
    async with opened(
        load=served(kind="vLLM", tells="exact at the end"), answer=False, size=(150, 60)
    ) as chat:
        await chat.type("x", "enter")
        await chat.push(*before)
        reply = chat.screen.chat.reply
        assert reply is not None
        text = reply.text
        assert reply.stats.judged == 0
        await chat.push(revised)
        assert reply.text == text
        assert [t.origin for t in reply.tokens] == [t.origin for step in revised.steps for t in step.tokens]
        assert {t.origin for t in reply.tokens} == {"plain", "accepted", "corrected"}
        await chat.push(end)
        # 19 steps of 3 drafts each; in each one more was judged than accepted, if there was one.
        judged = sum(min(a + 1, 3) for a in [0] * 10 + [2] + [0] * 5 + [2, 0, 0])
        assert (reply.stats.drafted, reply.stats.judged, reply.stats.accepted) == (57, judged, 4)
        assert chat.screen.chat.session.judged == judged
        assert "corrected" in {
            span[1] for row in range(chat.transcript.stack.height) for span in _row(chat, row)
        }


async def test_panels_show_no_zeros_for_what_is_not_told(opened: Open) -> None:
    async with opened(load=served(tells="nothing", speculates=None), answer=False, size=(150, 60)) as chat:
        await chat.type("x", "enter")
        steps = [
            replace(whole(step), outcome="unknown", drafted=0, judged=())
            for step in steps_of(1, [("so", "unknown")] * 3)
        ]
        await chat.push(*steps, ended(1, tokens=3))
        while chat.screen.dock_view.drawing_due:
            await chat.pilot.pause(0.02)
        await chat.pilot.pause()
        shown = chat.shown()
    assert "drafted         –" in shown and "accepted        –" in shown
    assert "drafts are not reported" in shown
    assert "the server does not report phases" in shown


# -- counters and the store


def test_a_servers_totals_hold_what_its_steps_did_not_tell() -> None:
    stats = Stats()
    for event in events_of("eagle3.completion-utf8", LlamaReader()):
        stats.fold(event)
    assert (stats.drafted, stats.accepted, stats.emitted) == (44, 24, 40)
    assert stats.judged < 44


def test_a_revision_takes_its_replys_steps_out_of_the_totals_of_many() -> None:
    total, alone = Stats(), Stats()
    for event in events_of("eagle3.completion", LlamaReader()):
        total.fold(event)
    for event in late():
        total.fold(event)
    for event in late():
        alone.fold(event)
    assert (total.drafted, total.accepted, total.emitted) == (42 + 57, 24 + 4, 40 + 24)
    assert alone.outcomes["unknown"] == 0
    assert total.outcomes["unknown"] == 0


@pytest.mark.parametrize("early", [True, False], ids=["after a write", "before the first write"])
def test_a_revision_replaces_what_the_store_has_of_the_reply(early: bool) -> None:
    *before, revised, end = late()
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    recorder.append(*[event for event in before if isinstance(event, Step)])
    if early:
        recorder.flush()
    recorder.append(revised, end)
    recorder.flush()
    assert store.steps(recorder.message, 1) == list(revised.steps)
    message = store.conversations.message(recorder.message)
    assert message.text == "".join(token.text for step in revised.steps for token in step.tokens)
    assert (message.tokens, message.drafted, message.accepted) == (24, 57, 4)


@pytest.mark.parametrize("thinking", [True, False])
def test_an_unknown_origin_and_what_is_not_told_are_stored_as_they_are(
    thinking: bool, tmp_path: Path
) -> None:
    steps = [e for e in events_of("eagle3.completion-utf8", LlamaReader()) if isinstance(e, Step)]
    steps = [replace(s, tokens=tuple(replace(t, thinking=thinking) for t in s.tokens)) for s in steps]
    store = open_store(tmp_path / "c.db")
    recorder = store.record(Request("x"))
    recorder.append(*steps)
    recorder.flush()
    store.close()
    again = open_store(tmp_path / "c.db")
    assert again.steps(recorder.message, 1) == steps
    assert "unknown" in {t.origin for s in steps for t in s.tokens}
    assert any(row.ratio is None for s in steps for row in s.judged)
    again.close()


def test_totals_without_steps_come_back_from_the_store() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    step = replace(steps_of(1, [("so", "unknown")])[0], outcome="unknown", drafted=0)
    recorder.append(step, replace(ended(1, tokens=1), counters=Counters(12, 7)))
    recorder.flush()
    message = store.conversations.message(recorder.message)
    assert (message.drafted, message.accepted) == (12, 7)
    back = message.ended(1)
    assert back is not None and back.counters == Counters(12, 7)


def test_a_servers_steps_without_drafts_are_its_plain_baseline() -> None:
    stats, untold = Stats(), Stats()
    for event in events_of("ngram.chat", LlamaReader()):
        stats.fold(event)
    for event in late():
        untold.fold(event)
    # Ten steps of one token after the first, whose batch is the prompt's, and then two with drafts.
    assert stats.plain.passes == 9
    assert stats.plain.speedup is not None
    assert (untold.plain.passes, untold.plain.speedup) == (0, None)


def test_a_plain_step_after_one_with_drafts_pays_for_the_change_and_is_no_pass() -> None:
    steps = [e for e in events_of("eagle3.completion", LlamaReader()) if isinstance(e, Step)]
    assert [step.outcome for step in steps].count("plain") == 2  # the first one, and the last
    assert not any(step.baseline for step in steps)


def test_a_servers_baseline_says_on_how_many_passes_it_rests() -> None:
    stats = Stats()
    steps = [e for e in events_of("plain.completion", LlamaReader()) if isinstance(e, Step)]
    # The first token comes with the prompt, and the step after it pays for the change of batch size.
    for step, said in zip(steps, ["", "", "1 pass here", "2 passes here"]):
        stats.fold(step)
        assert (baseline_words(stats.plain) if stats.plain.speedup else "") == said


# -- what-if


def test_what_if_answers_for_the_depth_and_refuses_what_is_not_told() -> None:
    steps = [e for e in events_of("eagle3.completion", LlamaReader()) if isinstance(e, Step)]
    rows = rows_from_steps(steps)
    as_recorded = what_if(rows)
    assert (as_recorded.accepted, as_recorded.estimate) == (24, False)
    assert what_if(rows, depth=1).accepted < 24
    assert what_if(rows, depth=3).tokens_per_s is not None
    for asked in ({"margin": 0.5}, {"gate": 1.0}):
        with pytest.raises(ValueError, match="a server does not report"):
            what_if(rows, **asked)
