"""One prompt under two settings: the requests, the figures of both, and where the texts differ."""

from __future__ import annotations

import re

import pytest
from kits.chat import MODEL, PIECES, ended, loaded, served, steps_of
from kits.chat_stage import Open
from textual.widgets import Static

from ds4chat.engine.events import (
    Cancel,
    DrafterInfo,
    EngineDied,
    Generate,
    Load,
    Loaded,
    Message,
    Origin,
    Tuning,
)
from ds4chat.settings.validate import SettingError
from ds4chat.tui.compare.comparison import Comparison, Side
from ds4chat.tui.compare.screen import CompareScreen, head_line, side_line
from ds4chat.tui.compare.sides import sides_of

PLAIN: tuple[tuple[str, Origin], ...] = tuple((text, "plain") for text, _ in PIECES)
REQUEST = Generate(0, (Message("user", "one"),), tuning=Tuning(seed=7))


def asked(comparison: Comparison, number: int) -> Generate:
    return comparison.next_command(lambda: number)


def both() -> Comparison:
    return Comparison(REQUEST, Side("plain", Tuning(depth=0)), Side("depth 2", Tuning(depth=2)))


def test_the_sides_take_turns_with_one_seed_and_are_no_part_of_the_conversation() -> None:
    comparison = both()
    seen = []
    for number in range(1, 5):
        request = asked(comparison, number)
        seen.append((request.reply, request.tuning.depth))
        assert (request.tuning.seed, request.max_tokens, request.trial) == (7, 128, True)
        assert (request.baseline, request.conversation) == (False, 0)
        comparison.handle(ended(number))
    assert seen == [(1, 0), (2, 2), (3, 2), (4, 0)]
    assert comparison.over and not comparison.stopped


def test_a_shorter_limit_of_the_chat_holds() -> None:
    comparison = Comparison(
        Generate(0, max_tokens=40), Side("plain", Tuning(depth=0)), Side("depth 2", Tuning())
    )
    assert comparison.next_command(lambda: 1).max_tokens == 40


def test_figures_are_of_all_answers_of_a_side_and_do_not_wait_for_an_end() -> None:
    comparison = both()
    asked(comparison, 1)
    for step in steps_of(1, PLAIN, step_ms=20.0):
        comparison.handle(step)
    a, b = comparison.sides
    assert (a.ms_per_token, a.tokens_per_s, b.ms_per_token, comparison.speedup) == (20.0, 50.0, None, None)
    comparison.handle(ended(1))
    asked(comparison, 2)
    # 22 tokens in 10 steps of 22 ms are 10 ms a token, twice as fast; 12 of 15 judged were accepted.
    steps = steps_of(2, PIECES, step_ms=22.0)
    for step in steps:
        comparison.handle(step)
    judged = [row for step in steps for row in step.judged]
    assert len(steps) == 10 and b.ms_per_token == 10.0 and comparison.speedup == 2.0
    assert b.stats.acceptance == sum(row.accepted for row in judged) / len(judged) == 12 / 15


def test_where_the_texts_differ() -> None:
    comparison = both()
    other: tuple[tuple[str, Origin], ...] = (*PLAIN[:2], (" dreaming", "plain"))
    asked(comparison, 1)
    for step in steps_of(1, PLAIN[:3]):
        comparison.handle(step)
    comparison.handle(ended(1))
    assert comparison.verdict == ""
    asked(comparison, 2)
    for step in steps_of(2, PLAIN[:2]):
        comparison.handle(step)
    assert comparison.verdict == "Both are the same so far, 11 characters."
    comparison.handle(steps_of(2, other[2:], first=2)[0])
    # "Speculative d" is common to both.
    assert comparison.verdict == "They differ after 13 characters: 'ecoding' or 'reaming'."


def test_an_answer_that_is_the_others_beginning_parts_where_it_ends() -> None:
    comparison = both()
    for number, pieces in ((1, PLAIN[:3]), (2, PLAIN[:2])):
        asked(comparison, number)
        for step in steps_of(number, pieces):
            comparison.handle(step)
        comparison.handle(ended(number))
    assert comparison.verdict == "They differ after 11 characters: ' decoding' or the end."


def test_equal_texts_are_said_to_be_equal() -> None:
    comparison = both()
    for number, pieces in ((1, PLAIN), (2, PIECES)):
        asked(comparison, number)
        for step in steps_of(number, pieces):
            comparison.handle(step)
        comparison.handle(ended(number))
    n = sum(len(text) for text, _ in PIECES)
    assert comparison.verdict == f"Both write the same {n} characters."


def test_an_answer_that_fails_ends_the_comparison_with_its_sentence() -> None:
    comparison = both()
    asked(comparison, 1)
    comparison.handle(ended(1, reason="error", detail="The target broke. Reload the model."))
    assert comparison.over and comparison.trouble == "The target broke. Reload the model."


@pytest.mark.parametrize(
    ("argument", "labels"),
    [
        ("", ("plain", "depth 2")),
        ("4", ("plain", "depth 4")),
        ("auto", ("plain", "depth auto")),
        ("2 4", ("depth 2", "depth 4")),
        ("now margin=0.8", ("depth 2, margin 1.00", "depth 2, margin 0.80")),
        ("now depth=3,gate=2.5", ("depth 2, gate 0.00", "depth 3, gate 2.50")),
        ("plain quick", ("plain", "depth 6, margin 0.70")),
        ("plain temp=0.7", ("plain, temp 0.00", "depth 2, temp 0.70")),
    ],
)
def test_what_is_typed_names_two_settings(argument: str, labels: tuple[str, str]) -> None:
    presets = {"quick": {"mtp-draft": 6, "mtp-margin": 0.7}}
    a, b = sides_of(argument, Tuning(depth=2), presets, loaded())
    assert (a.label, b.label) == labels


