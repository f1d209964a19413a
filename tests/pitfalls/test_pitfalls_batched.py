"""Many prompts in one batched context, and devices that share a step: MTP is off there and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from kits.command_line import Ran, ds4chat

from ds4chat.commands import chat
from ds4chat.engine.batched import DEFAULT_CTX

# Engines in processes of their own, or whole conversations by each drafter.
pytestmark = pytest.mark.slow

# Replies of different lengths and ends: stopped, cut characters, and as long as the budget.
PROMPTS = (
    " end now",
    "hi emoji",
    "hi stop",
    "so ponder",
    "hi broken",
    " we",
    "hi cut",
    " now" * 200,
    "so hi we go",
)


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def many(folder: Path, file: Path, parallel: int, *more: str | Path) -> Ran:
    return ds4chat(
        *("-m", tiny.build("llama", folder), "-c", "512", "-t", "1", "--raw", "-n", "40"),
        *("--prompts-file", file, "--parallel", str(parallel)),
        *more,
    )


def answers(ran: Ran) -> list[dict[str, object]]:
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


@pytest.mark.parametrize("parallel", [1, 2, 4, 16])
def test_answers_come_in_order_one_json_line_each(tiny_dir: Path, prompts_file: Path, parallel: int) -> None:
    """More slots than prompts, and fewer: each line is the answer that its prompt has alone."""
    got = answers(many(tiny_dir, prompts_file, parallel, "--json"))
    assert len(got) == len(PROMPTS)
    for prompt, answer in zip(PROMPTS, got):
        ids = tiny.encode(prompt)
        hand = tiny.simulate(ids, 40, 0, "llama-draft")
        assert [t["id"] for t in answer["tokens"]] == hand.tokens, prompt  # type: ignore[attr-defined]
        assert answer["finish_reason"] == hand.finish_reason
        assert answer["prompt_tokens"] == len(ids)
        assert {t["origin"] for t in answer["tokens"]} == {"plain"}  # type: ignore[attr-defined]


def test_a_batched_answer_is_the_single_ones_to_the_letter(tiny_dir: Path, prompts_file: Path) -> None:
    got = answers(many(tiny_dir, prompts_file, 3, "--json"))
    for prompt, answer in list(zip(PROMPTS, got))[:5]:
        single = ds4chat(
            *("-m", tiny.build("llama", tiny_dir), "-c", "512", "-t", "1", "--raw", "-n", "40"),
            *("-p", prompt, "--json"),
        ).json
        for key in ("text", "tokens", "finish_reason", "prompt_tokens"):
            assert answer[key] == single[key], (prompt, key)


def test_seeded_samples_do_not_depend_on_who_shares_the_batch(tiny_dir: Path, tmp_path: Path) -> None:
    """A target that prefers its token by 0.4 logits: another slot's draws would show at once."""
    target = tiny.build("llama", tiny_dir, gain=0.05)
    alone, crowd = tmp_path / "alone.txt", tmp_path / "crowd.txt"
    alone.write_text("end now\n")
    crowd.write_text("end now\nhi stop\nso we\nend now\n")
    sampling = ("--temp", "1", "--seed", "7", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--ignore-eos")
    texts: list[list[list[int]]] = []
    for file in (alone, crowd):
        ran = ds4chat(
            *("-m", target, "-c", "512", "-t", "1", "--raw", "-n", "30", "--json", *sampling),
            *("--prompts-file", file, "--parallel", "4"),
        )
        texts.append([[t["id"] for t in answer["tokens"]] for answer in answers(ran)])  # type: ignore[attr-defined]
    assert texts[1][0] == texts[1][3] == texts[0][0]
    assert texts[0][0] != tiny.reply(tiny.encode("end now")[-1], 30)


def test_text_comes_a_prompt_a_line_without_json(tiny_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("hi stop\n\nhi cut\n")
    ran = many(tiny_dir, file, 2)
    assert (ran.code, ran.out) == (0, " all done\n off here\n")


@pytest.mark.parametrize("how", [["--lookup"], ["--mtp"]])
def test_batching_switches_speculation_off_and_says_why(
    tiny_dir: Path, prompts_file: Path, how: list[str]
) -> None:
    if how == ["--mtp"]:
        how = ["--mtp", str(tiny.build("llama-draft", tiny_dir, wrong_every=4))]
    ran = many(tiny_dir, prompts_file, 4, "--json", *how)
    assert "MTP is off: the prompts of a file share one batched context (--parallel)" in ran.err
    for answer in answers(ran):
        assert answer["settings"]["drafter"] is None  # type: ignore[index]
        assert "--parallel" in answer["settings"]["off_reason"]  # type: ignore[index]
        assert answer["stats"]["drafted"] == 0  # type: ignore[index]


def test_a_prompt_that_does_not_fit_costs_its_own_answer_only(tiny_dir: Path, tmp_path: Path) -> None:
    """Exit code 1, a sentence with the prompt's number, and the other answers in their places."""
    file = tmp_path / "prompts.txt"
    file.write_text("hi stop\n" + " now" * 600 + "\nhi cut\n")
    ran = many(tiny_dir, file, 2, "--json")
    assert ran.code == 1
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["text"] for line in lines] == [" all done", "", " off here"]
    assert lines[1]["finish_reason"] == "context"
    assert "prompt 2: The prompt has 601 tokens and the context holds 512" in ran.err


def test_a_slot_is_used_again_from_an_empty_cache(tiny_dir: Path, tmp_path: Path) -> None:
    """Random weights: what a prompt before left in the slot's cells would change the text."""
    target = tiny.build("llama-random", tiny_dir)
    alone, queue = tmp_path / "alone.txt", tmp_path / "queue.txt"
    alone.write_text(" so we sit\n")
    queue.write_text(" the old mill turns and the old mill\n so we sit\n")
    texts = []
    for file in (alone, queue):
        ran = ds4chat(
            *("-m", target, "-c", "256", "-t", "1", "--raw", "-n", "60", "--json", "--ignore-eos"),
            *("--prompts-file", file, "--parallel", "1"),
        )
        texts.append([t["id"] for t in answers(ran)[-1]["tokens"]])  # type: ignore[attr-defined]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 60


@pytest.mark.parametrize(
    "arguments",
    [["--parallel", "0"], ["--parallel", "x"], ["--parallel", "257"], ["-p", "hi"], ["--prompt-file", "x"]],
)
def test_what_does_not_go_with_a_prompts_file_is_a_usage_error(
    tiny_dir: Path, prompts_file: Path, arguments: list[str]
) -> None:
    ran = ds4chat("-m", tiny.build("llama", tiny_dir), "--prompts-file", prompts_file, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("ds4chat: ")


def test_parallel_without_a_prompts_file_is_a_usage_error(tiny_dir: Path) -> None:
    ran = ds4chat("-m", tiny.build("llama", tiny_dir), "-p", "hi", "--parallel", "2")
    assert (ran.code, ran.out) == (2, "")
    assert "--prompts-file" in ran.err


# -- split mode


@pytest.mark.parametrize("mode", ["row", "tensor"])
@pytest.mark.parametrize("how", ["support", "lookup"])
def test_split_mode_switches_speculation_off_and_says_why(tiny_dir: Path, mode: str, how: str) -> None:
    support = ["--mtp", str(tiny.build("llama-draft", tiny_dir, wrong_every=4))]
    ran = ds4chat(
        *("-m", tiny.build("llama", tiny_dir), "-c", "512", "-t", "1", "--raw", "-n", "40", "-p", " end now"),
        *("--json", "--split-mode", mode, "--mtp-draft", "3"),
        *(support if how == "support" else ["--lookup"]),
    )
    assert ran.code == 0, ran.err
    assert f"MTP is off: split mode {mode}" in ran.err
    assert ran.ids == tiny.reply(tiny.encode(" end now")[-1], 40)
    assert ran.json["settings"]["drafter"] is None
    assert "--split-mode layer" in ran.json["settings"]["off_reason"]
    assert ran.json["stats"]["drafted"] == 0


def test_the_help_says_how_long_a_context_each_prompt_has() -> None:
    """Many contexts stand in memory together, so it is shorter than the one of a single prompt."""
    said = " ".join(chat.parser("").format_help().split())
    assert f"Each has a context of -c tokens, or without -c of at most {DEFAULT_CTX}." in said
