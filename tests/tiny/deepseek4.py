"""Constructed DeepSeek V4: target, target with a NextN block, support file, the same in ds4's layout.

Three layers with compression ratios 0, 4 and 128: the raw window, the sparse and the heavily compressed
cache are all real. The blocks add nothing, so the four hyper-connection streams stay equal to the token's
embedding. Every matrix has rows of a multiple of 32, which Q8_0 divides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType

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
_RATIOS = (0, 4, 128)
_LAYERS = len(_RATIOS)
_STREAMS = 4
_MIX = (2 + _STREAMS) * _STREAMS
_HEADS, _HEAD = 4, 32
_Q_RANK, _O_RANK, _O_GROUPS = 32, 32, 2
# llama.cpp rotates indexer keys by a Hadamard matrix of 64 and more, and takes any cache whose key is as wide
# for the indexer's: the two widths must differ.
_INDEX_HEADS, _INDEX_HEAD = 2, 64
_EXPERTS, _EXPERTS_USED, _EXPERT_FF = 4, 2, 32
_HASH_LAYERS = 1

Storage = Literal["F32", "Q8_0"]


def _attention(p: str) -> Tensors:
    return {
        p + "attn_norm.weight": ones(_WIDTH),
        p + "attn_sinks.weight": zeros(_HEADS),
        p + "attn_q_a.weight": np.eye(_Q_RANK, _WIDTH, dtype=np.float32),
        p + "attn_q_a_norm.weight": ones(_Q_RANK),
        p + "attn_q_b.weight": np.eye(_HEADS * _HEAD, _Q_RANK, dtype=np.float32),
        p + "attn_kv.weight": np.eye(_HEAD, _WIDTH, dtype=np.float32),
        p + "attn_kv_a_norm.weight": ones(_HEAD),
        p + "attn_output_a.weight": np.eye(
            _O_GROUPS * _O_RANK, _HEADS * _HEAD // _O_GROUPS, dtype=np.float32
        ),
        p + "attn_output_b.weight": zeros(_WIDTH, _O_GROUPS * _O_RANK),
    }


def _compressor(p: str, ratio: int) -> Tensors:
    if ratio == 0:
        return {}
    wide = (2 if ratio == 4 else 1) * _HEAD
    tensors: Tensors = {
        p + "attn_compressor_kv.weight": np.eye(wide, _WIDTH, dtype=np.float32),
        p + "attn_compressor_gate.weight": np.eye(wide, _WIDTH, dtype=np.float32),
        p + "attn_compressor_ape.weight": zeros(ratio, wide),
        p + "attn_compressor_norm.weight": ones(_HEAD),
    }
    if ratio == 4:
        tensors |= {
            p + "indexer.proj.weight": np.eye(_INDEX_HEADS, _WIDTH, dtype=np.float32),
            p + "indexer.attn_q_b.weight": np.eye(_INDEX_HEADS * _INDEX_HEAD, _Q_RANK, dtype=np.float32),
            p + "indexer_compressor_kv.weight": np.eye(2 * _INDEX_HEAD, _WIDTH, dtype=np.float32),
            p + "indexer_compressor_gate.weight": np.eye(2 * _INDEX_HEAD, _WIDTH, dtype=np.float32),
            p + "indexer_compressor_ape.weight": zeros(ratio, 2 * _INDEX_HEAD),
            p + "indexer_compressor_norm.weight": ones(_INDEX_HEAD),
        }
    return tensors


def _experts(p: str, n_vocab: int, hashed: bool) -> Tensors:
    tensors: Tensors = {
        p + "ffn_norm.weight": ones(_WIDTH),
        p + "ffn_gate_inp.weight": np.eye(_EXPERTS, _WIDTH, dtype=np.float32),
        p + "ffn_gate_exps.weight": zeros(_EXPERTS, _EXPERT_FF, _WIDTH),
        p + "ffn_up_exps.weight": zeros(_EXPERTS, _EXPERT_FF, _WIDTH),
        p + "ffn_down_exps.weight": zeros(_EXPERTS, _WIDTH, _EXPERT_FF),
        p + "ffn_gate_shexp.weight": zeros(_EXPERT_FF, _WIDTH),
        p + "ffn_up_shexp.weight": zeros(_EXPERT_FF, _WIDTH),
        p + "ffn_down_shexp.weight": zeros(_WIDTH, _EXPERT_FF),
    }
    if hashed:
        first = np.arange(n_vocab, dtype=np.int32) % _EXPERTS
        tensors[p + "ffn_gate_tid2eid.weight"] = np.stack([first, (first + 1) % _EXPERTS], axis=1)
    else:
        tensors[p + "exp_probs_b.bias"] = zeros(_EXPERTS)
    return tensors


def _hyper(p: str) -> Tensors:
    tensors: Tensors = {}
    for part in ("attn", "ffn"):
        tensors |= {
            p + f"hc_{part}_fn.weight": zeros(_MIX, _STREAMS * _WIDTH),
            p + f"hc_{part}_base.weight": zeros(_MIX),
            p + f"hc_{part}_scale.weight": ones(3),
        }
    return tensors


def _hyper_head(p: str) -> Tensors:
    """The streams' sum: sigmoid(8) of each."""
    return {
        p + "fn.weight": zeros(_STREAMS, _STREAMS * _WIDTH),
        p + "base.weight": 8 * ones(_STREAMS),
        p + "scale.weight": ones(1),
    }


