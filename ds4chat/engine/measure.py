"""What a decode costs on this machine: the plain baseline, and how many threads are best."""

from __future__ import annotations

import statistics
import time

from ds4chat.engine.llama import Context
from ds4chat.engine.machine import cores

BUDGET_S = 1.5
"""Most seconds that measuring may add to a load."""


def decode_ms(context: Context, token: int, *, repeats: int = 5, budget_s: float = BUDGET_S) -> float:
    """Median milliseconds of decoding one token into an empty cache, which is empty afterwards.

    The first decode after a load or a change of threads warms caches and pools, and does not count.
    """
    times: list[float] = []
    started = time.perf_counter()
    for i in range(repeats + 1):
        context.clear()
        begin = time.perf_counter()
        context.decode([token], 0)
        if i:
            times.append((time.perf_counter() - begin) * 1000)
            if time.perf_counter() - started > budget_s:
                break
    context.clear()
    return statistics.median(times)


def choose_threads(context: Context, token: int) -> int:
    """The fastest of all cores, all but one, and half of them (where two share a core), by measurement.

    One core less can be faster because the process that draws the chat then has one: ggml's threads spin at
    barriers, and a step waits for the slowest. Another count than all cores must be 5 % faster.
    """
    every = cores()
    if every == 1:
        return 1
    counts = sorted({every, every - 1, every // 2}, reverse=True)
    took = {}
    for n in counts:
        context.set_threads(n)
        took[n] = decode_ms(context, token, repeats=3, budget_s=BUDGET_S / len(counts))
    best = min(took, key=lambda n: took[n])
    chosen = best if took[best] < 0.95 * took[every] else every
    context.set_threads(chosen)
    return chosen
