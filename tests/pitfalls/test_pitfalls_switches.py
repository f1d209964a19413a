"""The environment switches through the command line: what each changes of what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny
from kits.command_line import Ran, ds4chat
from kits.engine import END_NOW

# Engines in processes of their own, or whole conversations by each drafter.
pytestmark = pytest.mark.slow

PLAIN = tiny.reply(tiny.encode(END_NOW)[-1], 41)


def files(folder: Path) -> list[str]:
    """The target, whose second choice after each word of the cycle has half the probability of the first and
    is what the draft model proposes after every fourth word."""
    target = tiny.build("llama", folder, runner_ratio=0.5)
    support = tiny.build("llama-draft", folder, wrong_every=4)
    return ["-m", str(target), "--mtp", str(support), "-c", "512", "-t", "1"]


def shot(folder: Path, *more: str, n: int = 41, **env: str) -> Ran:
    """One reply of ``n`` tokens as JSON."""
    ran = ds4chat(*files(folder), "-p", END_NOW, "--raw", "--json", "-n", str(n), *more, env=env)
    assert ran.code == 0, ran.err
    return ran


def all_drafts_accepted(n: int, depth: int) -> list[int]:
    """The reply when every draft passes: two plain steps, which every reply begins with, then in each step
    depth words of the draft model and one of the target."""
    tokens = PLAIN[:2]
    last = tokens[-1]
    while len(tokens) < n:
        for _ in range(min(depth, n - len(tokens) - 1)):
            last = tiny.draft_token(last, 4)
            tokens.append(last)
        last = tiny.next_token(last)
        tokens.append(last)
    return tokens


LOSSY = all_drafts_accepted(41, 3)


def test_the_two_texts_differ_after_the_first_fourth_word() -> None:
    """ " to" is a fourth word: there the draft model says another word than the target."""
    assert LOSSY[:4] == PLAIN[:4]
    assert LOSSY[4] == tiny.draft_token(PLAIN[3], 4) != PLAIN[4]


# -- DS4_MTP_MIN_MARGIN


@pytest.mark.parametrize(
    ("margin", "arguments", "ids", "mode"),
    [
        ("0.4", [], LOSSY, "approximate"),
        ("0.6", [], PLAIN, "approximate"),
        ("0.4", ["--mtp-margin", "1"], LOSSY, "approximate"),
        ("1", ["--mtp-margin", "0.4"], PLAIN, "exact"),
        ("", ["--mtp-margin", "0.4"], LOSSY, "approximate"),
        ("", [], PLAIN, "exact"),
    ],
)
def test_min_margin_decides_what_is_accepted(
    tiny_dir: Path, margin: str, arguments: list[str], ids: list[int], mode: str
) -> None:
    """Below 0.5 the second choice passes, above it does not; the variable wins over the option."""
    ran = shot(tiny_dir, "--mtp-draft", "3", *arguments, DS4_MTP_MIN_MARGIN=margin)
    assert ran.ids == ids
    assert ran.json["settings"]["mode"] == mode
    assert ran.json["text"] == tiny.text(ids)


@pytest.mark.parametrize("margin", ["half", "2", "-0.1", "nan"])
def test_a_min_margin_that_is_none_is_ignored_with_a_warning(tiny_dir: Path, margin: str) -> None:
    ran = shot(tiny_dir, "--mtp-draft", "3", DS4_MTP_MIN_MARGIN=margin)
    assert ran.ids == PLAIN
    assert "DS4_MTP_MIN_MARGIN" in ran.err
    assert margin in ran.err


# -- DS4_MTP_STRICT


def test_strict_ignores_the_margin_and_says_how_it_verifies(tiny_dir: Path) -> None:
    ran = shot(tiny_dir, "--mtp-draft", "3", "--mtp-margin", "0.4", DS4_MTP_STRICT="1")
    assert ran.ids == PLAIN
    assert ran.json["settings"]["mode"] == "strict"
    assert re.search("bit-equal|one token at a time", ran.json["settings"]["strict_note"])
    assert ran.json["stats"]["accepted"] > 0


@pytest.mark.parametrize("off", ["", "0"])
def test_strict_unset_empty_or_0_is_off(tiny_dir: Path, off: str) -> None:
    ran = shot(tiny_dir, "--mtp-draft", "3", "--mtp-margin", "0.4", DS4_MTP_STRICT=off)
    assert ran.ids == LOSSY
    assert ran.json["settings"]["strict_note"] == ""


# -- DS4_MTP_PROBE


def test_probe_prints_hits_and_leaves_the_text_plain(tiny_dir: Path) -> None:
    """41 tokens, a draft for all but the last: 40, of which those after every fourth word miss: 10."""
    ran = shot(tiny_dir, "--mtp-draft", "3", "--mtp-margin", "0.4", DS4_MTP_PROBE="1")
    assert ran.ids == PLAIN
    assert {t["origin"] for t in ran.json["tokens"]} == {"plain"}
    assert ran.json["stats"]["steps"] == 41
    lines = [line for line in ran.err.splitlines() if " probe " in line]
    assert len(lines) == 40
    assert lines[0].endswith("hit=0/1")
    assert lines[-1].endswith("hit=30/40")


def test_without_probe_there_is_no_probe_line(tiny_dir: Path) -> None:
    ran = shot(tiny_dir, "--mtp-draft", "3", DS4_MTP_PROBE="0")
    assert " probe " not in ran.err
    assert ran.json["stats"]["steps"] < 41


# -- DS4_MTP_FULL_LOGITS


@pytest.mark.parametrize("on", ["1", "0"])
def test_full_logits_put_the_distribution_into_the_confidence_log(tiny_dir: Path, on: str) -> None:
    """Where the draft errs it has half of the likeliest token's probability: 1/3 against 2/3, and the other
    382 tokens share what is left."""
    ran = shot(tiny_dir, "--mtp-draft", "3", "--mtp-conf-log", DS4_MTP_FULL_LOGITS=on)
    assert ran.ids == PLAIN
    lines = [line for line in ran.err.splitlines() if " conf " in line]
    assert len(lines) == ran.json["stats"]["judged"] > 10
    if on == "0":
        assert not [line for line in lines if "p_draft" in line or "entropy_nats" in line or "top=" in line]
        return
    for line in lines:
        said = {name: float(re.search(rf"{name}=(\S+)", line)[1]) for name in ("p_draft", "p_target")}  # type: ignore[index]
        accepted = "accepted=1" in line
        assert said["p_draft"] == pytest.approx(2 / 3 if accepted else 1 / 3, rel=1e-3)
        assert said["p_target"] == pytest.approx(2 / 3, rel=1e-3)
        # -2/3 ln 2/3 - 1/3 ln 1/3
        assert float(re.search(r"entropy_nats=(\S+)", line)[1]) == pytest.approx(0.6365, abs=0.002)  # type: ignore[index]
        assert line.count("],[") == 4


# -- DS4_MTP_KEEP_ACCEPTED

CTRL_C_IN_THE_SECOND_BLOCK = """
import os, signal
from ds4chat.engine.llama import Context
real, blocks = Context.decode, []
def decode(self, tokens, pos, **more):
    if len(tokens) == 4 and more.get("outputs") == "all":
        blocks.append(pos)
        if len(blocks) == 2:
            os.kill(os.getpid(), signal.SIGINT)
    return real(self, tokens, pos, **more)
