"""A drafted and accepted end token counts as accepted and is emitted by no token, in every count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import tiny
from kits.engine import PAIRS, Answer, load_of, opened
from kits.json_schema import validate
from kits.scripted import Scripted
from tiny.vocab import word

from ds4chat.analysis.log_parser import parse_log
from ds4chat.analysis.rows import rows_from_steps
from ds4chat.engine.events import Step
from ds4chat.engine.speclog import conf_line, spec_line, summary_lines, timing_line
from ds4chat.store import Store
from ds4chat.store.export import judged_lines
from ds4chat.store.recording import Request

SCRIPTS = {
    "one among others": (["all", "done"], [word("all"), word("done"), tiny.EOS]),
    "nothing but the end": ([], [tiny.EOS]),
}
"""What the reply emits, and what is drafted: all as the target says."""


@pytest.fixture(params=SCRIPTS)
def answered(request: pytest.FixtureRequest, tiny_dir: Path) -> Iterator[tuple[Answer, list[str]]]:
    """A reply that ends with a drafted end token, and its words."""
    words, drafts = SCRIPTS[request.param]
    prompt = "hi stop" if words else "hi stop all done"
    begin = len(tiny.encode(prompt))
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        bench.session.caches.drafter = Scripted(8, lambda n, room: drafts[n + 1 - begin :][:room])
        yield bench.ask(prompt, depth=6), words


def sums(steps: list[Step]) -> tuple[int, int, int, int]:
    """Accepted drafts, tokens of that origin, accepted end tokens, tokens."""
    tokens = [token for step in steps for token in step.tokens]
    return (
        sum(step.accepted for step in steps),
        sum(token.origin == "accepted" for token in tokens),
        sum(step.accepted_end for step in steps),
        len(tokens),
    )


def test_the_steps_and_their_stats(answered: tuple[Answer, list[str]]) -> None:
    got, words = answered
    assert got.ended.finish_reason == "stop"
    assert sums(got.steps) == (len(words) + 1, len(words), 1, len(words))
    assert (got.stats.accepted, got.stats.accepted_ends, got.stats.emitted) == (len(words) + 1, 1, len(words))


def test_the_json_and_its_schema(answered: tuple[Answer, list[str]]) -> None:
    got, words = answered
    stats = msgspec.to_builtins(got.stats.document())
    validate(stats, "StatsDocument")
    assert stats["accepted"] - stats["accepted_ends"] == stats["emitted"] == len(words)
    assert sum(place["accepted"] for place in stats["by_position"]) == stats["accepted"]


def test_the_logs(answered: tuple[Answer, list[str]]) -> None:
    got, words = answered
    lines = [
        line
        for step in got.steps
        for line in (spec_line(step), timing_line(step), *(conf_line(step, row) for row in step.judged))
    ]
    assert sum(" accepted_end=1" in line for line in lines) == 2  # of the last step: spec and timing
    summary = summary_lines(got.stats)[0]
    counts = f"accepted={len(words) + 1} accepted_ends=1 emitted={len(words)} "
    assert counts in summary
    rows = rows_from_steps(parse_log(lines).steps)
    assert rows.step_accepted.sum() == rows.accepted.sum() == len(words) + 1
    assert rows.step_emitted.sum() == len(words)


def test_the_store_and_the_explorer(answered: tuple[Answer, list[str]]) -> None:
    got, words = answered
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    recorder.append(*got.steps, got.ended)
    recorder.flush()
    assert recorder.message is not None and recorder.conversation is not None
    message = store.conversations.message(recorder.message)
    assert (message.accepted, message.tokens) == (len(words) + 1, len(words))
    assert sums(store.steps(recorder.message)) == sums(got.steps)
    rows, stored = rows_from_steps(got.steps), store.judged_rows(recorder.conversation)
    for found in (rows, stored):
        ends = found.step_accepted > found.step_emitted
        assert (found.step_accepted.sum(), ends.sum()) == (len(words) + 1, 1)
    exported = [json.loads(line) for line in judged_lines(store, recorder.conversation)]
    assert sum(row["accepted"] for row in exported) == len(words) + 1
    assert exported[-1]["accepted_end"] and exported[-1]["token"] is None
    assert exported[-1]["committed"] - 1 == exported[-1]["emitted"]


@pytest.mark.parametrize("name", PAIRS)
def test_every_kind_of_drafter(tiny_dir: Path, name: str) -> None:
    """Whether the drafter proposes the end or the target adds it, the sums hold."""
    with opened(load_of(tiny_dir, name, wrong_every=0)) as bench:
        for depth in (1, 2, 3, 6):
            bench.session.reset()
            got = bench.ask("hi stop", depth=depth)
            accepted, of_that_origin, ends, emitted = sums(got.steps)
            assert accepted == of_that_origin + ends
            assert emitted == got.stats.emitted == 2