def _block(p: str, ratio: int, n_vocab: int, hashed: bool) -> Tensors:
    return _attention(p) | _compressor(p, ratio) | _experts(p, n_vocab, hashed) | _hyper(p)


def _nextn_block(p: str, n_vocab: int, wrong_every: int = 0) -> Tensors:
    return _block(p, 0, n_vocab, False) | {
        p + "nextn.eh_proj.weight": mixing_matrix(wrong_every),
        p + "nextn.enorm.weight": ones(_WIDTH),
        p + "nextn.hnorm.weight": ones(_WIDTH),
        p + "nextn.shared_head_norm.weight": ones(_WIDTH),
    }


def _root(head: np.ndarray) -> Tensors:
    return {
        "token_embd.weight": embedding(head.shape[0]),
        "output_norm.weight": ones(_WIDTH),
        "output.weight": head,
    } | _hyper_head("output_hc_")


def _metadata(nextn: bool) -> dict[str, Any]:
    blocks = _LAYERS + int(nextn)
    metadata: dict[str, Any] = {
        "context_length": 4096,
        "embedding_length": _WIDTH,
        "block_count": blocks,
        "feed_forward_length": _EXPERT_FF,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": _HEAD,
        "attention.value_length": _HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.q_lora_rank": _Q_RANK,
        "attention.output_lora_rank": _O_RANK,
        "attention.output_group_count": _O_GROUPS,
        "attention.sliding_window": 64,
        "attention.indexer.head_count": _INDEX_HEADS,
        "attention.indexer.key_length": _INDEX_HEAD,
        "attention.indexer.top_k": 8,
        "attention.compress_ratios": [*_RATIOS, *([0] if nextn else [])],
        "attention.compress_rope_freq_base": 160000.0,
        "rope.dimension_count": 16,
        "rope.freq_base": 10000.0,
        "expert_count": _EXPERTS,
        "expert_used_count": _EXPERTS_USED,
        "expert_shared_count": 1,
        "expert_feed_forward_length": _EXPERT_FF,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [10.0] * blocks,
        "hyper_connection.count": _STREAMS,
        "hyper_connection.sinkhorn_iterations": 4,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": _HASH_LAYERS,
    }
    if nextn:
        metadata["nextn_predict_layers"] = 1
    return metadata


def _trunk(n_vocab: int) -> Tensors:
    tensors: Tensors = {}
    for i, ratio in enumerate(_RATIOS):
        tensors |= _block(f"blk.{i}.", ratio, n_vocab, i < _HASH_LAYERS)
    return tensors


def write_target(
    path: Path, *, gain: float = GAIN, runner_ratio: float = 0.0, vocabulary: Variant = "standard"
) -> None:
    """The target alone."""
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    tensors = _root(target_output(n_vocab, gain, runner_ratio)) | _trunk(n_vocab)
    write(path, "deepseek4", _metadata(False), tensors, name="tiny DeepSeek V4", variant=vocabulary)


