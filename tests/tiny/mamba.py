"""A random mamba: no attention at all, its whole memory is a recurrent state that cannot be rolled back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tiny.tensors import noise, ones, random_table, write, zeros

_WIDTH, _INNER, _STATE, _RANK, _KERNEL = 64, 128, 16, 4, 4


def write_random(path: Path, *, n_layer: int = 2, seed: int = 1) -> None:
    """Random weights: every token depends on what the state holds."""
    rng = np.random.default_rng(seed)
    tensors = random_table(rng, _WIDTH) | {"output_norm.weight": ones(_WIDTH)}
    for i in range(n_layer):
        p = f"blk.{i}."
        tensors |= {
            p + "attn_norm.weight": ones(_WIDTH),
            p + "ssm_in.weight": noise(rng, (2 * _INNER, _WIDTH)),
            p + "ssm_conv1d.weight": noise(rng, (_INNER, _KERNEL)),
            p + "ssm_conv1d.bias": zeros(_INNER),
            p + "ssm_x.weight": noise(rng, (_RANK + 2 * _STATE, _INNER)),
            p + "ssm_dt.weight": noise(rng, (_INNER, _RANK)),
            p + "ssm_dt.bias": zeros(_INNER),
            p + "ssm_a": -np.tile(np.arange(1, _STATE + 1, dtype=np.float32) / 8, (_INNER, 1)),
            p + "ssm_d": ones(_INNER),
            p + "ssm_out.weight": noise(rng, (_WIDTH, _INNER)),
        }
    metadata = {
        "context_length": 4096,
        "embedding_length": _WIDTH,
        "block_count": n_layer,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "ssm.conv_kernel": _KERNEL,
        "ssm.inner_size": _INNER,
        "ssm.state_size": _STATE,
        "ssm.time_step_rank": _RANK,
    }
    write(path, "mamba", metadata, tensors, name="tiny random mamba")
