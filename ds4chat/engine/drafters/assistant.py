"""The Gemma 4 assistant: a drafter without a cache, which attends the target's.

It reads the target's hidden row beside each token, as NextN does, but keeps no cells: every draft is decoded
at the position of the last token, and the target's cache must hold exactly the committed tokens meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds4chat.engine.drafters.base import Draft, DrafterState, Policy
from ds4chat.engine.judge import propose
from ds4chat.engine.llama import CacheConfig, Context, Floats, LlamaError, Model


class Assistant:
    """Drafts from the target's own cache. ``cache`` must be the target's, whose types it shares."""

    kind = "gemma4-assistant"

    def __init__(
        self, target: Context, model: Model, *, max_depth: int, threads: int, cache: CacheConfig
    ) -> None:
        self.path = model.path
        self.max_depth = max_depth
        self.note = ""
        self._target = target
        self._model = model
        self._width = model.n_embd_out
        if self._width != target.model.n_embd_out:
            raise LlamaError(
                f"The assistant's hidden rows are {self._width} wide, the target's "
                f"{target.model.n_embd_out}: they do not belong together."
            )
        self._context = Context(
            model,
            n_ctx=target.n_ctx,
            n_batch=target.n_batch,
            n_outputs=1,
            threads=threads,
            mtp=True,
            other=target,
            embd_width=self._width,
            cache=cache,
        )
        if not self._context.shares_memory:
            self._context.close()
            raise LlamaError(
                "This build of llama.cpp did not give the assistant the target's cache. Install "
                "llama-cpp-python 0.3.36."
            )
        self._context.enable_nextn(True, masked=True)
        target.enable_nextn(True, masked=False)
        self._observed = 0
        self._zeros = np.zeros(self._width, np.float32)
        self._feature: Floats | None = self._zeros

    def rewind(self, keep: int) -> int:
        if keep < self._observed or self._feature is None:
            # f_{keep-1} is gone, so the target decodes that token again.
            keep = max(keep - 1, 0)
            self._observed = keep
            self._feature = None if keep else self._zeros
        return keep

    def observe(self, tokens: Sequence[int], pos: int, keep: int) -> None:
        if keep:
            self._feature = self._target.nextn(len(tokens), self._width)[keep - 1].copy()
            self._observed = pos + keep

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        draft = Draft(gaps=[], probs=[], source=self.kind)
        n = len(committed)
        if self._observed != n or self._feature is None:
            raise LlamaError(f"the assistant has seen {self._observed} of {n} tokens")
        hidden, token = self._feature, last
        while len(draft.tokens) < depth:
            self._context.decode([token], n, embd=hidden[None])
            if not policy.extend(draft, propose(self._context.logits(1)[0])):
                break
            hidden = self._context.nextn(1, self._width)[0].copy()
            token = draft.tokens[-1]
        return draft

    def behind(self, n: int) -> int:
        return 0

    def state(self) -> DrafterState:
        features = self._zeros[None][:0] if self._feature is None else self._feature[None]
        return DrafterState(0, self._observed, [], features, b"")

    def restore(self, state: DrafterState) -> bool:
        if state.features.shape != (1, self._width):
            return False
        self._feature, self._observed = state.features[0], state.observed
        return True

    def close(self) -> None:
        self._target.enable_nextn(False, masked=True)
        self._context.close()
        self._model.close()
