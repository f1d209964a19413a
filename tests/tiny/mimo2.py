"""A constructed mimo2: window and full attention in turn, chained NextN heads in the same file.

Head i makes draft i+1 and keeps a KV layer of its own. Each head errs in another place of the cycle, so that
acceptance proves which head made which draft.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tiny import chain, vocab
from tiny.tensors import (
    GAIN,
    Tensors,
    draft_output,
    embedding,
    mixing_matrix,
    noise,
    ones,
    random_table,
    target_output,
    write,
    zeros,
)
from tiny.vocab import Variant

_WIDTH = chain.N_CLASSES
_LAYERS = 2
_HEADS, _HEAD = 2, 32
_FF = 64


def _block(p: str) -> Tensors:
    return {
        p + "attn_norm.weight": ones(_WIDTH),
        p + "attn_qkv.weight": np.tile(np.eye(_WIDTH, dtype=np.float32), (3, 1)),
        p + "attn_output.weight": zeros(_WIDTH, _HEADS * _HEAD),
        p + "ffn_norm.weight": ones(_WIDTH),
        p + "ffn_gate.weight": zeros(_FF, _WIDTH),
        p + "ffn_up.weight": zeros(_FF, _WIDTH),
        p + "ffn_down.weight": zeros(_WIDTH, _FF),
    }


def write_nextn(
    path: Path,
    *,
    wrong_every: int = 4,
    heads: int = 3,
    gain: float = GAIN,
    runner_ratio: float = 0.0,
    vocabulary: Variant = "standard",
) -> None:
    """Target and its NextN heads. Head i errs two words of the cycle earlier than head i - 1.

    At depth 3 a full step is four words, so with ``wrong_every`` 4 it falls in step with the cycle: soon all
    drafts are accepted. With 3 a miss follows every two full steps.
    """
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    blocks = _LAYERS + heads
    tensors: Tensors = {
        "token_embd.weight": embedding(n_vocab),
        "output_norm.weight": ones(_WIDTH),
        "output.weight": target_output(n_vocab, gain, runner_ratio),
    }
    for i in range(blocks):
        tensors |= _block(f"blk.{i}.")
    for head in range(heads):
        p = f"blk.{_LAYERS + head}.nextn."
        tensors |= {
            p + "eh_proj.weight": mixing_matrix(),
            p + "enorm.weight": ones(_WIDTH),
            p + "hnorm.weight": ones(_WIDTH),
            p + "shared_head_norm.weight": ones(_WIDTH),
            p + "shared_head_head.weight": draft_output(n_vocab, wrong_every, gain, head=head),
        }
    write(path, "mimo2", _metadata(blocks, heads), tensors, name="tiny MiMo 2", variant=vocabulary)


def write_random(path: Path, *, n_layer: int = 4, seed: int = 1) -> None:
    """Random weights: every token depends on what the windows hold."""
    rng = np.random.default_rng(seed)
    tensors = random_table(rng, _WIDTH) | {"output_norm.weight": ones(_WIDTH)}
    for i in range(n_layer):
        tensors |= {
            name: values if values.ndim == 1 else noise(rng, values.shape)
            for name, values in _block(f"blk.{i}.").items()
        }
    write(path, "mimo2", _metadata(n_layer, 0), tensors, name="tiny random MiMo 2")


def _metadata(blocks: int, heads: int) -> dict[str, Any]:
    return {
        "context_length": 4096,
        "embedding_length": _WIDTH,
        "block_count": blocks,
        "nextn_predict_layers": heads,
        "feed_forward_length": _FF,
        "expert_feed_forward_length": _FF,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
        "attention.key_length": _HEAD,
        "attention.value_length": _HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [i % 2 == 0 for i in range(blocks)],
        "rope.dimension_count": _HEAD,
    }
