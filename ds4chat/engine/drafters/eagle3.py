"""EAGLE-3: a trained one-layer drafter that reads the inputs of a few of the target's layers.

The layer inputs of a position, side by side, go through the drafter's encoder (one projection) to the
feature g; the cell of position p holds (token x_{p+1}, g_p). https://arxiv.org/abs/2503.01840
"""

from __future__ import annotations

import math

from ds4chat.engine.drafters.hidden import FLUSH, HiddenDrafter
from ds4chat.engine.llama import CacheConfig, Context, Floats, Model


class Eagle3(HiddenDrafter):
    """An EAGLE-3 support model beside a target whose architecture publishes its layer inputs."""

    kind = "eagle3"
    shift = 1

    def __init__(
        self, target: Context, model: Model, *, max_depth: int, threads: int, cache: CacheConfig
    ) -> None:
        self._layers = model.eagle3_layers
        hidden = len(self._layers), target.model.n_embd
        context = Context(
            model,
            n_ctx=target.n_ctx,
            n_batch=target.n_batch,
            n_outputs=FLUSH,
            threads=threads,
            other=target,
            embd_width=model.n_embd,
            encoder_width=math.prod(hidden),
            cache=cache,
        )
        super().__init__(target, model, context, width=model.n_embd, hidden=hidden, max_depth=max_depth)
        target.enable_layer_inputs(self._layers)

    def _target_rows(self, rows: int) -> Floats:
        return self._target.layer_inputs(rows)

    def _encoded(self, hidden: Floats) -> Floats:
        return self._context.encode(hidden)

    def close(self) -> None:
        self._target.enable_layer_inputs(self._layers, on=False)
        super().close()
