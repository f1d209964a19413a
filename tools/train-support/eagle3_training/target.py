"""A llama-type target in PyTorch, read from its GGUF: layer inputs, final hidden rows and logits.

Training needs the target's numbers as llama.cpp computes them, quantisation included, so the weights are
those of the GGUF dequantised, not those of the original checkpoint. The q and k rows of a llama-type GGUF
are permuted so that rotary embedding turns neighbouring pairs (2i, 2i+1); the rope here does the same, and
no weight is permuted back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3_training.errors import TrainingError


@dataclass(frozen=True)
class LlamaShape:
    """The hyperparameters of a llama-type model."""

    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_vocab: int
    n_ctx: int
    rms_eps: float
    rope_base: float

    @property
    def n_qk(self) -> int:
        """Query and key heads together: those that the rope turns."""
        return self.n_head + self.n_head_kv

    @property
    def n_qkv(self) -> int:
        """Query, key and value heads together."""
        return self.n_head + 2 * self.n_head_kv


def open_gguf(path: str | Path) -> Any:
    """A gguf.GGUFReader of the file. Raises TrainingError for a file that is missing or not GGUF."""
    try:
        return gguf.GGUFReader(path)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read as a GGUF file: {error}") from None


def field(reader: Any, key: str, default: Any = None) -> Any:
    """The value of a metadata key, or ``default``. Raises TrainingError when there is neither."""
    entry = reader.get_field(key)
    if entry is not None:
        return entry.contents()
    if default is None:
        raise TrainingError(f"The GGUF lacks the key {key!r}, which a llama-type model has.")
    return default


def read_shape(reader: Any) -> LlamaShape:
    """The shape in a GGUF's metadata. Raises TrainingError for what the forward pass here lacks."""
    arch = field(reader, "general.architecture")
    if arch != "llama":
        raise TrainingError(
            f"The target's architecture is {arch!r}. These scripts compute 'llama' alone: for another one, "
            "change target.py (see the README, 'Another target')."
        )
    names = {t.name for t in reader.tensors}
    if any(n.endswith(("_exps.weight", ".bias")) for n in names) or "rope_freqs.weight" in names:
        raise TrainingError(
            "The target has experts, biases or scaled rope frequencies, which target.py does not compute."
        )
    n_embd, n_head = field(reader, "llama.embedding_length"), field(reader, "llama.attention.head_count")
    head_dim = field(reader, "llama.attention.key_length", n_embd // n_head)
    if field(reader, "llama.rope.dimension_count", head_dim) != head_dim:
        raise TrainingError("The target turns only a part of each head, which target.py does not compute.")
    if field(reader, "llama.rope.scaling.type", "none") not in ("", "none"):
        raise TrainingError("The target scales its rope positions, which target.py does not compute.")
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    return LlamaShape(
        n_layer=field(reader, "llama.block_count"),
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=field(reader, "llama.attention.head_count_kv", n_head),
        head_dim=head_dim,
        n_ff=field(reader, "llama.feed_forward_length"),
        n_vocab=int(embedding.shape[1]),
        n_ctx=field(reader, "llama.context_length"),
        rms_eps=field(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_base=field(reader, "llama.rope.freq_base", 10000.0),
    )


def dequantised(reader: Any) -> dict[str, Tensor]:
    """Every tensor of a GGUF by name, float32 (int64 stays), in PyTorch's order of dimensions."""
    weights = {}
    for t in reader.tensors:
        if t.tensor_type == gguf.GGMLQuantizationType.I64:
            values = np.array(t.data)
        else:
            values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        weights[t.name] = torch.from_numpy(values.reshape([int(n) for n in reversed(t.shape)]))
    return weights


@dataclass(frozen=True)
class Rope:
    """Cosines and sines of rotary embedding, (positions, head_dim / 2) each."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def table(cls, shape: LlamaShape, positions: int, device: str) -> Rope:
        """The table of the first ``positions`` positions, computed in double precision."""
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device=device) / shape.head_dim
        angle = torch.arange(positions, dtype=torch.float64, device=device)[:, None] / shape.rope_base**half
        return cls(angle.cos().float(), angle.sin().float())


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (..., head_dim) with its pairs (2i, 2i+1) turned; cos and sin broadcast to (..., head_dim / 2)."""
    a, b = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)


@dataclass(frozen=True)
class Layer:
    """The weights of one decoder layer, q/k/v and gate/up stacked."""

    attn_norm: Tensor
    ffn_norm: Tensor
    qkv: Tensor
    attn_output: Tensor
    gate_up: Tensor
    down: Tensor


class Target:
    """The target's forward pass. Residual stream and norms in float32, matrix products in ``dtype``."""

    def __init__(
        self, shape: LlamaShape, weights: dict[str, Tensor], *, device: str = "cpu", dtype: torch.dtype
    ) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.embedding = weights["token_embd.weight"].to(device)
        self.output = weights.get("output.weight", weights["token_embd.weight"]).to(device)
        """Output projection, float32; the token embedding where the model ties the two."""
        self.embedding_cast = self.embedding.to(dtype)
        self.output_cast = self.output.to(dtype)
        self.output_norm = weights["output_norm.weight"].to(device)
        self.layers = [self._layer(weights, f"blk.{i}.") for i in range(shape.n_layer)]
        # Rows get random position gaps and drafts go past the last row, hence the margin.
        self.rope = Rope.table(shape, shape.n_ctx + 1024, device)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Target:
        """The target in a GGUF of any quantisation. Raises TrainingError."""
        reader = open_gguf(path)
        return cls(read_shape(reader), dequantised(reader), device=device, dtype=dtype)

    def _layer(self, w: dict[str, Tensor], block: str) -> Layer:
        def cast(*names: str) -> Tensor:
            return torch.cat([w[f"{block}{n}.weight"] for n in names]).to(self.device, self.dtype)

        return Layer(
            attn_norm=w[f"{block}attn_norm.weight"].to(self.device),
            ffn_norm=w[f"{block}ffn_norm.weight"].to(self.device),
            qkv=cast("attn_q", "attn_k", "attn_v"),
            attn_output=cast("attn_output"),
            gate_up=cast("ffn_gate", "ffn_up"),
            down=cast("ffn_down"),
        )

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm of float32 rows, in the dtype of the matrix products."""
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.rms_eps).to(self.dtype)

    def feed_forward(self, x: Tensor, layer: Layer) -> Tensor:
        """The residual stream x after the layer's gated feed-forward part."""
        gate, up = F.linear(self.norm(x, layer.ffn_norm), layer.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer.down).float()

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., n_vocab) of final normed hidden rows, in the dtype of the matrix products."""
        return F.linear(hidden, self.output_cast)

    @torch.no_grad()
    def forward(self, ids: Tensor, layers: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        """Rows of tokens through the model.

        ids: (rows, length). Returns the float32 inputs of ``layers``, (rows, length, n_embd) each, in the
        order asked for, and the final normed hidden rows in ``dtype``.
        """
        s, (rows, length) = self.shape, ids.shape
        x = self.embedding[ids]
        cos, sin = self.rope.cos[:length, None], self.rope.sin[:length, None]
        inputs = {}
        for i, layer in enumerate(self.layers):
            if i in layers:
                inputs[i] = x.clone()
            qkv = F.linear(self.norm(x, layer.attn_norm), layer.qkv).view(rows, length, s.n_qkv, s.head_dim)
            qk = rotate(qkv[:, :, : s.n_qk], cos, sin)
            attended = F.scaled_dot_product_attention(
                qk[:, :, : s.n_head].transpose(1, 2),
                qk[:, :, s.n_head :].transpose(1, 2),
                qkv[:, :, s.n_qk :].transpose(1, 2),
                is_causal=True,
                enable_gqa=True,
            )
            x = x + F.linear(attended.transpose(1, 2).flatten(2), layer.attn_output).float()
            x = self.feed_forward(x, layer)
        return [inputs[i] for i in layers], self.norm(x, self.output_norm)
