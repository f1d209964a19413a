"""A constructed qwen35: gated delta net and attention layers, a NextN block in the same file."""

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
LAYERS = 4  # layer 3 attends, the others are recurrent
_HEADS, _HEAD = 2, 32
_STATE, _GROUPS, _VALUE_HEADS = 16, 2, 4
_FF = 64


def _ffn(p: str) -> Tensors:
    return {
        p + "attn_norm.weight": ones(_WIDTH),
        p + "post_attention_norm.weight": ones(_WIDTH),
        p + "ffn_gate.weight": zeros(_FF, _WIDTH),
        p + "ffn_up.weight": zeros(_FF, _WIDTH),
        p + "ffn_down.weight": zeros(_WIDTH, _FF),
    }


def attention(p: str) -> Tensors:
    """A full attention layer whose way out is shut."""
    return {
        p + "attn_q.weight": np.tile(np.eye(_WIDTH, dtype=np.float32), (2, 1)),  # query and gate
        p + "attn_k.weight": np.eye(_WIDTH, dtype=np.float32),
        p + "attn_v.weight": np.eye(_WIDTH, dtype=np.float32),
        p + "attn_output.weight": zeros(_WIDTH, _HEADS * _HEAD),
        p + "attn_q_norm.weight": ones(_HEAD),
        p + "attn_k_norm.weight": ones(_HEAD),
    }


def delta_net(p: str, rng: np.random.Generator) -> Tensors:
    """Random projections into a real recurrent state; only the way out of the block is shut."""
    value = _STATE * _VALUE_HEADS
    mixed = 2 * _STATE * _GROUPS + value
    return {
        p + "attn_qkv.weight": noise(rng, (mixed, _WIDTH)),
        p + "attn_gate.weight": noise(rng, (value, _WIDTH)),
        p + "ssm_conv1d.weight": noise(rng, (mixed, 4)),
        p + "ssm_dt.bias": zeros(_VALUE_HEADS),
        p + "ssm_a": -ones(_VALUE_HEADS),
        p + "ssm_beta.weight": noise(rng, (_VALUE_HEADS, _WIDTH)),
        p + "ssm_alpha.weight": noise(rng, (_VALUE_HEADS, _WIDTH)),
        p + "ssm_norm.weight": ones(_STATE),
        p + "ssm_out.weight": zeros(_WIDTH, value),
    }


def nextn_tensors(p: str, head: np.ndarray, mixing: np.ndarray | None = None) -> Tensors:
    """What makes a block a NextN block, with a head of its own."""
    return {
        p + "nextn.eh_proj.weight": mixing if mixing is not None else mixing_matrix(),
        p + "nextn.enorm.weight": ones(_WIDTH),
        p + "nextn.hnorm.weight": ones(_WIDTH),
        p + "nextn.shared_head_norm.weight": ones(_WIDTH),
        p + "nextn.shared_head_head.weight": head,
    }


def metadata(*, nextn: bool) -> dict[str, Any]:
    """Keys that qwen35 and qwen3next share."""
    keys: dict[str, Any] = {
        "context_length": 4096,
        "embedding_length": _WIDTH,
        "block_count": LAYERS + int(nextn),
        "feed_forward_length": _FF,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
        "attention.key_length": _HEAD,
        "attention.value_length": _HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": _HEAD,
        "rope.dimension_sections": [6, 5, 5, 0],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": _STATE * _VALUE_HEADS,
        "ssm.state_size": _STATE,
        "ssm.time_step_rank": _VALUE_HEADS,
        "ssm.group_count": _GROUPS,
        "full_attention_interval": 4,
    }
    if nextn:
        keys["nextn_predict_layers"] = 1
    return keys


def _target(head: np.ndarray, rng: np.random.Generator) -> Tensors:
    tensors: Tensors = {
        "token_embd.weight": embedding(head.shape[0]),
        "output_norm.weight": ones(_WIDTH),
        "output.weight": head,
    }
    for i in range(LAYERS):
        p = f"blk.{i}."
        tensors |= _ffn(p) | (attention(p) if i % 4 == 3 else delta_net(p, rng))
    return tensors


def write_nextn(
    path: Path,
    *,
    wrong_every: int = 4,
    random_head: bool = False,
    gain: float = GAIN,
    wrong_gain: float | None = None,
    runner_ratio: float = 0.0,
    nextn: bool = True,
    vocabulary: Variant = "standard",
    seed: int = 1,
) -> None:
    """Target and NextN block in one file; ``nextn`` False leaves the block out (a plain hybrid target).

    ``random_head`` makes the NextN block's mixing and head random: it is right by chance at most.
    """
    rng = np.random.default_rng(seed)
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    tensors = _target(target_output(n_vocab, gain, runner_ratio), rng)
    if nextn:
        p = f"blk.{LAYERS}."
        tensors |= _ffn(p) | attention(p)
        head = draft_output(n_vocab, wrong_every, gain, wrong_gain)
        mixing = mixing_matrix()
        if random_head:
            head, mixing = noise(rng, head.shape), noise(rng, mixing.shape)
        tensors |= nextn_tensors(p, head, mixing)
    write(
        path, "qwen35", metadata(nextn=nextn), tensors, name="tiny qwen35", variant=vocabulary, pre="qwen35"
    )


def write_random(path: Path, *, seed: int = 1) -> None:
    """The target's shapes with random weights, no NextN block: real numbers in every state and cache."""
    rng = np.random.default_rng(seed)
    tensors = _target(target_output(vocab.N_VOCAB), rng)
    for name, values in tensors.items():
        if values.ndim > 1:
            tensors[name] = noise(rng, values.shape)
    tensors |= random_table(rng, _WIDTH)
    write(path, "qwen35", metadata(nextn=False), tensors, name="tiny random qwen35", pre="qwen35")
