"""The EAGLE-3 head as llama.cpp computes it, and its recursive forward pass for training.

At position p the head takes the token x[p+1] and the feature g[p] and predicts x[p+2]. g[p] is first the
projection of the target's layer inputs at p; from the second draft on it is the head's own hidden row, as it
is when drafting. https://arxiv.org/abs/2503.01840 ("training-time test"); llama.cpp's graph with
``norm_before_residual``: the residual stream begins with the normed feature.

One row of training data is every position's draft at once. Step j of position p attends the step-0 cells of
positions 0..p, whose features are the target's, and its own cells of steps 1..j: exactly the cache that
drafting from position p would have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle3_training.kernels import EAGER, Kernels, normed
from eagle3_training.target import LlamaShape, Rope, Target


@dataclass(frozen=True)
class HeadConfig:
    """Size and wiring of a head."""

    target: LlamaShape
    layers: tuple[int, ...]
    """Layers of the target whose inputs it reads."""
    n_ff: int
    n_draft_vocab: int


def weight_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of a head by name. The decoder's input is the token's and the feature's normed rows side
    by side, hence 2 * n_embd columns of ``qkv``."""
    s = config.target
    return {
        "fc": (s.n_embd, len(config.layers) * s.n_embd),
        "qkv": (s.n_qkv * s.head_dim, 2 * s.n_embd),
        "attn_output": (s.n_embd, s.n_head * s.head_dim),
        "gate_up": (2 * config.n_ff, s.n_embd),
        "down": (s.n_embd, config.n_ff),
        "token_norm": (s.n_embd,),
        "feature_norm": (s.n_embd,),
        "ffn_norm": (s.n_embd,),
        "output_norm": (s.n_embd,),
        "output": (config.n_draft_vocab, s.n_embd),
    }


NORMS = ("token_norm", "feature_norm", "ffn_norm", "output_norm")


def default_layers(n_layer: int) -> tuple[int, int, int]:
    """The middle, the 70 % and the last layer: 15, 21, 29 of 30."""
    return n_layer // 2, n_layer * 7 // 10, n_layer - 1