@pytest.mark.parametrize("argument", ["plain plain", "2", "1 2 3", "now deeper", "now margin=7", "99"])
def test_what_names_no_two_settings_is_refused_with_a_sentence(argument: str) -> None:
    now = Tuning(depth=0) if argument == "2" else Tuning(depth=2)
    off = loaded(off_reason="no drafter is loaded")
    with pytest.raises(SettingError, match=r"\."):
        sides_of(argument, now, {}, off if argument == "2" else loaded())


def test_depths_that_the_drafter_cannot_reach_are_the_same() -> None:
    bounded = Loaded(MODEL, DrafterInfo("nextn", "", 3), "", 2048, 2, "CPU", 20.0)
    with pytest.raises(SettingError, match="come to the same"):
        sides_of("4 5", Tuning(depth=2), {}, bounded)
    assert [side.label for side in sides_of("2 5", Tuning(depth=2), {}, bounded)] == ["depth 2", "depth 3"]


def test_what_makes_no_difference_to_plain_decoding_is_kept_with_it() -> None:
    plain, _ = sides_of("", Tuning(depth=2, margin=0.8), {}, loaded())
    assert (plain.label, plain.tuning) == ("plain", Tuning(depth=0, margin=0.8))


def test_a_server_is_not_asked_for_what_it_fixes() -> None:
    server = served(fixed=(("depth", "set at its start"),))
    with pytest.raises(SettingError, match="cannot be compared here: depth stays as it is: set at its start"):
        sides_of("4", Tuning(depth=2), {}, server)
    a, b = sides_of("now temp=0.7", Tuning(depth=2), {}, server)
    assert (a.tuning.temp, b.tuning.temp) == (0.0, 0.7)


async def test_the_table_is_filled_by_turns_and_the_row_chosen_is_kept(opened: Open) -> None:
    async with opened(size=(100, 30)) as chat:
        await chat.type("one", "enter")
        await chat.type("/compare 4", "enter")
        screen = chat.app.screen
        assert isinstance(screen, CompareScreen)
        for _ in range(4):
            await chat.settle()
        # The prompt of the reply, without the reply, four times; the conversation has one reply.
        trials = [g for g in chat.engine.generates if g.trial]
        assert [g.tuning.depth for g in trials] == [0, 4, 4, 0]
        assert all(g.messages == (Message("user", "one"),) for g in trials)
        assert len(chat.app.chat.conversation.turns) == 2 and chat.app.chat.state == "ready"
        screen.draw()
        await chat.pilot.pause()
        shown = "\n".join(
            "".join(segment.text for segment in strip)
            for strip in screen._compositor.render_strips(screen.size)
        )
        assert re.search(r"depth 4 +88\.0 +11\.4 +80\.0 % +2\.20 +1\.00×", shown), shown
        assert "Done: both answered by turns." in shown and "Both write the same" in shown
        await chat.press("down", "enter")
        assert chat.app.screen is chat.screen
        assert chat.app.chat.tuning == Tuning(depth=4)  # its own seed, not the draws of the comparison


async def test_esc_stops_the_comparison_and_then_closes(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.push(*steps_of(1, PIECES), ended(1))
        await chat.type("/compare", "enter")
        screen = chat.app.screen
        assert isinstance(screen, CompareScreen)
        number = chat.engine.generates[-1].reply
        await chat.push(*steps_of(number, PLAIN[:5]))
        hint = screen.query_one(".sheet-hint", Static)
        assert str(hint.content).endswith("[b]Esc[/b] stops")
        await chat.press("escape")
        screen.draw()
        assert str(hint.content).endswith("[b]Esc[/b] closes")
        assert chat.engine.sent[-1] == Cancel(number)
        assert chat.app.chat.state == "ready" and len(chat.engine.generates) == 2
        assert chat.app.screen is screen and screen.state.startswith("Stopped")
        assert screen.comparison.sides[0].stats.emitted == 5
        await chat.press("escape")
        assert chat.app.screen is chat.screen and chat.app.chat.tuning == Tuning(depth=2)


async def test_a_comparison_ends_with_the_engine(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.push(*steps_of(1, PIECES), ended(1))
        await chat.type("/compare", "enter")
        await chat.push(EngineDied(None, 1, "", "The engine stopped.", ()))
        assert isinstance(chat.app.screen, CompareScreen) and chat.app.screen.comparison.over
        assert chat.app.chat.state == "died" and not chat.app.chat.working


async def test_a_load_waits_for_the_end_of_a_comparison(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.push(*steps_of(1, PIECES), ended(1))
        await chat.type("/compare", "enter")
        chat.app.chat.load(Load("/models/other.gguf"))
        assert isinstance(chat.engine.sent[-1], Cancel)
        await chat.settle()
        assert chat.engine.sent[-1] == Load("/models/other.gguf")


async def test_without_a_prompt_there_is_nothing_to_compare(opened: Open) -> None:
    async with opened(notices=True) as chat:
        await chat.type("/compare", "enter")
        assert any("There is no prompt to compare" in said for said in chat.said())
        assert chat.prompt == "/compare"


def test_a_narrow_table_keeps_the_names_the_speeds_and_the_ratio() -> None:
    side = both().sides[1]
    assert head_line(80).split() == ["setting", "tok/s", "ms/token", "accepted", "tok/step", "×"]
    assert head_line(34).split() == ["setting", "tok/s", "×"]
    for width in (20, 34, 60):
        assert len(head_line(width)) == len(side_line(side, 1.5, width)) == width
        assert side_line(side, 1.5, width).startswith(side.label[:4]) and "1.50×" in side_line(
            side, 1.5, width
        )
