"""Recursive EAGLE-3 drafts of one text, once through llama.cpp's own graph and once through PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from eagle3_training.head import Head
from eagle3_training.objective import target_states
from eagle3_training.target import Target

from ds4chat.engine.llama import CacheConfig, Context, Floats, Model


@dataclass
class Drafted:
    """Logits over the target's vocabulary, -inf outside the draft vocabulary reduced to the finite ones."""

    first: Floats
    """First draft behind every position, (len(ids) - 1, n_draft_vocab)."""
    later: list[Floats]
    """Second, third, ... draft behind the last position, (n_draft_vocab) each."""
    tokens: list[int]
    """The drafts behind the last position."""


def llama_drafts(
    target_path: Path, head_path: Path, ids: Sequence[int], steps: int, *, feature_shift: int = 0
) -> Drafted:
    """Drafts of llama.cpp's eagle3 graph. ``feature_shift`` pairs each token with a feature that many
    positions too early: what a wrong pairing would give."""
    n = len(ids)
    target_model, model = Model(str(target_path), gpu_layers=0), Model(str(head_path), gpu_layers=0)
    target = _context(target_model, n + steps)
    layers = model.eagle3_layers
    head = _context(
        model,
        n + steps,
        other=target,
        embd_width=model.n_embd,
        encoder_width=len(layers) * target_model.n_embd,
    )
    try:
        target.enable_layer_inputs(layers)
        head.enable_nextn(True, masked=True)
        target.decode(list(ids), 0)
        inputs = target.layer_inputs(n).swapaxes(0, 1).reshape(n, -1)
        features = head.encode(inputs)[: n - 1]
        head.decode(list(ids[1:]), 0, embd=np.roll(features, feature_shift, axis=0))
        rows = head.logits(n - 1)
        finite = np.isfinite(rows[0])
        first, tokens, later = rows[:, finite].copy(), [int(rows[-1].argmax())], []
        hidden = head.nextn(n - 1, model.n_embd)[-1:].copy()
        for j in range(1, steps):
            head.decode(tokens[-1:], n - 2 + j, embd=hidden)
            row = head.logits(1)[0]
            tokens.append(int(row.argmax()))
            later.append(row[finite].copy())
            hidden = head.nextn(1, model.n_embd).copy()
        return Drafted(first, later, tokens)
    finally:
        for part in (head, target, model, target_model):
            part.close()


def _context(model: Model, tokens: int, **options: Any) -> Context:
    """A context whose cache keeps float32, so that only the order of summation differs from PyTorch."""
    cells = tokens + 8
    return Context(
        model,
        n_ctx=cells,
        n_batch=cells,
        n_outputs=cells,
        threads=2,
        cache=CacheConfig("f32", "f32", "off"),
        **options,
    )


def torch_drafts(head: Head, target: Target, ids: Sequence[int], drafted: Sequence[int]) -> Drafted:
    """Drafts of the PyTorch head, which takes ``drafted`` for the true continuation of the text."""
    n, steps = len(ids), len(drafted)
    row = torch.tensor([[*ids, *drafted]])
    inputs = target_states(target, row, head.config.layers).inputs
    positions = torch.arange(row.shape[1])[None]
    logits = [step[0].numpy() for step in head.logits(row, inputs, positions, steps)]
    tokens = [int(head.vocabulary[int(step[n - 2].argmax())]) for step in logits]
    return Drafted(logits[0][: n - 1], [step[n - 2] for step in logits[1:]], tokens)