def initial_weights(
    config: HeadConfig,
    target: Target,
    vocabulary: Tensor,
    feature_std: Tensor,
    last_rms: float,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Weights to begin with, taken from the target where it has a part of the same kind.

    The feature starts as the last layer's input, the decoder layer as the target's last layer, the output as
    the target's rows of the draft vocabulary. feature_std: (layers * n_embd) deviations of the layer inputs;
    last_rms: typical RMS of the last one. Normed features are smaller than the target's residual stream by
    that factor, so what the layer adds is scaled down by it.
    """
    s, ff = config.target, config.n_ff
    shapes = weight_shapes(config)
    generator = torch.Generator(device=target.device).manual_seed(seed)

    def noise(name: str, std: float) -> Tensor:
        return torch.randn(shapes[name], device=target.device, generator=generator) * std

    layer = target.layers[-1]
    fc = noise("fc", 0.3 / math.sqrt(shapes["fc"][1]))
    last = feature_std[-s.n_embd :]
    fc[:, -s.n_embd :] += torch.diag(last / last.mean())
    qkv = noise("qkv", 0.02)
    qkv[:, : s.n_embd] *= 0.5
    qkv[:, s.n_embd :] = layer.qkv.float() * layer.attn_norm
    noise("attn_output", 0.02)  # drawn and dropped, so that a seed gives the same gate_up and down
    gate_up, down = noise("gate_up", 0.03), noise("down", 0.02)
    shared = min(ff, s.n_ff)
    gate_up[:shared] = layer.gate_up[:shared].float()
    gate_up[ff : ff + shared] = layer.gate_up[s.n_ff : s.n_ff + shared].float()
    down[:] = 0
    down[:, :shared] = layer.down[:, :shared].float() / last_rms
    one = torch.ones(s.n_embd, device=target.device)
    return {
        "fc": fc,
        "qkv": qkv,
        "attn_output": layer.attn_output.float() / last_rms,
        "gate_up": gate_up,
        "down": down,
        "token_norm": one,
        "feature_norm": one,
        "ffn_norm": layer.ffn_norm,
        "output_norm": target.output_norm,
        "output": target.output[vocabulary],
    }


class Head(nn.Module):
    """An EAGLE-3 head. Parameters are float32; matrix products run in ``dtype``."""

    fc: Tensor
    qkv: Tensor
    attn_output: Tensor
    gate_up: Tensor
    down: Tensor
    token_norm: Tensor
    feature_norm: Tensor
    ffn_norm: Tensor
    output_norm: Tensor
    output: Tensor

    def __init__(
        self,
        config: HeadConfig,
        weights: dict[str, Tensor],
        vocabulary: Tensor,
        target: Target,
        *,
        input_scale: Tensor | None = None,
        kernels: Kernels = EAGER,
    ) -> None:
        """weights: as weight_shapes names them. vocabulary: (n_draft_vocab) target ids of the head's outputs.
        input_scale: (layers * n_embd) factors on the layer inputs, folded into fc on export; 1 without."""
        super().__init__()
        self.config, self.dtype, self.kernels = config, target.dtype, kernels
        for name, shape in weight_shapes(config).items():
            if tuple(weights[name].shape) != shape:
                raise ValueError(f"{name} is {tuple(weights[name].shape)}, not {shape}")
            self.register_parameter(name, nn.Parameter(weights[name].float().contiguous().clone()))
        if input_scale is None:
            input_scale = torch.ones(weight_shapes(config)["fc"][1], device=target.device)
        self.input_scale: Tensor = input_scale
        self.vocabulary = vocabulary
        self.embedding: Tensor = target.embedding_cast
        self.rope: Rope = target.rope
        self._target = (target,)  # in a tuple: the target is no part of what is trained

    def copy(self) -> Head:
        """A head with its own parameters of the same values and the plain kernels."""
        weights = {name: p.detach() for name, p in self.named_parameters()}
        return Head(self.config, weights, self.vocabulary, self._target[0], input_scale=self.input_scale)

    def fused(self, inputs: Tensor) -> Tensor:
        """The features g (rows, length, n_embd) of the layer inputs (rows, length, layers * n_embd)."""
        g = F.linear(inputs.to(self.dtype), (self.fc * self.input_scale).to(self.dtype))
        # Position 0 carries activations far larger than any other; its gradient would drown the rest.
        return torch.cat([g[:, :1].detach(), g[:, 1:]], 1)

    def unroll(self, ids: Tensor, inputs: Tensor, positions: Tensor, steps: int) -> Iterator[Tensor]:
        """The pre-norm hidden rows (rows, length, n_embd) of each draft step.

        ids: (rows, length) true tokens; inputs: the target's layer inputs there; positions: (rows, length)
        rope positions. Row p of step j consumes the true token p + 1 + j: a draft counts only while all
        drafts before it were right.
        """
        s, kernels, (rows, length) = self.config.target, self.kernels, ids.shape
        group, slots = s.n_head // s.n_head_kv, max(steps - 1, 1)
        g = self.fused(inputs)
        qkv_weight, attn_output, gate_up, down = (
            w.to(self.dtype) for w in (self.qkv, self.attn_output, self.gate_up, self.down)
        )
        future = torch.ones(length, length, device=ids.device, dtype=torch.bool).triu(1)
        padded = F.pad(ids, (0, steps + 1))
        first_keys = first_values = torch.empty(0)
        own_keys: list[Tensor] = []
        own_values: list[Tensor] = []
        for j in range(steps):
            cos, sin = (t[positions + j][..., None, :] for t in (self.rope.cos, self.rope.sin))
            tokens = F.embedding(padded[:, 1 + j : 1 + j + length], self.embedding)
            residual, q, k, v = kernels.project(
                tokens,
                g,
                self.token_norm,
                self.feature_norm,
                qkv_weight,
                cos,
                sin,
                s.n_head,
                s.n_head_kv,
                s.rms_eps,
            )
            q = q.reshape(rows, length, s.n_head_kv, group, s.head_dim)
            q = q.permute(0, 2, 3, 1, 4)  # (rows, kv heads, group, length, head_dim)
            k, v = k.transpose(1, 2), v.transpose(1, 2)
            if j == 0:
                first_keys, first_values = k, v
            else:
                own_keys.append(k)
                own_values.append(v)
            # Unused slots keep the shape, so that compiled kernels serve every step.
            own = torch.full((*q.shape[:-1], slots - len(own_keys)), -math.inf, device=ids.device)
            scores = [(q * key[:, :, None]).sum(-1).float() for key in own_keys]
            own = torch.cat([torch.stack(scores, -1), own], -1) if scores else own
            flat = (rows, s.n_head_kv, group * length)
            causal = torch.matmul(q.reshape(*flat, s.head_dim), first_keys.transpose(-1, -2))
            p, p_own = kernels.softmax(causal.view(*q.shape[:-1], length), own, future)
            mixed = torch.matmul(p.reshape(*flat, length), first_values).view(q.shape)
            for i, value in enumerate(own_values):
                mixed = mixed + p_own[..., i, None] * value[:, :, None]
            mixed = mixed.permute(0, 3, 1, 2, 4).reshape(rows, length, -1)
            g = kernels.finish(mixed, residual, attn_output, self.ffn_norm, gate_up, down, s.rms_eps)
            yield g

    def output_rows(self, hidden: Tensor) -> Tensor:
        """The normed rows that the output projection takes."""
        return normed(hidden, self.output_norm, self.config.target.rms_eps, self.dtype)

    @torch.no_grad()
    def logits(self, ids: Tensor, inputs: Tensor, positions: Tensor, steps: int) -> Iterator[Tensor]:
        """Logits over the draft vocabulary, (rows, length, n_draft_vocab), of each draft step."""
        output = self.output.to(self.dtype)
        for hidden in self.unroll(ids, inputs, positions, steps):
            yield F.linear(self.output_rows(hidden), output)

    @torch.no_grad()
    def drafts(self, ids: Tensor, inputs: Tensor, positions: Tensor, steps: int) -> Tensor:
        """Drafted target ids (rows, length, steps): entry (p, j) is for token p + 2 + j."""
        chosen = [logits.argmax(-1) for logits in self.logits(ids, inputs, positions, steps)]
        return self.vocabulary[torch.stack(chosen, -1)]
