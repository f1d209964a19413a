"""A small DeepSeek V4 trunk, and an MTP support file in ds4's layout that fits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from kits import gguf as kit

from ds4chat.models.convert import BLOCK, HEAD, NORMS, PROJECTIONS

STREAMS = 4
COMPARED = {
    "attn_norm": (32,),
    "ffn_norm": (32,),
    "attn_q_a": (32, 8),
    "ffn_gate_inp": (32, 4),
    "ffn_up_exps": (32, 16, 4),
}
"""Tensors of the last trunk block whose shapes the support file's are compared with."""


def main_model(path: Path, n_layer: int = 3, **more: Any) -> Path:
    """A DeepSeek V4 trunk of which the last layer has what the support file is compared with."""
    own = {
        "hyper_connection.count": STREAMS,
        "expert_count": 4,
        "expert_used_count": 2,
        "attention.compress_ratios": [0, 4, 128][:n_layer],
        "swiglu_clamp_exp": [7.0, 8.0, 9.0][:n_layer],
        "rope.dimension_sections": [1, 2, 3, 4],
    } | more.pop("own", {})
    tensors: dict[str, Any] = {f"blk.{n_layer - 1}.{stem}.weight": dims for stem, dims in COMPARED.items()}
    return kit.whole(path, "deepseek4", n_layer, own=own, tensors=tensors | more.pop("tensors", {}), **more)


def ds4_tensors(rng: np.random.Generator) -> dict[str, Any]:
    """All tensors of a support file in ds4's layout; the ones not compared are one value long."""
    tensors: dict[str, Any] = {}
    for stem in BLOCK:
        dims = COMPARED.get(stem.removesuffix(".weight"), (1,))
        tensors[stem] = rng.standard_normal(dims[::-1], np.float32)
    for stem in NORMS:
        tensors[stem] = rng.standard_normal(32, np.float32)
    for stem in PROJECTIONS:
        tensors[stem] = rng.standard_normal((32, 32), np.float32)
    shapes = ((STREAMS, STREAMS * 32), (STREAMS,), (1,))
    for stem, shape in zip(HEAD, shapes, strict=True):
        tensors[stem] = rng.standard_normal(shape, np.float32)
    return {f"mtp.0.{stem}": values for stem, values in tensors.items()}


def ds4_support(path: Path, **more: Any) -> Path:
    tensors = ds4_tensors(np.random.default_rng(1)) | more.pop("tensors", {})
    keys = {
        "deepseek4.expert_count": 4,
        "deepseek4.mtp_layer_count": 1,
        "deepseek4.nextn_predict_layers": 1,
    } | more.pop("keys", {})
    tensors = {name: values for name, values in tensors.items() if values is not None}
    own = {"block_count": None, "embedding_length": None, "context_length": None}
    return kit.write(path, "deepseek4_mtp_support", tensors=tensors, own=own, keys=keys, tokens=None, **more)
