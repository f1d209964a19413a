"""The random twins have real numbers in their caches; the parameters move the logits as they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

import tiny
from tiny import chain, deepseek4, raw, vocab

# Properties of the tiny models themselves, each in processes of its own.
pytestmark = pytest.mark.slow

# Every word of the cycle and some bytes.
PROMPT = tiny.encode(" we go up to the old red hut by sea and sit on a big log!")


def _rows(path: Path) -> tuple[np.ndarray, np.ndarray]:
    answer = raw.run({"kind": "plain", "logits": True, "target": str(path), "prompt": PROMPT})
    return np.array(answer["batch"]), np.array(answer["single"])


@pytest.mark.parametrize("kind", ["llama-random", "deepseek4-random", "qwen35-random"])
def test_random_twins_depend_on_what_came_before(tiny_dir: Path, kind: str) -> None:
    batch, single = _rows(tiny.build(kind, tiny_dir))
    assert np.abs(batch - single).max() < 0.05
    assert len(set(batch.argmax(axis=1))) > 5
    again = raw.run(
        {
            "kind": "plain",
            "logits": True,
            "target": str(tiny.build(kind, tiny_dir)),
            "prompt": PROMPT[1:],
        }
    )
    assert np.abs(batch[1:] - np.array(again["batch"])).max() > 0.1


@pytest.mark.parametrize("kind", ["llama-random", "deepseek4-random", "qwen35-random"])
def test_rollback_restores_the_state_of_random_twins(tiny_dir: Path, kind: str) -> None:
    job = {"target": str(tiny.build(kind, tiny_dir)), "prompt": PROMPT}
    plain = raw.run(job | {"kind": "plain", "n_tokens": 120})["tokens"]
    oracle = {"kind": "oracle", "reference": plain, "wrong_every": 5}
    for got in raw.run_all([job | oracle | {"n_tokens": len(plain), "depth": depth} for depth in (2, 3, 8)]):
        assert got["tokens"] == plain
        assert 0 < got["accepted"] < got["judged"]


@pytest.mark.parametrize("quant", ["Q4_0", "Q8_0", "Q4_K"])
def test_random_llama_is_stored_in_the_type_asked_for(tiny_dir: Path, quant: str) -> None:
    path = tiny.build("llama-random", tiny_dir, quant=quant)
    stored = {t.tensor_type.name for t in GGUFReader(path).tensors if len(t.shape) > 1}
    assert stored == {quant}
    exact, _ = _rows(tiny.build("llama-random", tiny_dir))
    batch, _ = _rows(path)
    assert np.corrcoef(exact.ravel(), batch.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("target", ["llama", "deepseek4", "gemma4"])
def test_the_runner_up_has_the_ratio_asked_for(tiny_dir: Path, target: str) -> None:
    batch, _ = _rows(tiny.build(target, tiny_dir, runner_ratio=0.5))
    for row, token in zip(batch, PROMPT):
        order = np.argsort(row)[::-1]
        assert order[0] == tiny.next_token(token)
        if token in tiny.CYCLE:
            assert order[1] == chain.wrong_token(token)
            assert np.exp(row[order[1]] - row[order[0]]) == pytest.approx(0.5, rel=0.01)


def test_gains_are_the_margins(tiny_dir: Path) -> None:
    batch, _ = _rows(tiny.build("llama-draft", tiny_dir, gain=1.5, wrong_gain=0.25))
    for row, token in zip(batch, PROMPT):
        top = np.sort(row)[::-1]
        # 8 times the gain: the norm of a one-hot row of width 64.
        assert top[0] - top[1] == pytest.approx(2.0 if chain.is_wrong(token, 4) else 12.0, abs=0.01)


def test_ds4_layout_holds_the_same_numbers_as_llama_cpps(tiny_dir: Path) -> None:
    for storage in ("F32", "Q8_0"):
        ours = {
            t.name: t for t in GGUFReader(tiny.build("deepseek4-support", tiny_dir, storage=storage)).tensors
        }
        ds4 = {t.name: t for t in GGUFReader(tiny.build("deepseek4-ds4", tiny_dir, storage=storage)).tensors}
        halves = [ds4[f"mtp.0.{name}_proj.weight"].data for name in ("e", "h")]
        assert np.array_equal(np.concatenate(halves, axis=1), ours["blk.3.nextn.eh_proj.weight"].data)
        for name in ("attn_q_b.weight", "ffn_gate_exps.weight", "attn_sinks.weight", "exp_probs_b.bias"):
            assert np.array_equal(ds4[f"mtp.0.{name}"].data, ours[f"blk.3.{name}"].data)
        assert np.array_equal(ds4["mtp.0.hc_head_base.weight"].data, ours["output_hc_base.weight"].data)
    # 31 tensors of the published file, and one more half of the mixing matrix.
    assert len(deepseek4.ds4_tensors()) == 32


def test_eagle3_attends_to_its_own_position_alone() -> None:
    # 32 dimensions a head, query and key are 8 * 1.5 in each: 144 / sqrt(32) times 2 cos(distance * theta)
    # summed over 16 pairs.
    theta = 10000.0 ** (-np.arange(16) / 16)
    distance = np.arange(1, 4097)[:, None]
    below_the_top = 144 / np.sqrt(32) * 2 * (1 - np.cos(distance * theta)).sum(axis=1)
    assert below_the_top.min() > 30


def test_vocabulary_variants() -> None:
    standard, changed, longer = (vocab.vocabulary(v) for v in ("standard", "changed", "longer"))
    differing = [(a, b) for a, b in zip(standard.texts, changed.texts) if a != b]
    assert differing == [("Ġlog", "Ġlot")]
    assert len(standard.texts) == len(changed.texts) == 384
    assert longer.texts[:384] == standard.texts
    assert len(longer.texts) == 416
