"""What NextN and EAGLE-3 share: a small decoder that reads a feature of the target beside each token.

A cell of the drafter's cache is made of one token and the target's feature of the position before it: the
pair (token x_p, feature f_{p-1}) predicts x_{p+1}. NextN keeps that cell at position p and pairs token 0
with zeros; EAGLE-3 keeps it at p-1 and has no cell for token 0. ``shift`` is that difference.

After each decode of the target its features are copied into a ring, and nothing else is done, so a drafter
that is not asked costs almost nothing. Between two steps, with n committed tokens and x_n sampled but not
decoded:
- the ring holds the tokens and the features of the positions from ``_oldest`` to n-1, f_{-1}, which is zeros,
  among them;
- the tokens below ``_known`` have cells, a prompt's as soon as they are observed; after many steps without a
  draft only those from some position on.
Drafting decodes the committed tokens that have no cell, and (x_n, f_{n-1}), as one batch, then each draft
with the drafter's own hidden row. The cell of x_n is kept, since x_n is certain; those of the drafts are
dropped, and made again from the target's features once they are accepted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ds4chat.engine.drafters.base import STEP, Draft, DrafterState, Policy
from ds4chat.engine.judge import propose
from ds4chat.engine.llama import Context, DecodeError, Floats, LlamaError, Model

FLUSH = 32
"""Tokens that get cells in one batch without logits."""

WINDOW = 8 * FLUSH
"""Tokens that get cells after steps without a draft: those before them are forgotten. Of the first drafts of
the demo's EAGLE-3 head 57.7 % are right where it catches up with all of them, and 56.5, 53.1, 50.5 and 45.2 %
with the last 256, 128, 64 and 32 (tools/evaluate_support.py window demo --prompts 3)."""

HELD = WINDOW + 1
"""Positions in the ring: the window's features are those of the positions before its tokens."""


