"""Rows of logits that decide nothing end as an error, at the load where it sees them, else in the reply."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from kits.command_line import RunHere
from kits.engine import opened
from tiny import vocab

from ds4chat.engine import judge
from ds4chat.engine.events import Load, Tuning
from ds4chat.engine.opening import LoadError, open_session

LETTER = vocab.byte(ord("a"))
"""The token that the measurement at load decodes."""
LATER = vocab.word("red")
"""A token that only a reply comes to: "we go up to the old red"."""


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 5, 9])
def test_one_value_that_is_no_number_is_seen_wherever_it_stands(wrong: float, at: int) -> None:
    row = np.arange(10, dtype=np.float32)
    row[at] = wrong
    # A token that is left out (-inf) is no fault of a row that ranks the others.
    assert judge.decides(row, judge.choose(row)) == (wrong == -np.inf)


def test_rows_that_rank_nothing_decide_nothing() -> None:
    for row in (np.zeros(9), np.full(9, -np.inf), np.full(9, np.nan), np.full(9, 7.5)):
        assert not judge.decides(row.astype(np.float32), judge.choose(row))
    for at in range(9):
        row = np.zeros(9, np.float32)
        row[at] = -1e-3
        assert judge.decides(row, judge.choose(row))
    assert judge.decides(np.zeros(1, np.float32), 0)  # a vocabulary of one token has one answer


@pytest.mark.parametrize("fault", [{"nan_token": LETTER}, {"flat": True}])
def test_a_load_that_measures_such_a_row_is_refused_with_the_likely_causes(
    tiny_dir: Path, fault: dict[str, int]
) -> None:
    path = tiny.build("llama", tiny_dir, **fault)
    with pytest.raises(LoadError, match=r"file is damaged.*overflow.*-ctk f16"):
        open_session(Load(str(path), ctx=256, threads=1), lambda event: None, forgiving=True)


@pytest.mark.parametrize("tuning", [Tuning(temp=0.0), Tuning(temp=0.8), Tuning(temp=0.0, depth=4)])
def test_a_reply_that_comes_to_such_a_row_ends_as_an_error_and_the_next_one_runs(
    tiny_dir: Path, tuning: Tuning
) -> None:
    path = tiny.build("llama", tiny_dir, nan_token=LATER)
    with opened(Load(str(path), ctx=256, threads=1, lookup=True)) as bench:
        answer = bench.ask(" loop", 40, tuning=tuning)
        assert answer.text == " we go up to the old red"
        assert answer.ended.finish_reason == "error"
        assert "file is damaged" in answer.ended.detail and "Retry" not in answer.ended.detail
        assert bench.ask(" stop", tuning=Tuning(temp=0.0)).text == " all done"


def test_a_file_of_prompts_says_which_answer_came_to_such_a_row(
    run_here: RunHere, tiny_dir: Path, tmp_path: Path
) -> None:
    path, prompts = tiny.build("llama", tiny_dir, nan_token=LATER), tmp_path / "prompts.txt"
    prompts.write_text(" stop\n loop\n")
    args = ["-m", path, "--raw", "--prompts-file", prompts, "-c", "256", "-n", "40", "--json", "-t", "1"]
    done = run_here(*args)
    first, second = map(json.loads, done.out.splitlines())
    assert (first["text"], first["finish_reason"]) == (" all done", "stop")
    assert (second["finish_reason"], done.code) == ("error", 1)
    assert "prompt 2: The model's output is not numbers" in done.err


def test_the_check_fails_where_both_ways_would_meet_the_same_fault(run_here: RunHere, tiny_dir: Path) -> None:
    path = tiny.build("llama", tiny_dir, nan_token=LATER)
    args = ["check", "-m", path, "--lookup", "--raw", "-p", " loop", "-c", "256", "-n", "40", "-t", "1"]
    done = run_here(*args)
    assert done.code == 1
    assert "file is damaged" in done.err and "equal" not in done.out.lower()
