"""A constructed qwen3next: a hybrid that llama.cpp cannot roll back, with a NextN block in the file.

Its attention and its recurrent layers are qwen35's; the feed-forward part is a mixture of experts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tiny import chain, qwen35, vocab
from tiny.tensors import GAIN, Tensors, draft_output, embedding, noise, ones, target_output, write, zeros
from tiny.vocab import Variant

_WIDTH = chain.N_CLASSES
_EXPERTS, _EXPERT_FF = 4, 32


def _experts(p: str) -> Tensors:
    return {
        p + "attn_norm.weight": ones(_WIDTH),
        p + "post_attention_norm.weight": ones(_WIDTH),
        p + "ffn_gate_inp.weight": np.eye(_EXPERTS, _WIDTH, dtype=np.float32),
        p + "ffn_gate_exps.weight": zeros(_EXPERTS, _EXPERT_FF, _WIDTH),
        p + "ffn_up_exps.weight": zeros(_EXPERTS, _EXPERT_FF, _WIDTH),
        p + "ffn_down_exps.weight": zeros(_EXPERTS, _WIDTH, _EXPERT_FF),
        p + "ffn_gate_inp_shexp.weight": zeros(_WIDTH),
        p + "ffn_gate_shexp.weight": zeros(_EXPERT_FF, _WIDTH),
        p + "ffn_up_shexp.weight": zeros(_EXPERT_FF, _WIDTH),
        p + "ffn_down_shexp.weight": zeros(_WIDTH, _EXPERT_FF),
    }


def _delta_net(p: str, rng: np.random.Generator) -> Tensors:
    tensors = qwen35.delta_net(p, rng)
    beta = tensors.pop(p + "ssm_beta.weight")
    del tensors[p + "ssm_alpha.weight"]
    tensors[p + "ssm_ba.weight"] = noise(rng, (2 * beta.shape[0], _WIDTH))
    return tensors


def write_nextn(
    path: Path,
    *,
    wrong_every: int = 4,
    gain: float = GAIN,
    runner_ratio: float = 0.0,
    vocabulary: Variant = "standard",
    seed: int = 1,
) -> None:
    """Target and NextN block in one file."""
    rng = np.random.default_rng(seed)
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    tensors: Tensors = {
        "token_embd.weight": embedding(n_vocab),
        "output_norm.weight": ones(_WIDTH),
        "output.weight": target_output(n_vocab, gain, runner_ratio),
    }
    for i in range(qwen35.LAYERS):
        p = f"blk.{i}."
        tensors |= _experts(p) | (qwen35.attention(p) if i % 4 == 3 else _delta_net(p, rng))
    p = f"blk.{qwen35.LAYERS}."
    tensors |= _experts(p) | qwen35.attention(p)
    tensors |= qwen35.nextn_tensors(p, draft_output(n_vocab, wrong_every, gain))
    metadata = qwen35.metadata(nextn=True) | {
        "expert_count": _EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": _EXPERT_FF,
        "expert_shared_feed_forward_length": _EXPERT_FF,
    }
    del metadata["rope.dimension_sections"]
    write(path, "qwen3next", metadata, tensors, name="tiny Qwen3 Next", variant=vocabulary, pre="qwen2")
