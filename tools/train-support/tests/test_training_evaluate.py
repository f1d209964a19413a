"""The evaluation through ds4chat's engine. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
from eagle3_training import cli
from eagle3_training.errors import TrainingError
from eagle3_training.evaluate import Tally, evaluate, loop_start, one_shot, table


def reply(ids: list[int], positions: list[tuple[int, int]], steps: int, ms: float) -> dict[str, Any]:
    return {
        "tokens": [{"id": i} for i in ids],
        "stats": {
            "by_position": [{"judged": j, "accepted": a} for j, a in positions],
            "steps": steps,
            "emitted": len(ids),
            "ms": {"total": ms},
        },
    }


def test_figures_are_of_the_sums_not_of_the_means() -> None:
    """Judged 4 + 2 and accepted 3 + 1 at position 1, 3 and 1 at position 2; 12 tokens in 6 passes, 600 ms."""
    tally = Tally()
    tally.add(reply(list(range(8)), [(4, 3), (3, 1)], 4, 400.0), same=True)
    tally.add(reply(list(range(4)), [(2, 1)], 2, 200.0), same=False)
    assert tally.conditional == pytest.approx([4 / 6, 1 / 3])
    assert tally.tokens_per_pass == 2.0
    assert tally.tokens_per_s == pytest.approx(20.0)
    assert (tally.replies, tally.same) == (2, 1)
    assert tally.as_json()["by_position"] == [{"judged": 6, "accepted": 4}, {"judged": 3, "accepted": 1}]


def test_a_loop_starts_with_its_24th_repeated_token() -> None:
    assert loop_start([*range(10), *[5] * 40]) == 34  # token 10 begins it, token 11 is its first repeat
    assert loop_start(list(range(100))) == 100
    assert loop_start([]) == 0


def test_a_reply_that_loops_is_cut_for_every_depth() -> None:
    """A stand-in for the command line shows what is asked of it: all 60 tokens first, then up to the loop."""
    asked: list[list[str]] = []

    def run(options: Sequence[str]) -> dict[str, Any]:
        asked.append(list(options))
        n = int(options[options.index("-n") + 1])
        return reply([*range(10), *[5] * 50][:n], [(3, 2)] if "--mtp" in options else [], n, 10.0)

    tallies = evaluate(run, Path("head.gguf"), {"chat": ["Hi"]}, (1, 2), max_tokens=60)
    assert asked == [
        ["-p", "Hi", "-n", "60"],
        ["-p", "Hi", "-n", "34"],
        ["--mtp", "head.gguf", "--mtp-draft", "1", "-p", "Hi", "-n", "34"],
        ["--mtp", "head.gguf", "--mtp-draft", "2", "-p", "Hi", "-n", "34"],
    ]
    assert tallies[0]["all"].emitted == tallies[2]["chat"].emitted == 34
    assert tallies[1]["all"].same == 1


def test_acceptance_of_a_constructed_pair_through_the_command_line(tiny_dir: Path) -> None:
    """Every fourth word that the constructed head drafts is wrong. The reply is 20 words of a cycle of
    24, and each pass emits the drafts that it accepts and one token of the target's."""
    pytest.importorskip("ds4chat.commands.main")
    target, head = tiny.build("llama", tiny_dir), tiny.build("eagle3", tiny_dir)
    tallies = evaluate(one_shot(target, 1), head, {"chat": ["loop"]}, (1, 3), max_tokens=20)
    assert tallies[0]["all"].emitted == 20
    for depth in (1, 3):
        counts = tallies[depth]["all"]
        assert counts.same == counts.replies == 1
        assert counts.emitted == 20
        assert len(counts.judged) == depth
        assert 0 < counts.accepted[0] < counts.judged[0]
        assert counts.emitted == counts.steps + sum(counts.accepted)
    assert f"depth 3: acceptance {tallies[3]['all'].conditional[0]:.3f}" in table(tallies)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["evaluate", "--depths", "0"], "'0' is not a whole number from 1 on"),
        (["evaluate", "--depths", "1,17"], "at most 16"),
        (["generate", "--rows", "x"], "'x' is not a whole number from 1 on"),
        (["train", "--layers", "1,-2"], "'-2' is not a whole number from 0 on"),
        (["train", "--epochs", "nan"], "'nan' is not a number"),
        (["export", "--type", "Q3_K"], "invalid choice"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([*options, "--target", "t", "--work", "w", "--head", "h", "--out", "o"])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_a_failed_run_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="ds4chat could not answer"):
        one_shot(tmp_path / "none.gguf", 1)(["-p", "Hi", "-n", "4"])
