"""Lookup: the conversation itself as the drafter. What followed its last tokens before is proposed again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ds4chat.engine.drafters.base import Draft, Drafter, DrafterState, Policy, Stateful

SIZES = (5, 4, 3)
"""N-gram lengths that are looked up, longest first: a longer match is a better reason to copy."""

LONGEST = 32
"""Most tokens of a match that count for how likely the copy is right."""


class Experience:
    """How often copies were right in this text, by the length of the match, and by whether it was found in
    what came before the reply. It costs nothing: the target's tokens decide every copy, verified or not."""

    LENGTHS = (4, 5, 7, 10, 16)
    """Shortest match, in tokens, of each class of lengths but the first."""
    REPLY = (0.64, 0.64, 0.75, 0.87, 0.90, 0.97)
    GIVEN = (0.83, 0.83, 0.79, 0.88, 0.93, 0.97)
    """Share of right copies by class in an unknown text. From 5,700 tokens after a match that a small model
    wrote in 80 replies: chat, code, lists, rewriting, stories, summaries."""
    START = 4
    """Outcomes that those shares count as."""
    MEMORY = 50
    """Outcomes that count: each newer one takes 1/MEMORY off the older ones."""

    def __init__(self) -> None:
        self._right = [0.0] * (2 * len(self.REPLY))
        self._seen = list(self._right)

    def rate(self, match: int, given: bool) -> float:
        """Expected share, 0..1, of right copies after ``match`` equal tokens."""
        i = bisect_right(self.LENGTHS, match)
        start = (self.GIVEN if given else self.REPLY)[i]
        return (self._right[2 * i + given] + self.START * start) / (self._seen[2 * i + given] + self.START)

    def add(self, match: int, given: bool, right: bool) -> None:
        """Count whether one copied token was right."""
        i = 2 * bisect_right(self.LENGTHS, match) + given
        self._right[i] += right - self._right[i] / self.MEMORY
        self._seen[i] += 1 - self._seen[i] / self.MEMORY


@dataclass(frozen=True, slots=True)
class _Copy:
    """A match, proposed or not: the tokens from position ``source`` on, guessed to follow from ``at`` on."""

    source: int
    at: int
    match: int
    given: bool


class Lookup:
    """N-gram continuation of the own context; needs no model. Its experience lasts as long as anything of the
    conversation is kept."""

    kind = "lookup"
    path = ""

    def __init__(self, *, max_depth: int) -> None:
        self.max_depth = max_depth
        self.note = ""
        self._tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        """Position after the latest occurrence of each n-gram."""
        self._experience = Experience()
        self._copy: _Copy | None = None
        """The last match, not yet compared with the text."""

    def rewind(self, keep: int) -> int:
        if keep == 0:
            self._experience = Experience()
        self._copy = None  # other tokens follow now
        if keep < len(self._tokens):
            kept = self._tokens[:keep]
            self._tokens = []
            self._latest.clear()
            self._extend(kept)
        return keep

    def observe(self, tokens: Sequence[int], pos: int, keep: int) -> None:
        if pos <= len(self._tokens) < pos + keep:
            self._extend(tokens[len(self._tokens) - pos : keep])

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        draft = Draft(source=self.kind)
        if len(self._tokens) != len(committed):
            self.rewind(0)
            self._extend(committed)
        known = self._tokens
        self._learn(last)
        for size in SIZES:
            if len(known) < size:
                continue
            gram = (*known[len(known) - size + 1 :], last)
            at = self._latest.get(gram)
            if at is None:
                continue
            match, given = self._match(at, size), at < policy.given
            self._copy = _Copy(at, len(known) + 1, match, given)
            for i in range(depth):
                # The copy may run into itself, and then continues with its own beginning.
                beyond = at + i - len(known)
                if beyond < 0:
                    token = known[beyond]
                elif beyond == 0:
                    token = last
                else:
                    token = draft.tokens[beyond - 1]
                if not policy.keep_drafting(i + 1, self._experience.rate(match + i, given)):
                    draft.gated = True
                    break
                draft.tokens.append(token)
                if policy.ends(token):
                    break
            break
        return draft

    def behind(self, n: int) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""

    def _learn(self, last: int) -> None:
        """Compare the last match with the text, up to its first wrong token."""
        copy, self._copy = self._copy, None
        if copy is None or len(self._tokens) < copy.at:
            return  # nothing was committed since
        text = [*self._tokens[copy.at :], last]
        for i, token in enumerate(text[:LONGEST]):
            right = self._tokens[copy.source + i] == token
            self._experience.add(copy.match + i, copy.given, right)
            if not right:
                break

    def _match(self, at: int, size: int) -> int:
        """How many tokens before position ``at`` equal those at the end; ``size`` of them are known to."""
        known = self._tokens
        while size < LONGEST and size <= min(at, len(known)) - 1 and known[at - 1 - size] == known[-size]:
            size += 1
        return size

    def _extend(self, tokens: Sequence[int]) -> None:
        known = self._tokens
        for token in tokens:
            known.append(token)
            end = len(known)
            for size in SIZES:
                if end >= size:
                    self._latest[tuple(known[end - size :])] = end


class Either:
    """Two drafters: a lookup's draft where it has one, else the second's."""

    def __init__(self, first: Lookup, second: Drafter) -> None:
        self.first, self.second = first, second
        self.kind = f"{first.kind}+{second.kind}"
        self.path = second.path
        self.max_depth = max(first.max_depth, second.max_depth)
        self.note = second.note

    def rewind(self, keep: int) -> int:
        keep = self.second.rewind(keep)
        return self.first.rewind(keep)

    def observe(self, tokens: Sequence[int], pos: int, keep: int) -> None:
        self.first.observe(tokens, pos, keep)
        self.second.observe(tokens, pos, keep)

    def draft(self, committed: Sequence[int], last: int, depth: int, policy: Policy) -> Draft:
        draft = self.first.draft(committed, last, min(depth, self.first.max_depth), policy)
        if draft.tokens:
            return draft
        return self.second.draft(committed, last, min(depth, self.second.max_depth), policy)

    def behind(self, n: int) -> int:
        return self.second.behind(n)

    def state(self) -> DrafterState | None:
        """The second's: a lookup needs the tokens alone."""
        return self.second.state() if isinstance(self.second, Stateful) else None

    def restore(self, state: DrafterState) -> bool:
        return isinstance(self.second, Stateful) and self.second.restore(state)

    def close(self) -> None:
        self.first.close()
        self.second.close()
