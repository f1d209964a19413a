"""A process that loads what it is told on stdin and says on stdout what came of it, one line a case.

A line in: the target's path, a tab, the support file's path, "embedded" or nothing. A line out: "loaded", or
"refused" and the sentence. A case that ends this process is a finding of whoever started it.
"""

from __future__ import annotations

import os
import resource
import sys

from ds4chat.engine.control import Control
from ds4chat.engine.events import Ended, Event, Generate, Load, Tuning
from ds4chat.engine.opening import LoadError, open_session
from ds4chat.engine.session import Session
from ds4chat.engine.wire import decode_event, encode
from ds4chat.models.errors import ModelFileError
from ds4chat.models.pairing import check_pair, check_target

MEMORY = 6 << 30
"""Bytes of address space: a file that asks for more is refused by the system, not by the machine's end."""

TUNINGS = (Tuning(depth=2), Tuning(depth=2, temp=0.8, seed=1, full_logits=True))
"""Greedy and sampled."""


def outcome(target: str, support: str) -> str:
    """What the engine says to a pair of files, a short reply included."""
    try:
        # First alone: most are refused here, and then nothing needs to be brought up.
        header = check_target(target)
        if support:
            check_pair(header, support)
        load = Load(target, support, ctx=256, threads=1)
        session, _ = open_session(load, lambda event: None, forgiving=False)
    except (LoadError, ModelFileError) as error:
        return f"refused\t{error}"
    try:
        return "\t".join(["loaded", *(asked(session, tuning) for tuning in TUNINGS)])
    finally:
        session.close()


def asked(session: Session, tuning: Tuning) -> str:
    """How a short reply ends, every event of which can be sent."""
    events: list[Event] = []
    request = Generate(1, prompt=" sun sea", tuning=tuning, max_tokens=4, ignore_eos=True)
    session.generate(request, Control(tuning), events.append)
    for event in events:
        decode_event(encode(event)[4:])
    ended = events[-1]
    assert isinstance(ended, Ended)
    return f"{ended.finish_reason} {ended.detail}"


def main() -> None:
    """Answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="surrogateescape")
    os.dup2(2, 1)  # whatever else is printed is no answer
    for line in sys.stdin:
        answer = outcome(*line.rstrip("\n").split("\t"))
        out.write(" ".join(answer.splitlines()) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
