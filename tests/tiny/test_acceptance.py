"""Every constructed file loads in llama.cpp, says its chain, and is accepted exactly as simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny
from tiny import raw, vocab

# Properties of the tiny models themselves, each in processes of its own.
pytestmark = pytest.mark.slow

END_NOW = tiny.encode(" end now")
PAIRS = [
    ("deepseek4", "deepseek4-support", "nextn"),
    ("deepseek4-nextn", "", "nextn"),
    ("qwen35-nextn", "", "nextn"),
    ("qwen3next-nextn", "", "nextn"),
    ("mimo2-nextn", "", "chained"),
    ("gemma4", "gemma4-assistant", "assistant"),
    ("llama", "eagle3", "eagle3"),
    ("llama", "llama-draft", "draft"),
]
COUNTERS = ("steps", "drafted", "judged", "accepted")


def _same(got: dict[str, Any], expected: tiny.Simulated) -> None:
    assert got["tokens"] == expected.tokens
    assert {c: got[c] for c in COUNTERS} == {c: getattr(expected, c) for c in COUNTERS}
    assert [tuple(pair) for pair in got["by_position"]] == expected.by_position


@pytest.mark.parametrize(
    "target", ["deepseek4", "qwen35-nextn", "llama", "mimo2-nextn", "gemma4", "qwen3next-nextn"]
)
def test_plain_greedy_decoding_is_the_chain(tiny_dir: Path, target: str) -> None:
    path = str(tiny.build(target, tiny_dir))
    prompts = [" end now", *(f"hi {topic}" for topic in vocab.TOPICS), "<｜Assistant｜></think>"]
    answers = raw.run_all([{"kind": "plain", "target": path, "prompt": p, "n_tokens": 40} for p in prompts])
    for prompt, answer in zip(prompts, answers):
        assert answer["prompt"] == tiny.encode(prompt)
        assert answer["tokens"] == tiny.reply(answer["prompt"][-1], 40)


def test_llama_cpp_tokenizes_as_the_vocabulary_says(tiny_dir: Path) -> None:
    texts = [
        "The  old hut, 12 big logs!\nand_so on",
        "<｜User｜>é\U0001f600 hello sun<｜Assistant｜><think> let me</think>",
        " se sea set  ",
    ]
    for kind in ("llama", "qwen35-nextn", "qwen3next-nextn"):
        path = str(tiny.build(kind, tiny_dir))
        answers = raw.run_all([{"kind": "plain", "target": path, "prompt": t, "n_tokens": 1} for t in texts])
        assert [a["prompt"] for a in answers] == [tiny.encode(t) for t in texts]


@pytest.mark.parametrize(("target", "support", "kind"), PAIRS, ids=[s or t for t, s, _ in PAIRS])
@pytest.mark.parametrize("wrong_every", [3, 4])
def test_acceptance_is_as_simulated(
    tiny_dir: Path, target: str, support: str, kind: str, wrong_every: int
) -> None:
    where = tiny.build(target, tiny_dir, **({} if support else {"wrong_every": wrong_every}))
    beside = str(tiny.build(support, tiny_dir, wrong_every=wrong_every)) if support else ""
    job = {"kind": kind, "target": str(where), "support": beside}
    cases = [(END_NOW, 150, depth, 512) for depth in (1, 2, 3, 6)]
    cases += [(tiny.encode(f"hi {topic}"), 40, 4, 512) for topic in vocab.TOPICS]
    cases += [(tiny.encode("<｜Assistant｜><think>"), 40, 8, 512), (tiny.encode("so hi"), 30, 3, 512)]
    answers = raw.run_all(
        [job | {"prompt": p, "n_tokens": n, "depth": d, "n_ctx": ctx} for p, n, d, ctx in cases]
    )
    for (prompt, n_tokens, depth, n_ctx), got in zip(cases, answers):
        _same(
            got,
            tiny.simulate(prompt, n_tokens, depth, support or target, wrong_every=wrong_every, n_ctx=n_ctx),
        )


@pytest.mark.parametrize(
    "parameters",
    [{"reduced": False}, {"own_embeddings": False}, {"reduced": False, "own_embeddings": False}],
    ids=str,
)
def test_eagle3_variants_are_accepted_alike(tiny_dir: Path, parameters: dict[str, bool]) -> None:
    job = {
        "kind": "eagle3",
        "target": str(tiny.build("llama", tiny_dir)),
        "support": str(tiny.build("eagle3", tiny_dir, **parameters)),
    }
    _same(
        raw.run(job | {"prompt": END_NOW, "n_tokens": 100, "depth": 3}),
        tiny.simulate(END_NOW, 100, 3, "eagle3"),
    )


def test_eagle3_with_the_targets_own_head_is_never_wrong(tiny_dir: Path) -> None:
    support = tiny.build("eagle3", tiny_dir, own_output=False, own_embeddings=False)
    job = {"kind": "eagle3", "target": str(tiny.build("llama", tiny_dir)), "support": str(support)}
    got = raw.run(job | {"prompt": END_NOW, "n_tokens": 100, "depth": 3})
    assert got["accepted"] == got["drafted"] == 75
    assert got["tokens"] == tiny.reply(END_NOW[-1], 100)


def test_a_random_head_changes_no_token(tiny_dir: Path) -> None:
    target = str(tiny.build("qwen35-nextn", tiny_dir, random_head=True))
    got = raw.run(
        {"kind": "nextn", "target": target, "support": "", "prompt": END_NOW, "n_tokens": 60, "depth": 4}
    )
    assert got["tokens"] == tiny.reply(END_NOW[-1], 60)
    assert got["accepted"] < got["judged"] / 4


def test_a_support_file_that_is_never_wrong(tiny_dir: Path) -> None:
    job = {
        "kind": "nextn",
        "target": str(tiny.build("deepseek4", tiny_dir)),
        "support": str(tiny.build("deepseek4-support", tiny_dir, wrong_every=0)),
    }
    got = raw.run(job | {"prompt": END_NOW, "n_tokens": 100, "depth": 4})
    assert (got["steps"], got["drafted"], got["accepted"]) == (20, 80, 80)


def test_a_support_file_stored_in_q8_0_drafts_the_same(tiny_dir: Path) -> None:
    job = {
        "kind": "nextn",
        "target": str(tiny.build("deepseek4", tiny_dir)),
        "support": str(tiny.build("deepseek4-support", tiny_dir, storage="Q8_0")),
    }
    _same(raw.run(job | {"prompt": END_NOW, "n_tokens": 100, "depth": 3}), tiny.simulate(END_NOW, 100, 3))
