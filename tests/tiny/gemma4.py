"""A constructed gemma4 and its assistant, a drafter that reads the target's KV cache and has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tiny import chain, vocab
from tiny.tensors import (
    GAIN,
    Tensors,
    draft_output,
    embedding,
    mixing_matrix,
    ones,
    target_output,
    write,
    zeros,
)
from tiny.vocab import Variant

_WIDTH = chain.N_CLASSES
_ASSISTANT_WIDTH = 96  # llama.cpp refuses an assistant as wide as its target
_LAYERS = 4
_ASSISTANT_LAYERS = 2
_HEADS, _HEAD = 2, 32
_FF = 64


def _block(p: str, width: int, *, own_cache: bool) -> Tensors:
    tensors: Tensors = {
        p + "attn_norm.weight": ones(width),
        p + "attn_q.weight": np.eye(_HEADS * _HEAD, width, dtype=np.float32),
        p + "attn_q_norm.weight": ones(_HEAD),
        p + "attn_output.weight": zeros(width, _HEADS * _HEAD),
        p + "post_attention_norm.weight": ones(width),
        p + "ffn_norm.weight": ones(width),
        p + "ffn_gate.weight": zeros(_FF, width),
        p + "ffn_up.weight": zeros(_FF, width),
        p + "ffn_down.weight": zeros(width, _FF),
        p + "post_ffw_norm.weight": ones(width),
        p + "layer_output_scale.weight": ones(1),
    }
    if own_cache:
        tensors |= {
            p + "attn_k.weight": np.eye(_HEADS * _HEAD, width, dtype=np.float32),
            p + "attn_v.weight": np.eye(_HEADS * _HEAD, width, dtype=np.float32),
            p + "attn_k_norm.weight": ones(_HEAD),
        }
    return tensors


def _metadata(width: int, n_layer: int) -> dict[str, object]:
    return {
        "context_length": 4096,
        "embedding_length": width,
        "embedding_length_per_layer_input": 0,
        "block_count": n_layer,
        "feed_forward_length": _FF,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
        "attention.key_length": _HEAD,
        "attention.value_length": _HEAD,
        "attention.key_length_swa": _HEAD,
        "attention.value_length_swa": _HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [i % 2 == 0 for i in range(n_layer)],
        "attention.shared_kv_layers": 0,
        "final_logit_softcapping": 0.0,  # off; the default bends the logits
        "rope.dimension_count": _HEAD,
        "rope.dimension_count_swa": _HEAD,
        "rope.freq_base_swa": 10000.0,
    }


def write_target(
    path: Path, *, gain: float = GAIN, runner_ratio: float = 0.0, vocabulary: Variant = "standard"
) -> None:
    """Four layers, window and full attention in turn."""
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    tensors: Tensors = {
        "token_embd.weight": embedding(n_vocab),
        "output_norm.weight": ones(_WIDTH),
        "output.weight": target_output(n_vocab, gain, runner_ratio),
        "rope_freqs.weight": ones(_HEAD // 2),
    }
    for i in range(_LAYERS):
        tensors |= _block(f"blk.{i}.", _WIDTH, own_cache=True)
    write(path, "gemma4", _metadata(_WIDTH, _LAYERS), tensors, name="tiny Gemma 4", variant=vocabulary)


def write_assistant(
    path: Path, *, wrong_every: int = 4, gain: float = GAIN, vocabulary: Variant = "standard"
) -> None:
    """The assistant of that target: its table is embedding and head in one."""
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    widen = np.eye(_ASSISTANT_WIDTH, _WIDTH, dtype=np.float32)
    # The head's input has norm sqrt(96), the target's rows have norm sqrt(64).
    narrow = np.sqrt(_WIDTH / _ASSISTANT_WIDTH) * widen.T
    tensors: Tensors = {
        "token_embd.weight": draft_output(n_vocab, wrong_every, gain) @ widen.T,
        "output_norm.weight": ones(_ASSISTANT_WIDTH),
        "rope_freqs.weight": ones(_HEAD // 2),
        "nextn.pre_projection.weight": widen @ mixing_matrix(),
        "nextn.post_projection.weight": narrow.astype(np.float32),
    }
    for i in range(_ASSISTANT_LAYERS):
        tensors |= _block(f"blk.{i}.", _ASSISTANT_WIDTH, own_cache=False)
    metadata = _metadata(_ASSISTANT_WIDTH, _ASSISTANT_LAYERS) | {
        "embedding_length_out": _WIDTH,
        "nextn_predict_layers": _ASSISTANT_LAYERS,
    }
    write(path, "gemma4-assistant", metadata, tensors, name="tiny Gemma 4 assistant", variant=vocabulary)
