"""When a text repeats itself, by cases counted out by hand."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from kits.chat import ended, steps_of
from kits.engine import END_NOW, load_of, opened

from ds4chat.commands.oneshot import _request
from ds4chat.commands.options import OneShotOptions
from ds4chat.engine.events import UNKNOWN_ID, Origin, Revised, Step, Token
from ds4chat.engine.from_settings import ends_loops
from ds4chat.engine.loops import LoopDetector, identity
from ds4chat.engine.stats import LoopingDocument, Stats
from ds4chat.settings.schema import Settings


def noticed(tokens: Iterable[object]) -> int | None:
    """Tokens after which it is noticed first."""
    detector = LoopDetector()
    return next((n for n, token in enumerate(tokens, start=1) if detector.push(token)), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lead", "period", "first"),
    [
        # The first period is no repetition; then 64 tokens come again, or two periods if longer.
        (0, 1, 1 + 64),
        (0, 5, 5 + 64),
        (10, 5, 10 + 5 + 64),
        (10, 32, 10 + 32 + 64),
        (10, 33, 10 + 33 + 66),
        (100, 200, 100 + 200 + 400),
    ],
)
def test_a_passage_is_a_loop_when_it_is_said_three_times_and_64_tokens_come_again(
    lead: int, period: int, first: int
) -> None:
    beginning = [f"lead {i}" for i in range(lead)]
    loop = [f"loop {i % period}" for i in range(1000)]
    assert noticed([*beginning, *loop]) == first


def test_where_the_repetition_began_and_how_long_the_passage_is() -> None:
    detector = LoopDetector()
    for token in [*"abcdefghij", *([*"0123456"] * 20)]:
        detector.push(token)
    # The lead is 10 tokens, the passage 7; what repeats begins behind both.
    assert (detector.looping, detector.period, detector.since, len(detector)) == (True, 7, 17, 150)


def test_a_loop_that_is_left_is_none_any_more_and_another_one_is_found() -> None:
    detector = LoopDetector()
    assert [*map(detector.push, "ab" * 50)][-1]
    assert not detector.push("!")
    assert not detector.push("?")
    # The new passage of 10 is said again from its 11th token on: 64 of those are needed.
    again = [detector.push(token) for token in "0123456789" * 8]
    assert again.index(True) + 1 == 10 + 64


def test_a_run_of_one_token_within_a_longer_passage_does_not_hide_the_passage() -> None:
    line = [*"-" * 20, "|", "x"]
    detector = LoopDetector()
    for token in line * 10:
        detector.push(token)
    assert (detector.looping, detector.period) == (True, 22)


@pytest.mark.parametrize(
    "tokens",
    [
        ["|", "---"] * 16 + ["|"],  # a rule of a table
        ["0", ","] * 31 + [str(i) for i in range(200)],
        [
            part
            for i in range(100)
            for part in ("item", str(i), ":", "the", "same", "words", "again", ".", "\n")
        ],
    ],
)
def test_what_only_looks_like_a_loop_is_none(tokens: list[str]) -> None:
    assert noticed(tokens) is None


def test_nothing_known_is_no_passage_but_may_stand_in_one() -> None:
    assert noticed([None] * 500) is None
    assert noticed([*"abc", *[None] * 100, *"de", *[None] * 100]) is None
    assert noticed([None, None, None, "x"] * 40) == 4 + 64


def test_a_token_is_known_by_its_id_and_by_its_text() -> None:
    def token(id_: int, text: str) -> Token:
        return Token(id_, text, "plain")

    assert identity(token(7, "a")) == identity(token(7, "a"))
    assert len({identity(token(*t)) for t in ((7, "a"), (8, "a"), (7, "b"), (UNKNOWN_ID, "a"))}) == 4
    assert identity(token(7, "")) is not None  # its text comes with another token
    assert identity(token(UNKNOWN_ID, "")) is None


def test_it_agrees_with_the_definition_and_not_with_less() -> None:
    """Against the plain reading of it: is there a period by which so many last tokens repeat?"""
    draw = random.Random(3)
    for _ in range(60):
        period, lead = draw.randint(9, 60), draw.randint(0, 40)
        passage = [draw.randint(0, 10**6) for _ in range(period)]
        tokens = [draw.randint(0, 10**6) for _ in range(lead)] + passage * 8
        n = noticed(tokens)
        assert n == lead + period + max(64, 2 * period)
        tokens = tokens[:n]
        assert all(tokens[i] == tokens[i - period] for i in range(n - max(64, 2 * period), n))


def test_a_token_costs_the_same_late_in_a_text_as_early_in_it() -> None:
    """Counted in lines of the detector that run, not in time."""

    def lines(tokens: list[int]) -> int:
        detector, count = LoopDetector(), 0
        for token in tokens[:-50]:
            detector.push(token)

        def trace(frame: object, event: str, arg: object) -> object:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        for token in tokens[-50:]:
            detector.push(token)
        sys.settrace(before)
        return count

    assert lines([*range(5000)]) <= lines([*range(100)]) + 50
    assert lines([i % 300 for i in range(5000)]) <= lines([i % 3 for i in range(200)]) + 50


LOOP: tuple[tuple[str, Origin], ...] = ((" all", "accepted"), (" work", "accepted"), (" no", "bonus"))


def same_ids(steps: list[Step], period: int) -> list[Step]:
    """The steps with token ids that repeat: the kit numbers them on."""

    return [
        replace(
            step, tokens=tuple(replace(t, id=t.id if t.id < 10 else 10 + t.id % period) for t in step.tokens)
        )
        for step in steps
    ]


def lead_and_loop(reply: int = 1) -> list[Step]:
    """12 tokens that were all misses, then 90 of a loop of three, each step of it two hits and a bonus."""
    lead: list[tuple[str, Origin]] = [(f"w{i}", "corrected") for i in range(12)]
    return same_ids(steps_of(reply, [*lead, *(LOOP * 30)]), 3)


def test_acceptance_within_a_loop_is_counted_apart() -> None:
    stats = Stats()
    for step in lead_and_loop():
        stats.fold(step)
    # 12 misses judged before; 60 judged in 30 steps, all accepted. The first step of the loop is said for the
    # first time. Ids 10 and 11 of the lead are the last two of its period, so the loop's own first step
    # repeats nothing but is led by them: the repetition begins with the second step.
    assert (stats.judged, stats.accepted) == (72, 60)
    assert stats.repeating
    assert (stats.loop_tokens, stats.loop_judged, stats.loop_accepted) == (87, 58, 58)
    assert stats.loop_acceptance == 1.0
    assert stats.acceptance_elsewhere == 2 / 14
    assert stats.document().looping == LoopingDocument(tokens=87, judged=58, accepted=58)


def test_a_reply_without_a_loop_counts_none() -> None:
    stats = Stats()
    for step in lead_and_loop()[:20]:
        stats.fold(step)
    assert not stats.repeating
    assert (stats.loop_tokens, stats.loop_acceptance, stats.loop_since) == (0, None, None)
    assert stats.acceptance_elsewhere == stats.acceptance


def test_each_reply_is_looked_at_by_itself() -> None:
    stats = Stats()
    half = lead_and_loop()[12:28]  # 48 tokens of the loop: not enough in one reply
    for number in (1, 2):
        for index, step in enumerate(half):
            stats.fold(replace(step, reply=number, index=index))
        stats.fold(ended(number))
    assert (stats.repeating, stats.loop_tokens) == (False, 0)


def test_steps_that_are_told_anew_are_counted_once() -> None:
    stats, steps = Stats(), lead_and_loop()
    for step in steps:
        stats.fold(step)
    stats.fold(Revised(1, tuple(steps)))
    assert (stats.loop_tokens, stats.loop_judged) == (87, 58)


def test_tokens_that_a_server_does_not_name_are_told_apart_by_their_text() -> None:

    stats = Stats()
    for step in steps_of(1, [(f"w{i}", "plain") for i in range(80)]):
        stats.fold(replace(step, tokens=tuple(replace(t, id=UNKNOWN_ID) for t in step.tokens)))
    assert not stats.repeating


PLAIN = tiny.reply(tiny.encode(END_NOW)[-1], 300)
"""What the constructed model answers by itself: a cycle without an end."""


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_reply_ends_at_the_token_that_makes_it_a_loop_where_that_is_asked_for(
    tiny_dir: Path, depth: int
) -> None:
    length = noticed(PLAIN)
    assert length is not None and 65 < length < 300
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        got = bench.ask(n=300, depth=depth, end_loops=True)
        assert (got.ended.finish_reason, got.ids) == ("stop", PLAIN[:length])
        assert "repeats itself" in got.ended.detail and "end-loops" in got.ended.detail
        assert got.stats.repeating
        # The caches are right: the next reply goes on from them, and a check finds no difference.
        assert bench.check().equal is True
        goes_on = bench.ask(n=300, depth=depth)
        assert (goes_on.ended.finish_reason, goes_on.ids, goes_on.ended.detail) == ("length", PLAIN, "")


@pytest.mark.parametrize(
    ("setting", "demo", "ends"),
    [("demo", True, True), ("demo", False, False), ("on", False, True), ("off", True, False)],
)
def test_whose_replies_end(setting: str, demo: bool, ends: bool) -> None:
    settings = Settings(end_loops=setting, demo=demo)
    assert ends_loops(settings) is ends
    assert _request(settings, OneShotOptions(prompt="x"), "x").end_loops is ends
