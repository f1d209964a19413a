"""The parts of the head that torch.compile fuses, as pure functions, and the loss with its own backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3_training.target import rotate


def normed(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """RMS norm computed in float32, given in ``dtype``."""
    x = x.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight).to(dtype)


def project(
    tokens: Tensor,
    g: Tensor,
    token_norm: Tensor,
    feature_norm: Tensor,
    qkv_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    n_head: int,
    n_head_kv: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normed feature, and q (scaled), k, v as (rows, length, heads, head_dim)."""
    dtype = qkv_weight.dtype
    feature = normed(g, feature_norm, eps, dtype)
    x = torch.cat([normed(tokens, token_norm, eps, dtype), feature], -1)
    qkv = F.linear(x, qkv_weight)
    qkv = qkv.view(*qkv.shape[:-1], n_head + 2 * n_head_kv, -1)
    qk = rotate(qkv[..., : n_head + n_head_kv, :], cos, sin)
    q = qk[..., :n_head, :] * qk.shape[-1] ** -0.5
    return feature, q, qk[..., n_head:, :], qkv[..., n_head + n_head_kv :, :]


def softmax(causal: Tensor, own: Tensor, future: Tensor) -> tuple[Tensor, Tensor]:
    """One softmax over two groups of scores: (..., length, length), masked by ``future``, and (..., length,
    slots), where -inf marks an unused slot. Both results in the dtype of ``causal``."""
    dtype = causal.dtype
    causal = causal.float().masked_fill(future, -math.inf)
    top = torch.maximum(causal.amax(-1), own.amax(-1)).detach()[..., None]
    e, e_own = torch.exp(causal - top), torch.exp(own - top)
    scale = 1.0 / (e.sum(-1, keepdim=True) + e_own.sum(-1, keepdim=True))
    return (e * scale).to(dtype), (e_own * scale).to(dtype)


def finish(
    mixed: Tensor,
    residual: Tensor,
    attn_output: Tensor,
    ffn_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    eps: float,
) -> Tensor:
    """The pre-norm hidden rows, float32, from the attention's result and the normed feature."""
    h = residual.float() + F.linear(mixed, attn_output).float()
    gate, up = F.linear(normed(h, ffn_norm, eps, down.dtype), gate_up).chunk(2, -1)
    return h + F.linear(F.silu(gate) * up, down).float()


def loss_forward(logits: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of the logits, and the cross-entropy against the teacher's distribution."""
    z = logits.float()
    lse = torch.logsumexp(z, -1)
    return lse, lse - (z * teacher.float()).sum(-1)


def loss_backward(logits: Tensor, teacher: Tensor, lse: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the weighted cross-entropy in the logits."""
    p = torch.exp(logits.float() - lse[..., None])
    return ((p - teacher.float()) * weight[..., None]).to(logits.dtype)


@dataclass(frozen=True)
class Kernels:
    """One implementation of each part."""

    project: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = project
    softmax: Callable[..., tuple[Tensor, Tensor]] = softmax
    finish: Callable[..., Tensor] = finish
    loss_forward: Callable[..., tuple[Tensor, Tensor]] = loss_forward
    loss_backward: Callable[..., Tensor] = loss_backward


EAGER = Kernels()


def compiled() -> Kernels:
    """The same through torch.compile, for fixed shapes."""
    return Kernels(**{f.name: torch.compile(getattr(EAGER, f.name), dynamic=False) for f in fields(Kernels)})


class WeightedCrossEntropy(torch.autograd.Function):
    """sum(weight * cross-entropy(hidden @ output.T, teacher)), the loss a row, and the argmax a row.

    Written out because autograd would keep several float32 copies of the logits, the largest tensors of all.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, output: Tensor, teacher: Tensor, weight: Tensor, kernels: Kernels
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(hidden, output)
        lse, loss = kernels.loss_forward(logits, teacher)
        ctx.save_for_backward(hidden, output, logits, lse, teacher, weight)
        ctx.kernels = kernels
        best = logits.argmax(-1)
        ctx.mark_non_differentiable(best)
        return (loss * weight).sum(), loss.detach(), best

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden, output, logits, lse, teacher, weight = ctx.saved_tensors
        d = ctx.kernels.loss_backward(logits, teacher, lse, weight * grads[0])
        rows = d.reshape(-1, d.shape[-1])
        return F.linear(d, output.t()), rows.t() @ hidden.reshape(rows.shape[0], -1), None, None, None
