"""Strict mode: the settings under which a batch can be bit-equal to single decodes, and the test of it.

On a CPU llama.cpp's kernels for one row and for several round differently. Measured, the paths that differ
are: the repacked weights from four rows on, the tiled matrix product from eight rows on, and the split
attention over at least 512 cells that only a single query takes with an f16 cache. Without repacking
(use_extra_bufts), without tiling (GGML_CPU_TILED_MM=0), with flash attention and a q8_0 cache, batches come
out bit-equal there. Other devices and kernels may differ, so the claim is tested at every load.
"""

from __future__ import annotations

import os

import numpy as np

from ds4chat.engine.events import MAX_DEPTH
from ds4chat.engine.llama import CacheConfig, Context

STRICT_CACHE = CacheConfig("q8_0", "q8_0", "on")
ODD_HEADS_CACHE = CacheConfig("f16", "f16", "on")
"""For heads whose width is not a multiple of q8_0's blocks of 32."""

_SLOW = "verification is one token at a time"
_PAST = (48, 560)
"""Cells in the cache when batches are compared: a short context, and one past the 512 that change kernels."""
_ROWS = MAX_DEPTH + 1
_BATCHES = (2, 3, 4, 5, 8, 9, _ROWS)
"""Batch sizes compared: each side of every size at which llama.cpp changes its kernels, and the largest."""


def prepare_strict() -> None:
    """Switch off the tiled matrix product; must come before the process's first decode."""
    os.environ["GGML_CPU_TILED_MM"] = "0"


def strict_batches_are_exact(target: Context, token: int) -> tuple[bool, str]:
    """Whether batches of 2 to 17 rows give the logits of single decodes, bit for bit, and a sentence on it.

    The cache is empty afterwards. A context that is too short for the long comparison only makes the short
    one.
    """
    if target.cache == ODD_HEADS_CACHE:
        return False, (
            f"{_SLOW}: this model's heads are no multiple of 32 wide, so its cache is f16 instead of q8_0, "
            "and batches are not bit-equal over it"
        )
    if target.model.recurrent:
        return False, f"{_SLOW}: a recurrent state cannot be rolled back to compare"
    n_vocab = target.model.n_vocab
    spread = max(n_vocab // 97, 1)
    limit = target.n_ctx - _ROWS
    for past in _PAST:
        if past > limit:
            continue
        text = [(token + i * spread) % n_vocab for i in range(past + _ROWS)]
        target.clear()
        for at in range(0, past, 128):
            target.decode(text[at : min(at + 128, past)], at, outputs="none")
        single = []
        for i in range(_ROWS):
            target.decode(text[past + i : past + i + 1], past + i, outputs="all")
            single.append(target.logits(1)[0].copy())
        for rows in _BATCHES:
            if not target.remove_from(past):
                target.clear()
                return False, f"{_SLOW}: this cache cannot be rolled back to compare"
            target.decode(text[past : past + rows], past, outputs="all")
            batch = target.logits(rows)
            for i in range(rows):
                if not np.array_equal(batch[i], single[i]):
                    target.clear()
                    return False, (
                        f"{_SLOW}: batches of {rows} are not bit-equal to single decodes here (after {past} "
                        "tokens)"
                    )
    target.clear()
    return True, f"batches of up to {_ROWS} rows are bit-equal to single decodes here"
