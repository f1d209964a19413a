"""Chained NextN heads: one trained block for each draft position (step35, mimo2, hy-v3).

Every head has its own layer of the drafter's cache, and nothing in a cell tells which head wrote it. So each
head runs over all the tokens that its layer lacks: for committed tokens every head in turn, and for draft i
head i over the last token and the drafts before it, each with the hidden row that the head before made of it.
The cells of the drafts are dropped before every head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds4chat.engine.drafters.base import Draft, Policy
from ds4chat.engine.drafters.nextn import NextN
from ds4chat.engine.judge import propose
from ds4chat.engine.llama import CacheConfig, Context, DecodeError, Floats, Model


class ChainedNextN(NextN):
    """As many drafts a step as the model has NextN blocks, each from a block of its own."""

    def __init__(
        self, target: Context, model: Model, *, max_depth: int, threads: int, cache: CacheConfig
    ) -> None:
        self._heads = model.n_layer_nextn
        depth = min(max_depth, self._heads)
        super().__init__(target, model, max_depth=depth, threads=threads, cache=cache)
        if depth == self._heads:
            self.note = "one for each of its NextN blocks"

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        draft = Draft(gaps=[], probs=[], source=self.kind)
        n = len(committed)
        self._expect(n)
        if n + depth > self._context.n_ctx:
            return draft
        self._flush(self._catch_up())
        features = [self._features(n, n + 1)[0]]
        context = self._context
        try:
            for head in range(depth):
                context.remove_from(n)
                context.set_nextn_head(head)
                tokens = [last, *draft.tokens]
                rows = len(tokens)
                context.decode(tokens, n, embd=np.stack(features))
                if not policy.extend(draft, propose(context.logits(rows)[rows - 1])):
                    break
                features.append(context.nextn(rows, self._width)[rows - 1].copy())
        except DecodeError as error:
            if error.code != 1:  # 1: the drafter's cache is full, what was drafted so far is good
                raise
        finally:
            context.set_nextn_head(0)
            context.remove_from(n)
        return draft

    def _decode_certain(self, tokens: Sequence[int], cell: int, features: Floats) -> None:
        try:
            for head in range(self._heads):
                self._context.remove_from(cell)
                self._context.set_nextn_head(head)
                self._context.decode(tokens, cell, embd=features, outputs="none")
        finally:
            self._context.set_nextn_head(0)
