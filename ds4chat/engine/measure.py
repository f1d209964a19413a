"""What a decode costs here and now: the plain baseline, and how many threads are best."""

from __future__ import annotations

import statistics
import time

from ds4chat.engine.llama import Context
from ds4chat.engine.machine import cores

BUDGET_S = 1.5
"""Most seconds that measuring may add to a load."""


def decode_ms(
    context: Context, token: int, *, rows: int = 1, repeats: int = 5, budget_s: float = BUDGET_S
) -> float:
    """Median milliseconds of decoding ``rows`` tokens at the start of an empty cache; empty afterwards.

    The first decode after a load or a change of threads warms caches and pools and is not counted.
    """
    times: list[float] = []
    started = time.perf_counter()
    for i in range(repeats + 1):
        context.clear()
        begin = time.perf_counter()
        context.decode([token] * rows, 0, outputs="all")
        if i:
            times.append((time.perf_counter() - begin) * 1000)
            if time.perf_counter() - started > budget_s:
                break
    context.clear()
    return statistics.median(times)


def choose_threads(context: Context, token: int) -> int:
    """The fastest of all cores, all but one, and half of them (where two share a core), by measurement.

    One core less can win because whoever draws the chat then has one: ggml's threads spin at barriers, and a
    step waits for the slowest of them. All cores stay unless another count is 5 % faster.
    """
    every = cores()
    counts = sorted({every, max(every - 1, 1), max(every // 2, 1)}, reverse=True)
    if every == 1:
        return 1
    took = {}
    for n in counts:
        context.set_threads(n)
        took[n] = decode_ms(context, token, repeats=3, budget_s=BUDGET_S / len(counts))
    best = min(took, key=lambda n: took[n])
    chosen = best if took[best] < 0.95 * took[every] else every
    context.set_threads(chosen)
    return chosen
