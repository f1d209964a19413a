"""What-if against real reruns of the demo pair, greedy, pooled over one prompt of every kind of text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.engine import Bench, opened

from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.analysis.whatif import what_if
from ds4chat.commands.bench.workloads import workloads
from ds4chat.engine.events import Load, Message, Step
from ds4chat.engine.stats import Stats
from ds4chat.models.demo import demo_model, demo_support

# The demo model answers under each setting, which takes 20 s a case.
pytestmark = pytest.mark.slow

RECORDED_DEPTH = 4
TOKENS = 96


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    load = Load(str(demo_model()), str(demo_support()), ctx=1024, threads=1)
    with opened(load) as bench:
        yield bench


def steps_of(bench: Bench, depth: int, gate: float) -> list[Step]:
    steps: list[Step] = []
    for number, workload in enumerate(workloads()):
        bench.session.reset()
        messages = (Message("user", workload.prompts[0]),)
        reply = bench.ask(n=TOKENS, depth=depth, gate=gate, reply=number, prompt=None, messages=messages)
        steps += reply.steps
    return steps


@pytest.fixture(scope="module")
def recorded(bench: Bench) -> JudgedRows:
    return rows_from_steps(steps_of(bench, RECORDED_DEPTH, 0.0))


def rerun_and_prediction(bench: Bench, recorded: JudgedRows, depth: int, gate: float) -> tuple[float, float]:
    """Acceptance of the rerun, and what the record predicts for it."""
    stats = Stats()
    for step in steps_of(bench, depth, gate):
        stats.fold(step)
    predicted = what_if(recorded, depth=depth, gate=gate).acceptance
    assert stats.judged > 150
    assert stats.acceptance is not None and predicted is not None
    return stats.acceptance, predicted


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("depth", "gate"), [(1, 0.0), (2, 0.0), (2, 1.0), (4, 2.0)])
def test_lower_depths_and_gates_are_predicted_within_two_points(
    bench: Bench, recorded: JudgedRows, depth: int, gate: float
) -> None:
    """One prompt of each kind; tests/analysis/test_whatif_demo.py holds all of them as recorded once."""
    real, predicted = rerun_and_prediction(bench, recorded, depth, gate)
    assert predicted == pytest.approx(real, abs=0.02)
