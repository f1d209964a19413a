"""What NextN and EAGLE-3 share: a small decoder that reads a feature of the target beside each token.

A cell of the drafter's cache is made of one token and the target's feature of the position before it: the
pair (token x_p, feature f_{p-1}) predicts x_{p+1}. NextN keeps that cell at position p and pairs token 0
with zeros; EAGLE-3 keeps it at p-1 and has no cell for token 0. ``shift`` is that difference.

State between two steps, with n committed tokens and x_n sampled but not decoded:
- cells of the tokens below ``_known`` are in the drafter's cache;
- ``_backlog`` holds the pairs of the committed tokens from ``_known`` on, still to be decoded;
- ``_feature`` is f_{n-1}, which pairs with x_n.
Drafting decodes the backlog and (x_n, f_{n-1}) as one batch, then each draft with the drafter's own hidden
row. The cell of x_n stays, since x_n is certain; those of the drafts are dropped and made again from the
target's true features once they are accepted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ds4chat.engine.drafters.base import Draft, DrafterState, Policy
from ds4chat.engine.judge import propose
from ds4chat.engine.llama import Context, DecodeError, Floats, LlamaError, Model

MAX_MERGED = 24
"""Most pairs decoded with logits together with the first draft; a longer backlog goes before, without."""

MAX_BACKLOG = 256
"""Pairs that wait while nothing is drafted: in one large batch they cost next to nothing."""


class HiddenDrafter(ABC):
    """Base of the drafters that read the target's hidden rows; see the module's text for its state."""

    kind = ""
    shift = 0

    def __init__(
        self, target: Context, model: Model, context: Context, *, width: int, max_depth: int
    ) -> None:
        self.path = model.path
        self.max_depth = max_depth
        self.note = ""
        self._target = target
        self._model = model
        self._context = context
        self._width = width
        self._known = 0
        self._backlog: list[int] = []
        self._backlog_features: list[Floats] = []
        self._zeros = np.zeros(width, np.float32)
        self._feature: Floats | None = self._zeros
        """f_{n-1}; None after a rewind, until the target has decoded the last kept token again."""
        self._observed = 0
        context.enable_nextn(True, masked=True)

    # -- for subclasses

    @abstractmethod
    def _hidden(self, rows: int, keep: int) -> Floats:
        """Copy of what the target kept of the first ``keep`` of the last decode's ``rows``."""

    def _encoded(self, hidden: Floats) -> Floats:
        """The features, (n, width), of n such rows. Late, so that rows that are never needed cost nothing."""
        return hidden

    # -- the interface

    def rewind(self, keep: int) -> int:
        if self._known < keep < self._observed:
            self._flush()
        self._forget_cells(keep)  # among them that of a token that was sampled and never committed
        if keep >= self._observed and self._feature is not None:
            return keep
        self._backlog.clear()
        self._backlog_features.clear()
        # f_{keep-1} is gone: the target decodes that token again, and only that one.
        keep = max(keep - 1, 0) if self._known else 0
        self._observed = keep
        self._feature = None if keep else self._zeros
        return keep

    def observe(self, tokens: Sequence[int], pos: int, keep: int) -> None:
        if not keep:
            return
        hidden = self._hidden(len(tokens), keep)
        previous = self._feature
        for i in range(keep):
            p = pos + i
            if p >= self._known and p >= self.shift:
                assert previous is not None  # the cell of the first token after a rewind was kept
                self._backlog.append(tokens[i])
                self._backlog_features.append(previous)
            previous = hidden[i]
        self._feature = previous
        self._observed = pos + keep
        if len(self._backlog) >= MAX_BACKLOG:
            self._flush()

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        draft = Draft(gaps=[], probs=[], source=self.kind)
        n = len(committed)
        feature = self._expect(n)
        if n < self.shift or n - self.shift + depth > self._context.n_ctx:
            return draft
        if len(self._backlog) >= MAX_MERGED:
            self._flush()
        context = self._context
        # All rows ask for logits: which NextN rows a masked context keeps for a mix of flags differs from
        # one architecture to the next, and the last row is then not where it is looked for.
        tokens = [*self._backlog, last] if self._known <= n else [last]
        if self._known > n:
            context.remove_from(n - self.shift)
        features = self._encoded(np.stack([*self._backlog_features, feature]))
        rows = len(tokens)
        context.decode(tokens, n + 1 - rows - self.shift, embd=features)
        self._backlog.clear()
        self._backlog_features.clear()
        self._known = n + 1
        try:
            position = n + 1
            while policy.takes(draft, propose(context.logits(rows)[rows - 1])) and len(draft.tokens) < depth:
                hidden = context.nextn(rows, self._width)[rows - 1].copy()
                context.decode(draft.tokens[-1:], position - self.shift, embd=hidden[None])
                rows, position = 1, position + 1
        except DecodeError as error:
            if error.code != 1:  # 1: the drafter's cache is full, what was drafted so far is good
                raise
        finally:
            context.remove_from(n + 1 - self.shift)
        return draft

    def state(self) -> DrafterState:
        waiting = [*self._backlog_features, *([] if self._feature is None else [self._feature])]
        features = np.stack(waiting) if waiting else np.zeros((0, 0), np.float32)
        # A cell of a token that was sampled and never committed is no part of the conversation.
        self._forget_cells(self._observed)
        return DrafterState(
            self._known, self._observed, list(self._backlog), features, self._context.save_state()
        )

    def restore(self, state: DrafterState) -> bool:
        first = max(state.known, self.shift)
        if len(state.features) != len(state.backlog) + 1 or first + len(state.backlog) != state.observed:
            return False
        if not self._context.load_state(state.cache) or self._context.used != max(
            state.known - self.shift, 0
        ):
            self._context.clear()
            return False
        self._known, self._observed, self._backlog = state.known, state.observed, list(state.backlog)
        *self._backlog_features, self._feature = state.features
        return True

    def close(self) -> None:
        self._context.close()
        self._model.close()

    # -- inside

    def _expect(self, n: int) -> Floats:
        """f_{n-1}. Raises LlamaError unless every committed token was observed: drafts would be made of
        stale rows."""
        if self._observed != n or self._feature is None:
            raise LlamaError(f"the drafter has seen {self._observed} of {n} tokens.")
        return self._feature

    def _forget_cells(self, keep: int) -> None:
        """Drop the cells of the tokens from position ``keep`` on; all of them where that is refused."""
        if self._known > keep:
            self._known = keep
            if not self._context.remove_from(max(keep - self.shift, 0)):
                self._context.clear()
                self._known = 0

    def _flush(self) -> None:
        """Decode the backlog without logits."""
        tokens, features = self._backlog, self._backlog_features
        step = self._context.n_batch
        for i in range(0, len(tokens), step):
            part = self._encoded(np.stack(features[i : i + step]))
            self._decode_certain(tokens[i : i + step], self._first() + i - self.shift, part)
        self._known = self._first() + len(tokens)
        self._backlog = []
        self._backlog_features = []

    def _decode_certain(self, tokens: Sequence[int], cell: int, features: Floats) -> None:
        """Put cells of committed tokens into the cache, from ``cell`` on."""
        self._context.decode(tokens, cell, embd=features, outputs="none")

    def _first(self) -> int:
        """Position of the first token of the backlog."""
        return max(self._known, self.shift)
