"""Why a reply with drafts was slower than plain decoding, from what its steps took. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Step

ENOUGH = 8
"""Steps of one size from which their mean tells something."""


def why_slower(steps: Sequence[Step], plain: PlainTime) -> str:
    """A sentence about the commonest size of the steps with drafts; empty where the reply was not slower, no
    plain pass was measured in it, or the steps of that size paid for themselves."""
    if plain.at_load or not plain.ms or plain.speedup is None or plain.speedup >= 1:
        return ""
    drafting = [step for step in steps if step.drafted and not step.tuning.probe]
    sizes = Counter(step.drafted + 1 for step in drafting)
    rows, count = max(sizes.items(), key=lambda item: item[1], default=(0, 0))
    if count < ENOUGH:
        return ""
    alike = [step for step in drafting if step.drafted + 1 == rows]
    passes = statistics.fmean(step.ms.total for step in alike) * plain.tokens / plain.ms
    brings = statistics.fmean(len(step.tokens) for step in alike)
    if brings >= passes:
        return ""
    return (
        f"Slower than plain decoding: drafting and checking {rows} tokens costs {passes:.1f} passes, and "
        f"brings {brings:.1f}."
    )
