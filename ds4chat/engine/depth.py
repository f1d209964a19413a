"""How many tokens to draft: a fixed depth. Pure: no clock, no model.

The session asks a controller before each step and tells it after each step what the step cost and brought.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ds4chat.engine.events import MAX_DEPTH


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step cost and brought. Milliseconds are wall time."""

    depth: int
    """Drafts asked for, as choose() gave it."""
    drafted: int
    """Drafts in the verification batch, which had drafted + 1 rows. A draft that the gate or keep_drafting
    dropped is not among them."""
    judged: int
    """Drafts held against the target: the accepted ones, and the rejected one if there was one."""
    accepted: int
    draft_ms: float
    verify_ms: float
    total_ms: float
    emitted: int
    """Tokens that the step added to the reply."""


class DepthController(Protocol):
    """Chooses the depth of each step. One step is choose, keep_drafting after each draft, observe."""

    def begin(self) -> None:
        """A new reply starts: its text may be of another kind than the last one's."""

    def choose(self, limit: int) -> int:
        """The depth for the next step, 0..limit. ``limit`` is what the context, the token budget and the
        drafter leave room for."""

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """Whether the draft just made at ``position`` (from 1) goes into the verification batch. False drops
        it and ends the draft, position 1 included. ``draft_prob`` is the drafter's probability of it."""

    def observe(self, step: StepCost) -> None:
        """Take in what the step cost. A step that choose() put at 0 is reported as well."""


class FixedDepth:
    """Always ``depth`` drafts, as far as the limit allows."""

    def __init__(self, depth: int) -> None:
        if not 0 <= depth <= MAX_DEPTH:
            raise ValueError(f"A depth of {depth} is out of range: it takes 0 to {MAX_DEPTH}.")
        self.depth = depth

    def begin(self) -> None:
        """Nothing is remembered from one reply to the next."""

    def choose(self, limit: int) -> int:
        """The fixed depth, or ``limit`` where that is less."""
        return max(0, min(self.depth, limit))

    def keep_drafting(self, position: int, draft_prob: float | None) -> bool:
        """True: a fixed depth drafts to its end."""
        return True

    def observe(self, step: StepCost) -> None:
        """Nothing is learned from a step."""
