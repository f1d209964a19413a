"""The log lines against golden files, and back through the parser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kits.recorded import judged, step

from ds4chat.analysis.log_parser import parse_log
from ds4chat.analysis.rows import rows_from_steps
from ds4chat.analysis.whatif import what_if
from ds4chat.engine.events import Ended, FullRow, Judged, Phases, Step, Tuning
from ds4chat.engine.speclog import conf_line, probe_line, spec_line, summary_lines, timing_line
from ds4chat.engine.stats import Stats

GOLDEN = Path(__file__).parent / "golden"

NASTY = ' "quo\\ted"\n\x1b[31m\u202e\ud800=5 ms'
FULL = FullRow(0.25, 0.5, 1.25, ((900, ' "b" ]', 0.5), (102, " c", 0.25), (7, "\n", 1.25e-5)))
STEPS = [
    step(0, [judged(1, True), judged(2, True), judged(3, True)], depth=3),
    step(
        1,
        [judged(1, True), judged(2, False, ratio=1.5e-7, gap=0.0625, texts=(NASTY, " b"), full=FULL)],
        drafted=3,
        depth=3,
        tuning=Tuning(depth="auto", gate=0.5),
    ),
    step(
        2,
        [judged(1, False, draft_gap=None, draft_prob=None)],
        drafted=2,
        depth=4,
        tuning=Tuning(depth=4, strict=True, margin=0.5),
        drafter="lookup",
    ),
    step(3, [], depth=3, outcome="gated", tuning=Tuning(depth=3, gate=4.0), ms=Phases(1, 9, 0, 0, 0, 10)),
    replace(step(4, [], depth=0, ms=Phases(0, 9, 0, 0, 0, 9), drafter=""), baseline=True),
    step(5, [judged(1, True, ratio=0.75, by_ratio=True)], depth=1, tuning=Tuning(depth=1, margin=0.25)),
    step(6, [], depth=3, outcome="fallback"),
]
ENDED = Ended(1, "stop", "", 20, 5, 150.0, 90.0, 160.5, 37, 1)


def log_lines(steps: list[Step] = STEPS) -> list[str]:
    """All three logs of these steps, as they come on one stderr."""
    lines = []
    for one in steps:
        lines += [conf_line(one, row) for row in one.judged]
        lines += [spec_line(one), timing_line(one)]
    return lines


def folded() -> Stats:
    """The counters of STEPS."""
    stats = Stats()
    for event in (*STEPS, ENDED):
        stats.fold(event)
    return stats


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("steps.log", log_lines()),
        ("summary.log", summary_lines(folded())),
        ("probe.log", [probe_line(5, 5, 1, 1), probe_line(6, 9, 1, 2)]),
    ],
)
def test_the_lines_are_as_they_were(name: str, lines: list[str]) -> None:
    """Scripts read these lines: a change of a name or a unit must be deliberate."""
    assert "\n".join(lines) + "\n" == (GOLDEN / name).read_text(encoding="ascii")


def test_no_text_breaks_a_line_or_steers_a_terminal() -> None:
    """Printable ASCII only."""
    assert all(line.isascii() and line.isprintable() for line in log_lines())


def close(a: Judged, b: Judged) -> bool:
    """Equal except for the digits that the log drops."""
    numbers = ("ratio", "gap", "draft_gap", "draft_prob")
    for name in numbers:
        x, y = getattr(a, name), getattr(b, name)
        if (x is None) != (y is None) or (x is not None and abs(x - y) > 1e-6):
            return False
    same = ("position", "draft", "draft_text", "target", "target_text", "accepted", "by", "full")
    return all(getattr(a, name) == getattr(b, name) for name in same)


def test_the_parser_gives_the_steps_back() -> None:
    """Every column of every step and row, the texts with all their control characters included."""
    log = parse_log(log_lines())
    assert log.broken == 0
    ours, theirs = rows_from_steps(log.steps), rows_from_steps(STEPS)
    for name in type(theirs).__dataclass_fields__:
        expected, got = getattr(theirs, name), getattr(ours, name)
        if isinstance(expected, tuple):
            assert got == expected, name
        else:
            np.testing.assert_allclose(got, expected, atol=1e-6, err_msg=name)
    for record, one in zip(log.steps, STEPS, strict=True):
        assert all(close(a, b) for a, b in zip(record.judged, one.judged, strict=True))
    assert what_if(ours, depth=1).acceptance == what_if(theirs, depth=1).acceptance


@pytest.mark.parametrize("kind", ["timing", "spec", "conf"])
def test_each_log_can_be_read_alone(kind: str) -> None:
    """One of the three switches was on: what it prints gives drafted, accepted and depth."""
    steps = [one for one in STEPS if one.judged]
    log = parse_log(line for line in log_lines(steps) if f" mtp {kind} " in line)
    rows, whole = rows_from_steps(log.steps), rows_from_steps(steps)
    assert log.broken == 0
    assert rows.step_drafted.tolist() == whole.step_drafted.tolist()
    assert rows.step_depth.tolist() == whole.step_depth.tolist()
    assert rows.step_emitted.tolist() == whole.step_emitted.tolist()
    assert rows.step_outcome.tolist() == whole.step_outcome.tolist()
    assert len(rows) == (len(whole) if kind == "conf" else 0)


def test_foreign_lines_are_passed_over() -> None:
    """llama.cpp's chatter, an empty line, a time stamp in front: the steps are found all the same."""
    lines = ["llama_context: n_ctx = 4096", "", "ggml mtp timing drafted=9"]
    lines += [f"2026-01-01T00:00:00 {line}\r\n" for line in log_lines()]
    assert parse_log(lines) == parse_log(log_lines())


