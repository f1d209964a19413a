"""What the target and the drafter hold of the conversation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds4chat.engine.drafters.base import Drafter
from ds4chat.engine.llama import Context, Ints
from ds4chat.models.architectures import Rollback


class Caches:
    """The committed tokens: the target's KV cache holds exactly these, and the drafter knows them, or can
    catch up.

    rollback: "kv" when the target's cache can drop tokens from any position on; "bounded" when only those of
    the last batch (recurrent states); "none" when it cannot drop any. windowed: some layers attend a sliding
    window, of which a state on disk has only what its last token sees.
    """

    def __init__(
        self, target: Context, drafter: Drafter | None, *, rollback: Rollback = "kv", windowed: bool = False
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.tokens: list[int] = []
        self.rollback = rollback
        self._windowed = windowed
        self._restored = 0
        """Tokens restored from disk without what is before the window of the last of them."""

    @property
    def cuttable(self) -> bool:
        """Tokens can be dropped from any position on."""
        return self.rollback == "kv" and not self._restored

    @property
    def only_whole(self) -> bool:
        """A state on disk can only be used with all its tokens, since none can be dropped from it."""
        return self._windowed or self.rollback != "kv"

    def clear(self) -> None:
        """Forget the conversation."""
        self.target.clear()
        self.tokens.clear()
        self._restored = 0
        if self.drafter:
            self.drafter.rewind(0)

    def hold(self, tokens: Sequence[int]) -> None:
        """Note that both were restored from disk with these tokens."""
        self.tokens[:] = tokens
        self._restored = len(tokens) if self._windowed else 0

    def commit(self, tokens: Sequence[int]) -> None:
        """Decode tokens that are certain. Raises LlamaError."""
        pos = len(self.tokens)
        self.target.decode(tokens, pos, outputs="none")
        self.tokens.extend(tokens)
        if self.drafter:
            self.drafter.observe(tokens, pos, len(tokens))

    def rewind(self, keep: int) -> int:
        """Cut both to ``keep`` tokens or fewer; returns how many are left."""
        # A recurrent state cannot go back over several batches, and before what was restored of a sliding
        # window cells are missing.
        least = self._restored if self.rollback == "kv" else len(self.tokens)
        if keep < least:
            keep = 0
        if self.drafter:
            keep = self.drafter.rewind(keep)
            if keep < least:
                keep = self.drafter.rewind(0)
        if keep < len(self.tokens):
            if keep == 0 or not self.target.remove_from(keep):
                self.clear()
                return 0
            del self.tokens[keep:]
        return keep

    def close(self) -> None:
        """Free both, and the models."""
        if self.drafter:
            self.drafter.close()
        self.target.close()
        self.target.model.close()


def common_prefix(a: Sequence[int] | Ints, b: Sequence[int] | Ints) -> int:
    """With how many equal tokens two texts begin."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differs[0]) if len(differs) else n
