"""What the speculative cycle must do on the constructed models, worked out without a model.

One step, with ``last`` sampled but not decoded and ``n_past`` tokens in the cache:

1. draft up to ``depth`` tokens, at most (tokens left in the budget) - 1 and n_ctx - n_past - 1; a control or
   end token is kept as the last draft and ends drafting;
2. the target decodes [last, d1..dk]; its own choice t(i) stands in row i;
3. drafts are accepted while d(i+1) == t(i); after them comes the target's own token. The first rejected draft
   was judged; what stands behind it was not. An accepted end token ends the reply;
4. the cache keeps last and the accepted drafts.

The prompt is decoded without its last token, which opens the first step. End tokens are not emitted and do
not count against the budget.

Known counts: 200 tokens after the prompt " end now", wrong after every fourth word. " now" is such a word, so
the first step misses; from then on the words stand in groups of four (steps, drafted, accepted):

=====  =============  ======================================================================================
depth  counts         why
=====  =============  ======================================================================================
1      101, 100, 99   a miss (1 token), 99 full steps of 2 tokens, a plain step for the last token
2      100, 200, 100  50 times a miss (1 token) and a full step (3 tokens)
3      51, 152, 149   a miss, 49 full steps of 4 tokens, a full step of depth 2 for the last 3 tokens
4      51, 202, 149   as depth 3, but each of the 49 steps drafts one more, which is rejected
=====  =============  ======================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tiny import chain
from tiny.tensors import GAIN, HIDDEN_WEIGHT, TOKEN_WEIGHT
from tiny.vocab import EOS

Vector = dict[int, float]
"""Class -> weight."""

DrafterKind = Literal[
    "deepseek4-support",
    "deepseek4-nextn",
    "qwen35-nextn",
    "qwen3next-nextn",
    "mimo2-nextn",
    "gemma4-assistant",
    "eagle3",
    "llama-draft",
]
CHAINED_HEADS = 3
"""NextN heads of mimo2-nextn: its depth ends there."""
Origin = Literal["accepted", "corrected", "bonus", "plain"]


@dataclass(frozen=True)
class Step:
    """One step: what was drafted, how much of it judged and accepted, what was emitted."""

    drafts: tuple[int, ...]
    judged: int
    accepted: int
    emitted: tuple[int, ...]


@dataclass
class Simulated:
    """A reply and its counters; ``by_position`` holds (judged, accepted) of the 1st, 2nd, ... draft."""

    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    log: list[Step] = field(default_factory=list)
    by_position: list[tuple[int, int]] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "context"] = "length"

    @property
    def steps(self) -> int:
        """Target decodes after the prompt."""
        return len(self.log)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """steps, drafted, judged, accepted"""
        return self.steps, self.drafted, self.judged, self.accepted

    @property
    def drafted(self) -> int:
        """Drafts made."""
        return sum(len(step.drafts) for step in self.log)

    @property
    def judged(self) -> int:
        """Drafts compared with the target: the accepted ones and the first rejected one of each step."""
        return sum(step.judged for step in self.log)

    @property
    def accepted(self) -> int:
        """Drafts that the target confirmed, an end token included."""
        return sum(step.accepted for step in self.log)


class Head:
    """The arithmetic of a constructed drafter: 64 classes, and the token each of them leads to."""

    def __init__(self, kind: DrafterKind, wrong_every: int, gain: float, wrong_gain: float | None) -> None:
        self.kind = kind
        errs_in_mixing = kind == "deepseek4-support"
        self.mixing_errs = wrong_every if errs_in_mixing else 0
        n_heads = CHAINED_HEADS if kind == "mimo2-nextn" else 1
        self.max_depth = CHAINED_HEADS if kind == "mimo2-nextn" else 1 << 30
        self.tables: list[dict[int, tuple[int, float]]] = []
        for i in range(n_heads):
            table = {chain.SHARED: (chain.CYCLE[0], gain)}
            for token in chain.tokens():
                wrong = not errs_in_mixing and chain.is_wrong(token, wrong_every, i)
                height = wrong_gain if wrong and wrong_gain is not None else gain
                choice = (
                    chain.next_token(token) if errs_in_mixing else chain.draft_token(token, wrong_every, i)
                )
                table[chain.class_of(token)] = (choice, height)
            self.tables.append(table)

    def choice(self, state: Vector, position: int) -> int:
        """Token of the largest logit, for the draft at this position (0 is the first)."""
        logits: dict[int, float] = {}
        for class_, weight in state.items():
            token, height = self.tables[position % len(self.tables)][class_]
            logits[token] = logits.get(token, 0.0) + weight * height
        return max(logits, key=lambda token: logits[token])

    def step(self, token: int, hidden: Vector) -> Vector:
        """The drafter's state after ``token`` with the hidden row ``hidden``."""
        if self.kind == "llama-draft":
            return {chain.class_of(token): 1.0}
        state: Vector = {chain.class_of(token): TOKEN_WEIGHT}
        residual = self.kind == "eagle3"
        for class_, weight in _unit(hidden).items():
            following = chain.successor_class(class_, self.mixing_errs)
            if following is not None:
                state[following] = state.get(following, 0.0) + HIDDEN_WEIGHT * weight
            if residual:  # the block takes the normalised row away and adds it as it came
                state[class_] = state.get(class_, 0.0) + hidden[class_] - weight
        return state


