"""Which architectures the default run takes: one of each sort of cache and of head, in a second each."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

FAST = ("qwen35", "bailingmoe3", "mimo2-1", "nemotron_h", "lfm2", "llama")


def params(cases: Iterable[str | tuple[object, ...]]) -> list[object]:
    """Parameters of a test, names of tiny.species or tuples that begin with one; slow but for FAST."""
    rows = [(case,) if isinstance(case, str) else case for case in cases]
    return [pytest.param(*row, marks=() if row[0] in FAST else pytest.mark.slow) for row in rows]
