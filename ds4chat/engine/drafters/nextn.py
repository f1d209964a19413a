"""NextN: the model's own multi-token-prediction block, inside the target or in a support file.

Its feature is the target's NextN hidden row (after the output norm where the architecture has it so); the
row of position p-1 goes with the token of position p, and position 0 takes zeros.
"""

from __future__ import annotations

from ds4chat.engine.drafters.base import STEP
from ds4chat.engine.drafters.hidden import HiddenDrafter
from ds4chat.engine.llama import CacheConfig, Context, Floats, LlamaError, Model


class NextN(HiddenDrafter):
    """One NextN block. ``model`` is the support file's model, or the target's own for an embedded block."""

    shift = 0

    def __init__(
        self, target: Context, model: Model, *, max_depth: int, threads: int, cache: CacheConfig
    ) -> None:
        self._embedded = model is target.model
        self.kind = "nextn-embedded" if self._embedded else "nextn-support"
        width = model.n_embd_out
        if width != target.model.n_embd_out:
            raise LlamaError(
                f"The support model's hidden rows are {width} wide, the target's {target.model.n_embd_out}: "
                "they do not belong together."
            )
        context = Context(
            model,
            n_ctx=target.n_ctx,
            n_batch=target.n_batch,
            n_outputs=STEP + 1,
            threads=threads,
            mtp=True,
            other=target,
            embd_width=width,
            cache=cache,
        )
        super().__init__(target, model, context, width=width, hidden=(1, width), max_depth=max_depth)
        target.enable_nextn(True, masked=False)
        if self._embedded:
            self.path = ""

    def _target_rows(self, rows: int) -> Floats:
        return self._target.nextn(rows, self._width)[None]

    def close(self) -> None:
        self._target.enable_nextn(False, masked=True)
        self._context.close()
        if not self._embedded:
            self._model.close()
