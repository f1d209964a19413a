"""A trial leaves what a later check compares alone."""

from __future__ import annotations

from pathlib import Path

from kits.engine import load_of, opened

from ds4chat.engine.control import Control
from ds4chat.engine.events import Event, Replayed, Tuning


def test_a_check_after_a_trial_is_of_the_reply_before_it(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        asked = bench.ask(n=20, depth=2)
        assert bench.ask(n=5, depth=3, reply=2, trial=True).ended.finish_reason == "length"
        events: list[Event] = []
        bench.session.replay(1, Control(Tuning()), events.append)
        answer = events[-1]
        assert isinstance(answer, Replayed)
        assert (answer.equal, answer.compared) == (True, len(asked.ids)) == (True, 20)
        bench.session.replay(2, Control(Tuning()), events.append)
        assert isinstance(events[-1], Replayed) and events[-1].equal is None
