"""Draft model: a smaller whole model with the target's vocabulary, run ahead of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds4chat.engine.drafters.base import STEP, Draft, DrafterState, Policy
from ds4chat.engine.judge import propose
from ds4chat.engine.llama import CacheConfig, Context, DecodeError, LlamaError, Model


class DraftModel:
    """The classic draft pair. It catches up when it drafts, so a paused drafter costs nothing.

    Its cache holds the first ``_known`` committed tokens, and after them ``_drafted``: what it decoded for
    the last draft, of which the committed tokens will be kept.
    """

    kind = "draft-model"

    def __init__(
        self, target: Context, model: Model, *, max_depth: int, threads: int, cache: CacheConfig
    ) -> None:
        if model.recurrent:
            raise LlamaError(f"{model.path} has a recurrent state, which a draft model cannot roll back.")
        self.path = model.path
        self.max_depth = max_depth
        self.note = ""
        self._model = model
        self._context = Context(
            model,
            n_ctx=target.n_ctx,
            n_batch=target.n_batch,
            n_outputs=1,
            threads=threads,
            cache=cache,
        )
        self._known = 0
        self._drafted: list[int] = []

    def rewind(self, keep: int) -> int:
        self._known = min(self._known, keep)
        self._drop_drafted()
        return keep

    def observe(self, tokens: Sequence[int], pos: int, keep: int) -> None:
        """Prompt chunks are decoded at once, so that the first draft does not wait for the whole prompt."""
        if pos != self._known:
            return
        right = 0
        for token, drafted in zip(tokens[:keep], self._drafted):
            if token != drafted:
                break
            right += 1
        self._known += right
        del self._drafted[:right]
        if keep == len(tokens) > right + 1:
            self._drop_drafted()
            self._context.decode(tokens[right:], self._known, outputs="none")
            self._known = pos + keep

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        draft = Draft(gaps=[], probs=[], source=self.kind)
        n = len(committed)
        if n + depth > self._context.n_ctx:
            return draft
        context = self._context
        # The last committed token is decoded again if need be: with two tokens in every usual step llama.cpp
        # has one graph to build.
        self._known = max(min(self._known, n - 1), 0)
        self._drop_drafted()
        behind = [*committed[self._known :], last]
        pos = self._known
        while len(behind) > context.n_batch:
            context.decode(behind[: context.n_batch], pos, outputs="none")
            behind, pos = behind[context.n_batch :], pos + context.n_batch
        context.decode(behind, pos, outputs="last")
        self._known = n
        try:
            while policy.extend(draft, propose(context.logits(1)[0])) and len(draft.tokens) < depth:
                context.decode(draft.tokens[-1:], n + len(draft.tokens), outputs="last")
        except DecodeError as error:
            if error.code != 1:  # 1: the draft model's cache is full, what was drafted so far is good
                raise
        self._drafted = [last, *draft.tokens][: context.used - n]
        return draft

    def behind(self, n: int) -> int:
        return n - self._known if n - self._known > STEP else 0

    def state(self) -> DrafterState:
        self._drop_drafted()
        return DrafterState(self._known, 0, [], np.zeros((0, 0), np.float32), self._context.save_state())

    def restore(self, state: DrafterState) -> bool:
        if not self._context.load_state(state.cache) or self._context.used != state.known:
            self._context.clear()
            return False
        self._known = state.known
        return True

    def _drop_drafted(self) -> None:
        """Drop the cells after the known tokens; all of them where that is refused."""
        self._drafted = []
        if self._context.used > self._known and not self._context.remove_from(self._known):
            self._context.clear()
            self._known = 0

    def close(self) -> None:
        self._context.close()
        self._model.close()