class HiddenDrafter(ABC):
    """Base of the drafters that read the target's hidden rows; the module's docstring describes its state."""

    kind = ""
    shift = 0

    def __init__(
        self,
        target: Context,
        model: Model,
        context: Context,
        *,
        width: int,
        hidden: tuple[int, int],
        max_depth: int,
    ) -> None:
        """``width``: a feature's; ``hidden``: how many of the target's rows make one, and their width."""
        self.path = model.path
        self.max_depth = max_depth
        self.note = ""
        self._target = target
        self._model = model
        self._context = context
        self._width = width
        self._tokens = [0] * HELD
        self._hidden = np.zeros((HELD, *hidden), np.float32)
        """The ring: token x_p, and the target's rows of position p, which make f_p, at p % HELD."""
        self._oldest = -1
        self._observed = 0
        context.enable_nextn(True, masked=True)

    # -- for subclasses

    @abstractmethod
    def _target_rows(self, rows: int) -> Floats:
        """What the target kept of the last decode's ``rows``: (parts, rows, width)."""

    def _encoded(self, hidden: Floats) -> Floats:
        """The features, (n, width), of the ring's rows of n positions."""
        return hidden

    # -- the interface

    def rewind(self, keep: int) -> int:
        self._forget_cells(keep)  # among them that of a token that was sampled and never committed
        if keep - 1 < self._oldest:
            # f_{keep-1} is gone, so the target decodes that token again. Tokens before it may still lack a
            # cell: to decode them again would take longer than better drafts save.
            keep = max(keep - 1, 0)
            self._oldest = keep or -1
            if keep == 0:
                self._hidden[-1] = 0.0
        self._observed = min(keep, self._observed)
        return keep

    def observe(self, tokens: Sequence[int], pos: int, keep: int) -> None:
        if keep:
            rows = self._target_rows(len(tokens))
        for begin in range(0, keep, FLUSH):
            end = min(begin + FLUSH, keep)
            for i in range(begin, end):
                at = (pos + i) % HELD
                self._tokens[at] = tokens[i]
                self._hidden[at] = rows[:, i]
            self._observed = pos + end
            self._oldest = max(self._oldest, self._observed - HELD)
            if keep > STEP:  # a prompt's
                self._flush(self._known)

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        draft = Draft(gaps=[], probs=[], source=self.kind)
        n = len(committed)
        self._expect(n)
        if n < self.shift or n - self.shift + depth > self._context.n_ctx:
            return draft
        first = self._catch_up()
        context = self._context
        # All rows ask for logits: which NextN rows a masked context keeps for a mix of flags depends on the
        # architecture, and the last row would not be where it is read.
        tokens = [*committed[first:], last]
        rows = len(tokens)
        context.decode(tokens, first - self.shift, embd=self._features(first, n + 1))
        try:
            position = n + 1
            while policy.extend(draft, propose(context.logits(rows)[rows - 1])) and len(draft.tokens) < depth:
                hidden = context.nextn(rows, self._width)[rows - 1 :]
                context.decode(draft.tokens[-1:], position - self.shift, embd=hidden)
                rows, position = 1, position + 1
        except DecodeError as error:
            if error.code != 1:  # 1: the drafter's cache is full, what was drafted so far is good
                raise
        finally:
            context.remove_from(n + 1 - self.shift)
        return draft

    def behind(self, n: int) -> int:
        return caught_up_before(n - max(self._known, self.shift))

    def state(self) -> DrafterState:
        # The cell of a token that was sampled and never committed is not part of the conversation.
        self._forget_cells(self._observed)
        n = self._observed
        first = max(self._known, self._oldest + 1)
        backlog = [self._tokens[at] for at in _places(first, n)]
        features = self._hidden[_places(first - 1, n)].reshape(n - first + 1, -1)
        return DrafterState(self._known, n, backlog, features, self._context.save_state())

    def restore(self, state: DrafterState) -> bool:
        n, waiting = state.observed, len(state.backlog)
        if waiting >= HELD or state.features.shape != (waiting + 1, self._hidden[0].size):
            return False
        if not self._context.load_state(state.cache) or self._known != state.known:
            self._context.clear()
            return False
        self._observed, self._oldest = n, n - waiting - 1
        for at, token in zip(_places(n - waiting, n), state.backlog):
            self._tokens[at] = token
        self._hidden[_places(n - waiting - 1, n)] = state.features.reshape(-1, *self._hidden.shape[1:])
        return True

    def close(self) -> None:
        self._context.close()
        self._model.close()

    # -- inside

    @property
    def _known(self) -> int:
        """Position behind the last token that has a cell; 0 where none has."""
        used = self._context.used
        return used + self.shift if used else 0

    def _expect(self, n: int) -> None:
        """Raises LlamaError unless every committed token was observed: drafts would come from stale rows."""
        if self._observed != n or self._oldest >= n:
            raise LlamaError(f"the drafter has seen {self._observed} of {n} tokens.")

    def _features(self, begin: int, end: int) -> Floats:
        """The features, (end - begin, width), of the positions before those from ``begin`` to ``end``; the
        next decode may overwrite them."""
        n, at = end - begin, (begin - 1) % HELD
        whole = at + n <= HELD
        rows = self._hidden[at : at + n] if whole else self._hidden[_places(begin - 1, end - 1)]
        return self._encoded(rows.reshape(n, -1))

    def _catch_up(self) -> int:
        """Make the cells of all observed tokens except those of a step; returns the first of these.

        Where more tokens lack theirs, the batches are of one size, so that llama.cpp has one graph to build,
        even if some of the first tokens had cells.
        """
        n = self._observed
        self._forget_cells(n)
        behind = self.behind(n)
        if behind:
            self._flush(n - behind)
            return n
        return self._cut(self._known)

    def _flush(self, begin: int) -> None:
        """Decode the observed tokens from ``begin`` on without logits, as far as the ring reaches back."""
        n = self._observed
        for at in range(self._cut(begin), n, FLUSH):
            end = min(at + FLUSH, n)
            tokens = [self._tokens[place] for place in _places(at, end)]
            self._decode_certain(tokens, at - self.shift, self._features(at, end))

    def _cut(self, begin: int) -> int:
        """Drop the cells from ``begin`` on, or from where the ring begins; all of them where that would leave
        a gap, which llama.cpp refuses. Returns the position of the next cell to make."""
        begin = max(begin, self._oldest + 1, self.shift)
        if begin > max(self._known, self.shift):
            self._context.clear()
        self._forget_cells(begin)
        return begin

    def _forget_cells(self, keep: int) -> None:
        """Drop the cells of the tokens from position ``keep`` on; all of them where that is refused."""
        if self._known > keep and not self._context.remove_from(max(keep - self.shift, 0)):
            self._context.clear()

    def _decode_certain(self, tokens: Sequence[int], cell: int, features: Floats) -> None:
        """Make the cells of committed tokens, from ``cell`` on."""
        self._context.decode(tokens, cell, embd=features, outputs="none")


def caught_up_before(lacking: int) -> int:
    """How many tokens get cells before the next draft where ``lacking`` have none: whole batches, WINDOW at
    most; 0 where they are decoded with the draft."""
    return min(-(-lacking // FLUSH) * FLUSH, WINDOW) if lacking > STEP else 0


def _places(begin: int, end: int) -> list[int]:
    """Indices of these positions in the ring."""
    return [position % HELD for position in range(begin, end)]
