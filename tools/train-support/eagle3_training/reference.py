"""llama.cpp beside the PyTorch target, through ds4chat's engine: its tokenizer, its logits to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ds4chat.engine.llama import Context, Floats, LlamaError, Model
from eagle3_training.errors import TrainingError
from eagle3_training.target import Target

MIN_AGREEMENT = 0.95
MAX_KL = 0.02


@contextmanager
def llama_model(path: Path) -> Iterator[Model]:
    """The GGUF in llama.cpp, on the CPU. Raises TrainingError."""
    if not path.is_file():
        raise TrainingError(f"There is no file {path}.")
    try:
        model = Model(str(path), gpu_layers=0)
    except LlamaError as error:
        raise TrainingError(str(error)) from None
    try:
        yield model
    finally:
        model.close()


def tokenize(model: Model, text: str, special: bool) -> list[int]:
    """Token ids of a text without any token put before or after it."""
    ids: list[int] = model.tokenize(text, add_special=False, parse_special=special)
    return ids


def greedy_text(model: Model, prompt: Sequence[int], n: int, *, threads: int = 2) -> tuple[list[int], Floats]:
    """The prompt with n greedy tokens behind it, and llama.cpp's logits (tokens, n_vocab) at each of them,
    computed in one batch as a prefill."""
    total = len(prompt) + n
    context = Context(model, n_ctx=total + 8, n_batch=total + 8, n_outputs=total + 8, threads=threads)
    try:
        ids = list(prompt)
        context.decode(ids, 0, outputs="last")
        for _ in range(n):
            ids.append(int(context.logits(1)[0].argmax()))
            context.decode(ids[-1:], len(ids) - 1, outputs="last")
        context.clear()
        context.decode(ids, 0)
        return ids, context.logits(len(ids)).copy()
    finally:
        context.close()


@dataclass(frozen=True)
class Agreement:
    """How well the PyTorch target matches llama.cpp on one text."""

    argmax: float
    """Share of the positions with the same likeliest token."""
    kl: float
    """Mean KL divergence of the PyTorch distribution from llama.cpp's, in nats."""

    @property
    def good(self) -> bool:
        """Good enough to train on. A wrong rope, permutation or norm gives an agreement near 0."""
        return self.argmax >= MIN_AGREEMENT and self.kl <= MAX_KL


def compare(target: Target, ids: Sequence[int], logits: Floats) -> Agreement:
    """Agreement on a text, whose logits (len(ids), n_vocab) llama.cpp computed."""
    _, hidden = target.forward(torch.tensor([list(ids)], device=target.device), ())
    ours: Tensor = target.logits(hidden)[0].float().cpu()
    theirs = torch.from_numpy(np.asarray(logits, np.float32))
    same = (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()
    log_p, log_q = theirs.log_softmax(-1), ours.log_softmax(-1)
    return Agreement(same, (log_p.exp() * (log_p - log_q)).sum(-1).mean().item())