Context.decode = decode
"""


@pytest.mark.parametrize(("keep", "n"), [("1", 9), ("0", 5), (None, 9), ("", 9)])
def test_keep_accepted_decides_what_ctrl_c_leaves_of_a_block(
    tiny_dir: Path, keep: str | None, n: int
) -> None:
    """Ctrl-C comes while the second block of four is verified: two plain steps and a block of three tokens
    went before, and of this one its four tokens stay, or none. Set but empty is as good as unset: on."""
    env = {} if keep is None else {"DS4_MTP_KEEP_ACCEPTED": keep}
    ran = ds4chat(
        *files(tiny_dir),
        *("-p", END_NOW, "--raw", "--json", "-n", "41", "--mtp-draft", "3"),
        env=env,
        before=CTRL_C_IN_THE_SECOND_BLOCK,
    )
    assert ran.code == 130
    assert ran.json["finish_reason"] == "cancelled"
    assert ran.ids == PLAIN[:n]


def test_keep_accepted_changes_nothing_of_a_reply_that_ends_by_itself(tiny_dir: Path) -> None:
    """A draft never reaches past the budget, so there is no block to cut at the limit."""
    for n in (1, 2, 6, 7):
        for keep in ("0", "1"):
            ran = shot(tiny_dir, "--mtp-draft", "3", n=n, DS4_MTP_KEEP_ACCEPTED=keep)
            assert ran.ids == PLAIN[:n]
            assert ran.json["finish_reason"] == "length"
