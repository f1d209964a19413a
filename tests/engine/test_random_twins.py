"""Random weights: here the next token depends on every cell of the cache, so a wrong rollback shows.

Constructed models look at one token only. On random ones a stream can leave plain decoding without a fault
where the two best logits are all but equal, so a difference must come with such a gap.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tiny
from kits.engine import opened

from ds4chat.engine.events import Load

TIE = 1e-3
"""Logits. Random twins have gaps of about 0.1; batches differ from single decodes by about 1e-5."""


@pytest.mark.parametrize("target", ["llama-random", "deepseek4-random", "qwen35-random"])
def test_lookup_on_a_random_target_gives_plain_decodings_stream(tiny_dir: Path, target: str) -> None:
    path = tiny.build(target, tiny_dir)
    with opened(Load(str(path), lookup=True, ctx=1024, threads=1)) as bench:
        _expect_plain(bench, n=300)


def test_a_quantised_twin_as_draft_model_gives_plain_decodings_stream(tiny_dir: Path) -> None:
    """The Q4_0 twin is right often and wrong often: rollbacks of every size on a cache that matters."""
    target = tiny.build("llama-random", tiny_dir)
    draft = tiny.build("llama-random", tiny_dir, quant="Q4_0")
    with opened(Load(str(target), str(draft), ctx=1024, threads=1)) as bench:
        got = _expect_plain(bench, n=300)
        lengths = {sum(row.accepted for row in s.judged) for s in got.steps if s.drafted == 4}
        assert lengths >= {0, 1, 2}


def _expect_plain(bench, n: int):  # type: ignore[no-untyped-def]
    prompt = " the old mill turns and the old mill turns and the"
    got = bench.ask(prompt, n, depth=4, ignore_eos=True)
    assert got.stats.judged > 0
    answer = bench.check()
    assert answer.equal or answer.gap < TIE, dataclasses.asdict(answer)
    return got