def _unit(vector: Vector) -> Vector:
    norm = math.sqrt(sum(w * w for w in vector.values()))
    return {c: w / norm for c, w in vector.items()} if norm else {}


def simulate(
    prompt: Sequence[int],
    n_tokens: int,
    depth: int,
    kind: DrafterKind = "deepseek4-support",
    *,
    wrong_every: int = 4,
    n_ctx: int = 512,
    gain: float = GAIN,
    wrong_gain: float | None = None,
    ignore_eos: bool = False,
) -> Simulated:
    """Reply and counters for a prompt of at least two tokens; depth 0 is plain decoding.

    ``wrong_every``, ``gain`` and ``wrong_gain`` are the support file's. With ``ignore_eos`` end tokens are
    emitted and decoding goes on past them.
    """
    head = Head(kind, wrong_every, gain, wrong_gain)
    result = Simulated(by_position=[(0, 0)] * depth)
    n_past, before, last = len(prompt) - 1, prompt[-2], prompt[-1]
    while len(result.tokens) < n_tokens:
        if n_past >= n_ctx:
            result.finish_reason = "context"
            return result
        room = min(depth, head.max_depth, n_tokens - len(result.tokens) - 1, n_ctx - n_past - 1)
        drafts = _draft(head, before, last, room)
        own = [chain.next_token(token) for token in (last, *drafts)]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == own[accepted]:
            accepted += 1
            if own[accepted - 1] == EOS and not ignore_eos:
                break
        ended = accepted > 0 and own[accepted - 1] == EOS and not ignore_eos
        judged = accepted if ended or accepted == len(drafts) else accepted + 1
        new = own[:accepted] if ended else own[: accepted + 1]
        for i in range(judged):
            tried, right = result.by_position[i]
            result.by_position[i] = (tried + 1, right + int(i < accepted))
        emitted = [t for t in new if t != EOS or ignore_eos]
        result.origins += [_origin(i, accepted, len(drafts)) for i in range(len(emitted))]
        result.tokens += emitted
        result.log.append(Step(tuple(drafts), judged, accepted, tuple(emitted)))
        if len(emitted) < len(new):
            result.finish_reason = "stop"
            return result
        n_past += accepted + 1
        before, last = ([last, *new])[-2:]
    return result


def _draft(head: Head, before: int, last: int, room: int) -> list[int]:
    drafts: list[int] = []
    token, hidden = last, {chain.class_of(before): 1.0}
    while len(drafts) < room:
        hidden = head.step(token, hidden)
        token = head.choice(hidden, len(drafts))
        drafts.append(token)
        if chain.ends_draft(token):
            break
    return drafts


def _origin(i: int, accepted: int, drafted: int) -> Origin:
    if drafted == 0:
        return "plain"
    if i < accepted:
        return "accepted"
    return "bonus" if accepted == drafted else "corrected"
