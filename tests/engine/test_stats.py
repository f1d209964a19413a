"""Counters folded from events, against sums done by hand."""

from __future__ import annotations

import dataclasses

import pytest

from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Ended, Judged, Origin, Outcome, Phases, Prefill, Step, Token, Tuning
from ds4chat.engine.stats import Stats, StatsDocument


def judged(position: int, accepted: bool, by: str | None = None) -> Judged:
    why = by if by is not None else ("match" if accepted else "")
    return Judged(position, 7, "x", 7 if accepted else 8, "x", accepted, why, 1.0, 2.0)  # type: ignore[arg-type]


def step(index: int, origins: list[Origin], rows: list[Judged], outcome: Outcome, drafted: int) -> Step:
    return Step(
        reply=1,
        index=index,
        tokens=tuple(Token(7, "x", origin) for origin in origins),
        drafted=drafted,
        judged=tuple(rows),
        outcome=outcome,
        ms=Phases(draft=1.0, verify=10.0, accept=0.5, rollback=0.25, other=0.25, total=12.0),
        tuning=Tuning(depth=3),
        depth=3,
        drafter="lookup",
        context_used=20 + index,
    )


def folded() -> Stats:
    stats = Stats()
    stats.fold(Prefill(1, 5, 5, 0, 50.0))
    stats.fold(
        step(
            0, ["accepted", "accepted", "accepted", "bonus"], [judged(i, True) for i in (1, 2, 3)], "full", 3
        )
    )
    stats.fold(step(1, ["accepted", "corrected"], [judged(1, True), judged(2, False)], "partial", 3))
    stats.fold(step(2, ["corrected"], [judged(1, False)], "miss", 2))
    stats.fold(step(3, ["plain"], [], "plain", 0))
    return stats


def test_counters() -> None:
    stats = folded()
    assert (stats.steps, stats.drafted, stats.judged, stats.accepted, stats.emitted) == (4, 8, 6, 4, 8)
    assert [(p.judged, p.accepted) for p in stats.by_position] == [(3, 2), (2, 1), (1, 1)]
    assert stats.outcomes == {
        "full": 1,
        "partial": 1,
        "miss": 1,
        "gated": 0,
        "plain": 1,
        "fallback": 0,
        "unknown": 0,
    }


def test_rates() -> None:
    stats = folded()
    assert stats.acceptance == pytest.approx(4 / 6)
    assert stats.mean_accepted == pytest.approx(4 / 3)  # three of the four steps judged a draft
    assert stats.tokens_per_step == 2.0
    assert stats.decode_tokens_per_s == pytest.approx(8 / 48 * 1000)


def test_nothing_folded_gives_no_rates() -> None:
    stats = Stats()
    assert stats.acceptance is stats.mean_accepted is stats.tokens_per_step is None
    assert stats.decode_tokens_per_s is stats.prefill_tokens_per_s is None


def test_prefill_speed_counts_fresh_tokens_alone() -> None:
    stats = folded()
    stats.fold(Ended(1, "stop", "", 110, 10, 50.0, 48.0, 62.0, 23, 1))
    assert stats.prefill_tokens_per_s == pytest.approx(2000.0)
    assert stats.first_token_ms == 62.0


def test_tokens_accepted_by_ratio_are_counted_as_lossy() -> None:
    stats = Stats()
    stats.fold(step(0, ["accepted", "corrected"], [judged(1, True, "ratio"), judged(2, False)], "partial", 2))
    assert stats.lossy == 1


def test_an_accepted_end_token_is_accepted_and_not_emitted() -> None:
    """Two drafts accepted, the second of which ends the reply."""
    stats = Stats()
    last = step(0, ["accepted"], [judged(1, True), judged(2, True)], "full", 2)
    assert (last.accepted, last.accepted_end) == (2, True)
    stats.fold(last)
    assert (stats.accepted, stats.accepted_ends, stats.emitted) == (2, 1, 1)


def test_plain_decoding_is_timed_by_the_passes_alone() -> None:
    """A pass of 12 ms, 1 of which went to a draft: 9 tokens at 11 ms against 60 ms; before, 9 at the load."""
    stats = folded()
    assert stats.plain.speedup is None
    stats.plain.load_ms = 8.0
    assert stats.document().plain_tokens_per_s == 125.0
    assert (stats.document().plain_passes, stats.document().speedup) == (0, round(8 * 8 / 48, 4))
    stats.fold(dataclasses.replace(step(4, ["plain"], [], "plain", 0), baseline=True))
    assert stats.document().plain_tokens_per_s == round(1000 / 11, 4)
    assert (stats.document().plain_passes, stats.document().speedup) == (1, round(9 * 11 / 60, 4))


def test_plain_decoding_is_measured_for_each_reply_by_itself() -> None:
    """The passes and the check of the first reply do not count for the second, which takes two steps."""
    stats = Stats(plain=PlainTime(20.0))
    for index in (0, 1):
        stats.fold(dataclasses.replace(step(index, ["plain"], [], "plain", 0), baseline=True))
    stats.plain.checked_ms = 1.0
    stats.fold(step(0, ["accepted", "bonus"], [judged(1, True)], "full", 1))
    assert (stats.plain.at_load, stats.plain.tokens, stats.plain.ms) == (True, 2, 40.0)


def test_json_has_the_documented_keys() -> None:
    assert list(StatsDocument.__struct_fields__) == [
        "steps",
        "drafted",
        "judged",
        "accepted",
        "accepted_ends",
        "emitted",
        "acceptance",
        "by_position",
        "looping",
        "mean_accepted",
        "tokens_per_step",
        "outcomes",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "plain_tokens_per_s",
        "plain_passes",
        "speedup",
        "ms",
    ]
    assert folded().document().ms == {
        "draft": 4.0,
        "verify": 40.0,
        "accept": 2.0,
        "rollback": 1.0,
        "other": 1.0,
        "total": 48.0,
    }
