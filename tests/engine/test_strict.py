"""Strict mode on the demo model: 500 tokens, past 512 cells of context, are those of one-token decoding."""

from __future__ import annotations

import pytest
from kits.engine import opened
from kits.requantise import requantise

from ds4chat.engine.events import Load
from ds4chat.models.demo import demo_model, demo_support

TEXT = (
    "The old mill by the river had not turned for thirty years. Its wheel was grey with moss, and the "
    "children of the village said that at night it still moved, one slow turn for every "
    "winter that it had stood. "
)


@pytest.mark.slow
@pytest.mark.parametrize("quantisation", ["Q4_0", "Q8_0", "Q4_K_M"])
@pytest.mark.timeout(900)
def test_500_tokens_equal_one_token_greedy_decoding(
    tmp_path_factory: pytest.TempPathFactory, quantisation: str
) -> None:
    path = tmp_path_factory.mktemp("strict") / f"demo-{quantisation}.gguf"
    requantise(demo_model(), path, quantisation)
    load = Load(str(path), str(demo_support()), ctx=2048, strict=True)
    prompt = TEXT * 12
    with opened(load) as bench:
        spec = bench.ask(prompt, 500, depth=3, strict=True, ignore_eos=True)
        assert spec.ended.prompt_tokens > 512
        assert len(spec.ids) == 500
        assert spec.stats.accepted > 50
        answer = bench.check()
        assert answer.equal, f"{answer} ({bench.loaded.strict_note})"
    path.unlink()


@pytest.mark.slow
def test_where_batches_are_not_exact_verification_is_one_token_at_a_time() -> None:
    """Without the strict load settings batches differ; strict tuning then decodes row by row, and says so
    through the counters: no rejected draft is ever in the cache."""
    with opened(Load(str(demo_model()), str(demo_support()), ctx=2048)) as bench:
        assert not bench.session.batches_are_exact
        spec = bench.ask(TEXT * 12, 120, depth=3, strict=True, ignore_eos=True)
        assert spec.stats.accepted > 10
        answer = bench.check()
        assert answer.equal, answer
