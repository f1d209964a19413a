"""Acceptance of a head on held-out answers, in PyTorch: what speculative decoding would have done there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3_training.data import HeldOutRows, loops
from eagle3_training.generation import GREEDY, Generator, draw_rows
from eagle3_training.head import Head
from eagle3_training.objective import target_states
from eagle3_training.prompts import Prompts
from eagle3_training.target import Target

CHUNK = 10
"""Rows at a time: the attention scores of a row take heads * length * length values."""


@dataclass
class Acceptance:
    """Counts at positions (or depths) 1, 2, ... of a draft."""

    judged: list[int] = field(default_factory=list)
    """Drafts at a position whose earlier drafts were all right."""
    accepted: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    """Target passes that decoding at each depth takes."""
    emitted: list[int] = field(default_factory=list)

    @classmethod
    def zero(cls, steps: int) -> Acceptance:
        """No counts yet."""
        return cls([0] * steps, [0] * steps, [0] * steps, [0] * steps)

    @property
    def conditional(self) -> list[float]:
        """Accepted over judged, by position."""
        return [a / max(j, 1) for a, j in zip(self.accepted, self.judged, strict=True)]

    @property
    def tokens_per_pass(self) -> list[float]:
        """Emitted tokens a target pass, by depth."""
        return [e / max(p, 1) for e, p in zip(self.emitted, self.passes, strict=True)]

    def add(self, right: Tensor, first: int, last: int) -> None:
        """Count one answer, tokens first..last. right: bool (length, steps), whether the draft of step j made
        at row p, for token p + 2 + j, is the true token."""
        table = right.tolist()
        for start in range(first - 2, last - 1):
            for j, ok in enumerate(table[start]):
                if start + 2 + j > last:
                    break
                self.judged[j] += 1
                self.accepted[j] += ok
                if not ok:
                    break
        for depth in range(1, len(self.judged) + 1):
            self._decode(table, first, last, depth)

    def _decode(self, right: list[list[bool]], first: int, last: int, depth: int) -> None:
        """Walk the answer as a decoder of this depth would: the accepted drafts and one token more a pass."""
        p = first - 2
        while p + 2 <= last:
            m = 0
            while m < depth and p + 2 + m <= last and right[p][m]:
                m += 1
            self.passes[depth - 1] += 1
            self.emitted[depth - 1] += min(m + 1, last - (p + 2) + 1)
            p += m + 1


def right_drafts(head: Head, target: Target, ids: Tensor, steps: int) -> Tensor:
    """Bool (rows, length, steps): the draft of step j made at row p is the true token p + 2 + j."""
    found = []
    for part in torch.split(ids, CHUNK):
        rows, length = part.shape
        part = part.to(target.device)
        positions = torch.arange(length, device=target.device).expand(rows, length)
        drafted = head.drafts(part, target_states(target, part, head.config.layers).inputs, positions, steps)
        ahead = F.pad(part, (0, steps + 2), value=-1)
        true = torch.stack([ahead[:, 2 + j : 2 + j + length] for j in range(steps)], -1)
        found.append((drafted == true).cpu())
    return torch.cat(found)


def measure(head: Head, target: Target, held_out: HeldOutRows, steps: int = 5) -> dict[str, Acceptance]:
    """Acceptance on the held-out answers by kind of prompt, and under "all" of all of them."""
    right = right_drafts(head, target, held_out.ids, steps)
    found = {"all": Acceptance.zero(steps)}
    for i, kind in enumerate(held_out.kinds):
        for name in (kind, "all"):
            counts = found.setdefault(name, Acceptance.zero(steps))
            counts.add(right[i], held_out.first[i], held_out.last[i])
    return found


def measure_long(
    head: Head, target: Target, prompts: Prompts, *, rows: int, length: int, steps: int = 5, window: int = 512
) -> dict[str, list[float]]:
    """Conditional acceptance by window of positions, over fresh greedy conversations of ``length`` tokens
    that the target opens itself: shows whether the head holds up where the training rows never reached."""
    torch.manual_seed(999)
    drawn = draw_rows(prompts, rows, random.Random(77), [], 1.0)
    drawn.temperatures, drawn.limits = [0.0] * rows, [300] * rows
    made = Generator(target, rows, length).run(drawn, prompts)
    ahead = (0, steps + 2)
    counts = F.pad((made.source == GREEDY) & ~loops(made.ids), ahead).cpu()
    right = right_drafts(head, target, made.ids, steps)
    found = {}
    for low in range(0, length, window):
        alive = torch.zeros(rows, length, dtype=torch.bool)
        alive[:, low : low + window] = True
        shares = []
        for j in range(steps):
            judged = alive & counts[:, 2 + j : 2 + j + length]
            alive = judged & right[..., j]
            shares.append((alive.sum() / judged.sum().clamp(min=1)).item())
        found[f"{low}-{low + window - 1}"] = shares
    return found
