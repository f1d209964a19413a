"""What the cockpit costs over a server: time to the first token and tokens per second against a bare client.

    python tools/server_overhead.py http://127.0.0.1:8080 [--rounds 10] [--tokens 128]

Both send the same request to the same llama-server, in turn, and read the same stream. The bare client does
nothing with it but look for the first chunk with text. Ratios above 1 mean that the cockpit was faster; both
are bounded by what the server does, so their medians differ by the noise of the machine and by what is wasted
here.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import time
import urllib.request

from ds4chat.engine.control import Control
from ds4chat.engine.events import Ended, Event, Generate, Load, ServerAddress, Step, Tuning
from ds4chat.engine.sessions import open_session

PROMPT = "Explain in a few paragraphs how a bicycle stays upright."


def bare(url: str, prompt: str, tokens: int) -> tuple[float, float, int]:
    """Seconds to the first token, seconds from there to the end, and how many tokens came."""
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0.0,
        "stream": True,
        "timings_per_token": True,
        "return_progress": True,
        "return_tokens": True,
        "ignore_eos": True,
    }
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode())
    begun = time.perf_counter()
    first, count = 0.0, 0
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data:") and not re.search(rb'"content": ?""', line):
                first = first or time.perf_counter()
                count += 1
    return first - begun, time.perf_counter() - first, count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    session, loaded = open_session(
        Load("", server=ServerAddress(given.url, chosen=("temp",))), lambda event: None, forgiving=False
    )
    tuning = Tuning(temp=0.0)

    def cockpit(prompt: str) -> tuple[float, float, int]:
        steps: list[tuple[float, int]] = []

        def collect(event: Event) -> None:
            if isinstance(event, Step):
                steps.append((time.perf_counter(), len(event.tokens)))
            assert not isinstance(event, Ended) or event.finish_reason == "length", event

        begun = time.perf_counter()
        request = Generate(1, prompt=prompt, tuning=tuning, max_tokens=given.tokens, ignore_eos=True)
        session.generate(request, Control(tuning), collect)
        return steps[0][0] - begun, time.perf_counter() - steps[0][0], sum(count for _, count in steps)

    first: dict[str, list[float]] = {"bare": [], "cockpit": []}
    speed: dict[str, list[float]] = {"bare": [], "cockpit": []}
    for number in range(given.rounds + 1):
        order = [("bare", lambda p: bare(given.url, p, given.tokens)), ("cockpit", cockpit)]
        for name, ask in order if number % 2 else reversed(order):
            # Another first word each time, so that no prompt is in the server's cache.
            to_first, rest, count = ask(f"{number}{name[0]}. {PROMPT}")
            if number:  # the first round warms up
                first[name].append(to_first * 1000)
                speed[name].append(count / rest)
    for what, unit, found in (("first token", "ms", first), ("speed", "tokens/s", speed)):
        a, b = statistics.median(found["bare"]), statistics.median(found["cockpit"])
        better = a / b if unit == "ms" else b / a
        pairs = [x / y if unit == "ms" else y / x for x, y in zip(found["bare"], found["cockpit"])]
        print(
            f"{what:<12} bare {a:8.1f} {unit}, cockpit {b:8.1f} {unit}, ratio {better:.3f} "
            f"(median of pairs {statistics.median(pairs):.3f})"
        )
    print(
        f"memory       {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most, "
        f"{loaded.device}"
    )


if __name__ == "__main__":
    main()