def test_a_line_cut_off_anywhere_is_no_error() -> None:
    """Every prefix of every line: skipped, counted as broken, or read as what it still says."""
    for line in {*log_lines(), *summary_lines(folded()), probe_line(5, 5, 1, 1)}:
        for length in range(len(line)):
            log = parse_log([line[:length]])
            assert len(log.steps) + log.broken <= 1


def test_logs_of_several_processes_stay_apart() -> None:
    """Reply and step numbers start over: the second log's steps follow the first's, in another reply."""
    rows = rows_from_steps(parse_log(log_lines() + log_lines()).steps)
    assert rows.steps == 2 * len(STEPS)
    assert rows.step_index.tolist() == 2 * list(range(len(STEPS)))
    assert len(set(rows.step_reply.tolist())) == 2


CONF = (
    'ds4chat: mtp conf reply=1 step=0 position=1 draft=5 draft_text="a" target=5 target_text="a" accepted=1 '
    "by=match ratio=1 gap=2 draft_gap=1 draft_prob=0.5 drafted=1 committed=1 depth=1 mode=exact"
)
TIMING = (
    "ds4chat: mtp timing reply=1 step=0 drafted=1 committed=1 emitted=2 depth=1 draft_ms=1 verify_ms=1 "
    "accept_ms=1 rollback_ms=1 other_ms=1 total_ms=5"
)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (CONF, ("draft=5", f"draft={10**30}")),
        (CONF, ("target=5", f"target={2**31}")),
        (CONF, ("position=1", "position=0")),
        (CONF, ("position=1", "position=-1")),
        (TIMING, ("emitted=2", f"emitted={10**12}")),
        (TIMING, ("emitted=2", "emitted=-1")),
        (TIMING, ("drafted=1", f"drafted={10**30}")),
        (TIMING, ("depth=1", "depth=-1")),
    ],
)
def test_a_number_that_no_step_has_breaks_its_line_alone(line: str, change: tuple[str, str]) -> None:
    """Columns hold 64 bits, and a step's tokens are counted out."""
    whole = parse_log([line])
    assert (whole.broken, len(whole.steps)) == (0, 1)
    log = parse_log([line.replace(*change, 1), TIMING.replace("step=0", "step=7")])
    assert log.broken == 1
    assert [step.index for step in log.steps] == [7]
