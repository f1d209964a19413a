"""Drafters that do what a plan says, for putting any draft before the real cycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from kits.engine import Answer, Bench

from ds4chat.engine.drafters.base import Draft, Policy

TIE = 1e-3
"""Logits. Random twins have gaps of about 0.1; batches differ from single decodes by about 1e-5."""


class Scripted:
    """Proposes ``plan(n, depth)`` where n tokens are committed before the one that is not decoded."""

    kind = "scripted"
    path = ""
    note = ""

    def __init__(self, depth: int, plan: Callable[[int, int], Sequence[int]]) -> None:
        self.max_depth = depth
        self._plan = plan

    def rewind(self, keep: int) -> int:
        return keep

    def observe(self, tokens: Sequence[int], pos: int, keep: int) -> None:
        """The plan knows the positions by itself."""

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        return Draft(tokens=list(self._plan(len(committed), depth)), source=self.kind)

    def behind(self, n: int) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""


def every_length(start: int, stream: Sequence[int], depth: int, wrong: Sequence[int]) -> Scripted:
    """Right for 0, 1, ..., depth drafts at successive steps and wrong at the next one, over and over.

    ``start``: tokens of the prompt; ``stream``: what plain decoding answers; ``wrong``: ids to be wrong
    with, in turn, none of which may be the right one by chance.
    """
    calls = 0

    def plan(committed: int, room: int) -> list[int]:
        nonlocal calls
        right, bad = calls % (depth + 1), wrong[calls % len(wrong)]
        calls += 1
        at = committed + 1 - start
        tokens = list(stream[at : at + room])
        if right < len(tokens):
            tokens[right] = bad if tokens[right] != bad else wrong[(calls + 1) % len(wrong)]
        return tokens

    return Scripted(depth, plan)


def accepted_lengths(answer: Answer, depth: int) -> set[int]:
    """Accepted drafts of the steps that drafted ``depth``."""
    return {sum(row.accepted for row in s.judged) for s in answer.steps if s.drafted == depth}


def assert_plain(bench: Bench) -> None:
    """The last reply is what decoding its prompt one token at a time gives; a tie excuses a difference."""
    answer = bench.check()
    assert answer.equal or answer.gap < TIE, asdict(answer)