def write_nextn(
    path: Path,
    *,
    wrong_every: int = 4,
    gain: float = GAIN,
    wrong_gain: float | None = None,
    runner_ratio: float = 0.0,
    vocabulary: Variant = "standard",
) -> None:
    """The target with a NextN block, whose head is its own (``nextn.shared_head_head``)."""
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    p = f"blk.{_LAYERS}."
    tensors = _root(target_output(n_vocab, gain, runner_ratio)) | _trunk(n_vocab) | _nextn_block(p, n_vocab)
    tensors[p + "nextn.shared_head_head.weight"] = draft_output(n_vocab, wrong_every, gain, wrong_gain)
    write(path, "deepseek4", _metadata(True), tensors, name="tiny DeepSeek V4 NextN", variant=vocabulary)


def write_support(
    path: Path,
    *,
    wrong_every: int = 4,
    gain: float = GAIN,
    runner_ratio: float = 0.0,
    storage: Storage = "F32",
    vocabulary: Variant = "standard",
) -> None:
    """The NextN block as a file of its own in llama.cpp's layout.

    Embeddings and head are the target's (give both files the same ``gain`` and ``runner_ratio``); it errs
    in its mixing matrix. So it is, byte for byte, what converting the same file from ds4's layout gives.
    """
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    block = _nextn_block(f"blk.{_LAYERS}.", n_vocab, wrong_every)
    write(
        path,
        "deepseek4",
        _metadata(True),
        _root(target_output(n_vocab, gain, runner_ratio)) | block,
        name="tiny DeepSeek V4 support",
        variant=vocabulary,
        raw_types=_stored(block, storage),
    )


_DS4_NAMES = {"nextn.enorm": "enorm", "nextn.hnorm": "hnorm", "nextn.shared_head_norm": "norm"}


def ds4_tensors(wrong_every: int = 4) -> Tensors:
    """The support block under ds4's names (``mtp.0.*``): eh_proj in two, the hyper-connection head inside."""
    old, new = f"blk.{_LAYERS}.", "mtp.0."
    tensors: Tensors = {}
    for name, values in _nextn_block(old, vocab.N_VOCAB, wrong_every).items():
        stem, suffix = name.removeprefix(old).rsplit(".", 1)
        if stem == "nextn.eh_proj":
            tensors[new + "e_proj.weight"] = np.ascontiguousarray(values[:, :_WIDTH])
            tensors[new + "h_proj.weight"] = np.ascontiguousarray(values[:, _WIDTH:])
        else:
            tensors[f"{new}{_DS4_NAMES.get(stem, stem)}.{suffix}"] = values
    return tensors | _hyper_head(new + "hc_head_")


def write_ds4_support(path: Path, *, wrong_every: int = 4, storage: Storage = "F32") -> None:
    """The support file in ds4's own layout: ``mtp.0.*``, no tokenizer, no embeddings, no output."""
    tensors = ds4_tensors(wrong_every)
    write(
        path,
        "deepseek4_mtp_support",
        {"expert_count": _EXPERTS, "mtp_layer_count": 1, "nextn_predict_layers": 1},
        tensors,
        name="DeepSeek V4 Flash MTP support",
        variant=None,
        prefix="deepseek4",
        raw_types=_stored(tensors, storage),
    )


def _stored(tensors: Tensors, storage: Storage) -> dict[str, GGMLQuantizationType]:
    """Matrices in ``storage`` but for those that the published support file keeps in F32."""
    kept = ("hc_", "ffn_gate_inp", "attn_sinks", "exp_probs_b", "norm")
    kind = GGMLQuantizationType[storage]
    return {name: kind for name in tensors if not any(k in name for k in kept)}


def write_random(path: Path, *, seed: int = 1) -> None:
    """The target's shapes with random weights: no known text, real numbers in every cache."""
    rng = np.random.default_rng(seed)
    tensors = _root(target_output(vocab.N_VOCAB)) | _trunk(vocab.N_VOCAB)
    for name, values in tensors.items():
        if values.dtype == np.float32 and values.ndim > 1:
            tensors[name] = noise(rng, values.shape)
    tensors |= random_table(rng, _WIDTH)
    write(path, "deepseek4", _metadata(False), tensors, name="tiny random DeepSeek V4")
