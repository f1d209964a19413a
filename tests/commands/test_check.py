"""The lossless check from the command line: what it says of the speeds that it has measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny
from kits.command_line import Ran, ds4chat

from ds4chat.commands.check import CheckedReply, checked_reply
from ds4chat.engine.events import Ended, Phases, Replayed, Step, Token, Tuning
from ds4chat.engine.stats import Stats

SPEEDS = re.compile(
    r"Plain decoding took (?P<ms>\d+\.\d) ms a token, (?P<plain>\d+\.\d) tok/s\. "
    r"With MTP it was (?P<mtp>\d+\.\d) tok/s\.$"
)


def checked(*, equal: bool = True, plain_ms: float = 500.0, decode_ms: float = 400.0) -> CheckedReply:
    """20 tokens in 400 ms, and in 500 ms without drafts."""
    stats = Stats()
    tokens = tuple(Token(n, "x", "plain") for n in range(20))
    ms = Phases(0.0, decode_ms, 0.0, 0.0, 0.0, decode_ms)
    stats.fold(Step(1, 0, tokens, 0, (), "plain", ms, Tuning(), 0, "", 25))
    stats.fold(Ended(1, "length", "", 5, 0, 10.0, decode_ms, 30.0, 25, 1))
    replayed = Replayed(1, equal, 20, -1 if equal else 3, 7, 8, "a", "b", 2.0, "", plain_ms if equal else 0.0)
    return checked_reply("Hello", replayed, stats)


def test_both_speeds_are_told_of_an_equal_reply() -> None:
    assert checked().sentence == (
        "Equal: all 20 tokens are those of plain decoding (0 of 0 drafts accepted). "
        "Plain decoding took 25.0 ms a token, 40.0 tok/s. With MTP it was 50.0 tok/s."
    )


def test_a_speed_that_was_not_measured_is_not_told() -> None:
    assert checked(plain_ms=0.0).sentence.endswith("(0 of 0 drafts accepted).")
    assert checked(decode_ms=0.0).sentence.endswith("took 25.0 ms a token, 40.0 tok/s.")
    assert "tok/s" not in checked(equal=False).sentence


@pytest.fixture(scope="module")
def pair(tiny_dir: Path) -> tuple[str | Path, ...]:
    target, support = tiny.build("llama", tiny_dir), tiny.build("eagle3", tiny_dir, wrong_every=4)
    return ("check", "-m", target, "--mtp", support, "--raw", "-p", " end now", "-c", "256", "-t", "1")


def ran(pair: tuple[str | Path, ...], home: Path, *more: str) -> Ran:
    done = ds4chat(*pair, "-n", "40", "--mtp-draft", "2", *more, env={"DS4CHAT_HOME": str(home)})
    assert done.code == 0, done.err
    return done


def test_the_command_prints_both_speeds(pair: tuple[str | Path, ...], tmp_path: Path) -> None:
    prompt, sentence = ran(pair, tmp_path).out.splitlines()
    assert prompt == "end now" and sentence.startswith("  Equal: all 40 tokens")
    found = SPEEDS.search(sentence)
    assert found is not None, sentence
    ms, plain = float(found["ms"]), float(found["plain"])
    # Both of the same measurement, each to one decimal.
    assert abs(1000 / plain - ms) < 0.05 + 1000 / plain**2 * 0.05 + 1e-9
    assert float(found["mtp"]) > 0


def test_its_json_has_the_sentence_and_the_figure_in_it(pair: tuple[str | Path, ...], tmp_path: Path) -> None:
    (reply,) = ran(pair, tmp_path, "--json").json["replies"]
    found = SPEEDS.search(reply["sentence"])
    assert found is not None, reply["sentence"]
    assert found["mtp"] == f"{reply['stats']['decode_tokens_per_s']:.1f}"
