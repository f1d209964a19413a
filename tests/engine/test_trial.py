"""A trial leaves what a later check compares alone."""

from __future__ import annotations

from pathlib import Path

from kits.engine import load_of, opened


def test_a_check_after_a_trial_is_of_the_reply_before_it(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as bench:
        asked = bench.ask(n=20, depth=2)
        assert bench.ask(n=5, depth=3, reply=2, trial=True).ended.finish_reason == "length"
        answer = bench.check()
        assert (answer.equal, answer.compared) == (True, len(asked.ids)) == (True, 20)
        assert bench.check(2).equal is None
