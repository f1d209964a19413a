"""What the head learns from: the target's states at every position, and the loss over all draft steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3_training.head import Head
from eagle3_training.kernels import WeightedCrossEntropy
from eagle3_training.target import Target


@dataclass
class States:
    """What the target computes over rows of tokens. (rows, length, ...) each."""

    inputs: Tensor
    """Inputs of the chosen layers side by side."""
    hidden: Tensor
    """Final normed hidden rows, from which the teacher's distribution comes."""
    argmax: Tensor
    """The target's choice after each position, int32."""


def target_states(target: Target, ids: Tensor, layers: tuple[int, ...], *, chunk: int = 32) -> States:
    """The states of rows of tokens, on the target's device. Kept for a whole data set they take
    2 * (layers + 1) * n_embd bytes a position in bfloat16."""
    rows, length = ids.shape
    n_embd = target.shape.n_embd

    def empty(*width: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(rows, length, *width, device=target.device, dtype=dtype)

    states = States(
        empty(len(layers) * n_embd, dtype=target.dtype),
        empty(n_embd, dtype=target.dtype),
        empty(dtype=torch.int32),
    )
    for i in range(0, rows, chunk):
        part = slice(i, i + chunk)
        inputs, hidden = target.forward(ids[part].to(target.device).long(), layers)
        if layers:
            states.inputs[part] = torch.cat(inputs, -1).to(target.dtype)
        states.hidden[part] = hidden
        for k in range(0, length, 512):  # logits of a few positions at a time: they are the largest tensors
            states.argmax[part, k : k + 512] = target.logits(hidden[:, k : k + 512]).argmax(-1).int()
    return states


@dataclass
class Batch:
    """Rows to train on, with the target's states."""

    ids: Tensor
    states: States
    weights: Tensor
    """(rows, length): what predicting the token after each position counts."""
    positions: Tensor


@dataclass
class Objective:
    """The loss: for each draft step the cross-entropy against a mixture of the target's distribution over the
    draft vocabulary (``soft``) and its argmax (1 - soft), averaged over the positions by their weights, and
    added up over the steps by ``step_weights``. A position whose argmax lies outside the draft vocabulary
    teaches nothing and counts as a miss."""

    head: Head
    target: Target
    soft: float
    step_weights: tuple[float, ...]

    def __post_init__(self) -> None:
        self._output = self.target.output_cast[self.head.vocabulary]
        self._index = torch.full((self.target.shape.n_vocab,), -1, device=self.target.device)
        self._index[self.head.vocabulary] = torch.arange(len(self.head.vocabulary), device=self.target.device)

    def teacher(self, hidden: Tensor, best: Tensor) -> Tensor:
        """The mixture (rows, length, n_draft_vocab). best: draft index of the target's argmax, -1 outside."""
        p = torch.softmax(F.linear(hidden, self._output).float(), -1) * self.soft
        hard = torch.full_like(p[..., :1], 1 - self.soft)
        return p.scatter_add_(-1, best.clamp(min=0)[..., None], hard).to(self.head.dtype)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and (steps, 2) figures: mean loss of each step and its conditional acceptance, which is
        the share of right drafts among those whose earlier drafts were all right."""
        steps, (rows, length) = len(self.step_weights), batch.ids.shape
        best = self._index[batch.states.argmax.long()]
        # Row p of step j predicts what follows position p + 1 + j, so everything is read that far ahead.
        ahead = (0, steps + 1)
        teacher = F.pad(self.teacher(batch.states.hidden, best), (0, 0, *ahead))
        all_weights = F.pad(batch.weights, ahead)
        weights = F.pad(batch.weights * (best >= 0), ahead)
        best = F.pad(best, ahead, value=-1)
        output = self.head.output.to(self.head.dtype)
        alive = torch.ones(rows, length, device=batch.ids.device, dtype=torch.bool)
        total, figures = torch.zeros((), device=batch.ids.device), []
        unrolled = self.head.unroll(batch.ids, batch.states.inputs, batch.positions, steps)
        for j, hidden in enumerate(unrolled):
            part = slice(1 + j, 1 + j + length)
            weight = weights[:, part]
            scaled = weight * (self.step_weights[j] / weight.sum().clamp(min=1))
            loss, by_row, drafted = WeightedCrossEntropy.apply(  # type: ignore[no-untyped-call]
                self.head.output_rows(hidden), output, teacher[:, part], scaled, self.head.kernels
            )
            total = total + loss
            with torch.no_grad():
                right, counted = drafted == best[:, part], all_weights[:, part] * alive
                figures += [
                    (by_row * weight).sum() / weight.sum().clamp(min=1e-6),
                    (right * counted).sum() / counted.sum().clamp(min=1e-6),
                ]
                alive = alive & right
        return total, torch.stack(figures).view(steps, 2)
