"""What every drafter is to the session: one small interface, after llama.cpp's begin/process/draft/accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.events import MAX_DEPTH
from ds4chat.engine.judge import Proposal

STEP = MAX_DEPTH + 1
"""Most tokens that a step commits; what commits more at once is a prompt."""


@dataclass(slots=True)
class Draft:
    """Tokens proposed to follow the last sampled one, with the drafter's own figures where it has any."""

    tokens: list[int] = field(default_factory=list)
    gaps: list[float] | None = None
    """Top-1 minus top-2 logit of each draft; None for a drafter without logits."""
    probs: list[float] | None = None
    gated: bool = False
    """The gate or the confidence stop ended it before the depth was reached."""
    source: str = ""
    """Kind of the drafter that made it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When to stop drafting before the depth is reached."""

    gate: float
    """Stop at a proposal whose gap is below this; 0 is off. The proposal itself is dropped."""
    ends: Callable[[int], bool]
    """True for a control or end token: it is kept as the last draft."""
    keep_drafting: Callable[[int, float | None], bool]
    """The depth controller's decision, by position and the drafter's probability."""
    given: int = 0
    """Tokens of the conversation before this reply."""

    def extend(self, draft: Draft, proposal: Proposal) -> bool:
        """Add a proposal to the draft unless it is refused; False when drafting is over."""
        position = len(draft.tokens) + 1
        refused = self.gate > 0 and proposal.gap < self.gate
        if refused or not self.keep_drafting(position, proposal.prob):
            draft.gated = True
            return False
        draft.tokens.append(proposal.token)
        assert draft.gaps is not None and draft.probs is not None
        draft.gaps.append(proposal.gap)
        draft.probs.append(proposal.prob)
        return not self.ends(proposal.token)


@dataclass(frozen=True, slots=True)
class DrafterState:
    """What a drafter knows of the committed tokens, for another one like it to go on from."""

    known: int
    """Committed tokens in its own cache."""
    observed: int
    """Committed tokens that it has observed."""
    backlog: list[int]
    """Tokens that it has observed and not decoded."""
    features: NDArray[np.float32]
    """(n, width): the target's rows for the backlog, and for the token after it."""
    cache: bytes | bytearray | memoryview
    """Its cache as llama.cpp writes it; empty for a drafter without one."""


class Drafter(Protocol):
    """A source of drafts. Positions are the target's: position p holds token p of the conversation.

    The session calls observe() after every target decode and before the next one, which overwrites the hidden
    rows that a drafter reads; draft() between two such decodes; rewind() when the conversation is cut.
    """

    kind: str
    path: str
    max_depth: int
    note: str

    def rewind(self, keep: int) -> int:
        """Forget everything from position ``keep`` on. Returns how many positions the target may keep:
        ``keep``, less the tokens that it must decode again for the drafter."""

    def observe(self, tokens: Sequence[int], pos: int, keep: int) -> None:
        """The target decoded ``tokens`` at ``pos``, and the first ``keep`` of them are committed."""

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        """Up to ``depth`` tokens after ``last``, which is not decoded and has position len(committed)."""

    def behind(self, n: int) -> int:
        """How many of the ``n`` committed tokens draft() would decode to catch up; 0 for no more than those
        of a step."""

    def close(self) -> None:
        """Free the drafter's context and model, and have the target keep no rows for it any longer."""


@runtime_checkable
class Stateful(Protocol):
    """A drafter that needs more than the committed tokens to go on, which draft() is given."""

    def state(self) -> DrafterState | None:
        """What restore() needs to go on from here, with the same tokens committed; None where the tokens are
        enough."""

    def restore(self, state: DrafterState) -> bool:
        """Go on from a state, where nothing is known yet; False where it does not fit: nothing is then."""
