"""Acceptance of the demo's EAGLE-3 pair stays within a band: a fault in its path drafts on, but badly."""

from __future__ import annotations

import pytest
from kits.engine import Answer, opened

from ds4chat.engine.events import Load, Message
from ds4chat.models.demo import demo_model, demo_support

PROMPTS = (
    "How does a rainbow come about? Explain it to a child.",
    "Write a Python function that counts the vowels in a string, with an example of its use.",
    "List ten countries in Europe with their capitals.",
    "Repeat this sentence and add a full stop: The cat sat on the mat and the dog lay by the door",
    "Write a short story about a boy who finds a map in an old clock.",
)
TOKENS = 72
DEPTH = 5

# Measured: .708 .731, 3.15 tokens a pass. With the hidden rows off by one: .361 .324, 1.56. Kernels of
# another processor may turn near ties of the target, which changes the text and moves the figures a little.
FIRST = (0.58, 0.84)
SECOND = (0.58, 0.88)
TOKENS_PER_PASS = (2.60, 3.70)


@pytest.mark.slow
def test_acceptance_by_position_and_tokens_per_pass_are_those_of_the_trained_pair() -> None:
    every = Answer()
    with opened(Load(str(demo_model()), str(demo_support()), ctx=1024, threads=1)) as bench:
        for prompt in PROMPTS:
            bench.session.reset()
            reply = bench.ask(n=TOKENS, depth=DEPTH, prompt=None, messages=(Message("user", prompt),))
            for event in reply.events:
                every.collect(event)
    stats = every.stats
    first, second = (p.rate for p in stats.by_position[:2])
    assert stats.by_position[0].judged > 60
    assert first is not None and FIRST[0] <= first <= FIRST[1], stats.document()
    assert second is not None and SECOND[0] <= second <= SECOND[1], stats.document()
    assert stats.tokens_per_step is not None
    assert TOKENS_PER_PASS[0] <= stats.tokens_per_step <= TOKENS_PER_PASS[1], stats.document()
