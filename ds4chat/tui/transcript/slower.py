"""Why a reply with drafts was slower than plain decoding, by what its steps took. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Step
from ds4chat.text import counted

ENOUGH = 8
"""Fewest steps with the same number of drafts whose mean says anything."""


def why_slower(steps: Sequence[Step], plain: PlainTime) -> str:
    """A sentence about the steps with the most common number of drafts; empty if the reply was not slower, if
    no plain pass was measured in it, or if these steps paid off."""
    if plain.at_load or not plain.ms or plain.speedup is None or plain.speedup >= 1:
        return ""
    drafting = [step for step in steps if step.drafted and not step.tuning.probe]
    numbers = Counter(step.drafted for step in drafting)
    drafts, count = max(numbers.items(), key=lambda item: item[1], default=(0, 0))
    if count < ENOUGH:
        return ""
    alike = [step for step in drafting if step.drafted == drafts]
    passes = statistics.fmean(step.ms.total for step in alike) * plain.tokens / plain.ms
    tokens = statistics.fmean(len(step.tokens) for step in alike)
    if tokens >= passes:
        return ""
    return (
        f"Slower than plain decoding: a step with {counted(drafts, 'draft')} takes as long as {passes:.1f} "
        f"plain passes and yields only {tokens:.1f} tokens."
    )
