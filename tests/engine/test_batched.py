"""The figures of prompts answered in one batched context."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import tiny
from kits.engine import load_of

from ds4chat.engine.batched import BatchedSession
from ds4chat.engine.events import Ended, Generate, Step
from ds4chat.engine.stats import Stats

PROMPTS = (" now" * 40, "so hi we go")
SLOW = 0.02
"""Seconds that each decode takes at least."""


@pytest.mark.parametrize("n", [1, 5])
def test_the_decode_of_the_prompt_is_the_prefill_and_the_others_are_the_steps(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    session = BatchedSession(load_of(tiny_dir, "llama-draft", ctx=512), 2)
    decode = session._context.decode_many
    monkeypatch.setattr(session._context, "decode_many", lambda *batch: (time.sleep(SLOW), decode(*batch)))
    requests = [
        Generate(reply=number, prompt=prompt, max_tokens=n, ignore_eos=True)
        for number, prompt in enumerate(PROMPTS)
    ]
    try:
        for number, events in session.run(requests):
            steps = [event for event in events if isinstance(event, Step)]
            end = events[-1]
            assert isinstance(end, Ended)
            assert len(steps) == n
            assert end.prefill_ms == end.first_token_ms >= SLOW * 1000
            assert steps[0].ms.total == 0.0
            assert end.decode_ms == pytest.approx(sum(step.ms.total for step in steps))
            assert end.decode_ms >= (n - 1) * SLOW * 1000
            stats = Stats()
            for event in events:
                stats.fold(event)
            assert stats.prefill_tokens_per_s is not None
            assert stats.prefill_tokens_per_s <= len(tiny.encode(PROMPTS[number])) / SLOW
            assert (stats.decode_tokens_per_s is None) == (n == 1)
    finally:
        session.close()
