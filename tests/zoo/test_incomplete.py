"""Files that lack a tensor or a key, or say something odd: ds4chat or llama.cpp's loader refuses them in a
sentence, or they run. Nothing that a file says ends the process.

The sweep takes every tensor and every key out of a model of each architecture, one at a time, and puts other
values in the keys' place; the cases below are those that once ended the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.loader import Loader
from kits.refusals import reason
from tiny import species, zoo
from tiny.species import EXPERTS, FFN, INDEXER, LAYERS, SHARED_EXPERT
from zoo.fast import params

from ds4chat.commands.inspect import inspect_files
from ds4chat.models.pairing import check_pair, check_target

NEXTN = f"blk.{LAYERS}."

LACKING: list[tuple[str, str]] = [
    *((name, f"blk.1.{t}.weight") for name in ("qwen35", "qwen35moe") for t in ("attn_qkv", "attn_gate")),
    *(
        (name, "blk.0.ssm_conv1d.bias")
        for name in ("nemotron_h", "nemotron_h_moe", "granitehybrid", "falcon-h1")
    ),
    *((name, f"blk.{i}.{INDEXER[-1]}") for name in ("glm-dsa", "glm-dsa-shared") for i in (0, 2)),
    *((name, f"blk.1.{t}") for name in ("step35-1", "mimo2-1", "hy_v3-1") for t in EXPERTS[1:]),
    *((name, f"blk.2.{t}") for name in ("step35-1", "hy_v3-1") for t in SHARED_EXPERT),
    *((name, f"blk.0.{t}") for name in ("step35-1", "mimo2-1", "hy_v3-1") for t in FFN),
    ("nemotron_h_moe", "blk.1.ffn_latent_up.weight"),
]
"""A trunk without the tensor ended plain decoding."""

LACKING_NEXTN: list[tuple[str, str]] = [
    ("mimo2-1", "attn_qkv.weight"),
    *(("mimo2-1", tensor) for tensor in FFN),
    *(("step35-1", tensor) for tensor in FFN),
    *(("hy_v3-1", tensor) for tensor in (*EXPERTS[1:], *SHARED_EXPERT)),
    ("nemotron_h_moe", "ffn_latent_down.weight"),
    ("bailingmoe3", "layer_output_norm.weight"),
]
"""A NextN block without the tensor ended the process, inside the target and in a support file."""

ODD: list[tuple[str, dict[str, Any], str]] = [
    ("deepseek2", {"attention.temperature_scale": 0.1}, "scales its attention by the position"),
    (
        "deepseek2",
        {"attention.key_length_mla": None, "attention.value_length_mla": None, "attention.head_count_kv": 2},
        "with 4 layers, as a model without low-rank attention",
    ),
    ("deepseek2", {"leading_dense_block_count": LAYERS + 1}, "have no experts, its NextN block 4 among them"),
    ("nemotron_h_moe", {"expert_used_count": [1, 2, 2, 2, 2]}, "uses 2 experts, and llama.cpp would use"),
]
"""Metadata with which the NextN graph cannot run, though plain decoding can."""

CORRUPT: list[tuple[str, dict[str, Any], str]] = [
    ("deepseek2", {"attention.key_length_mla": 32}, "its rope.dimension_count is 32"),
    ("deepseek2", {"attention.key_length": 65}, "attention.kv_lora_rank and rope.dimension_count, 64"),
    (
        "deepseek2-legacy",
        {"attention.head_count_kv": 1},
        "1 heads of keys and values, where llama.cpp wants 2",
    ),
    ("deepseek2-legacy", {"attention.head_count": None}, "its attention.head_count is 0"),
    ("glm-dsa", {"attention.head_count_kv": 2}, "2 heads of keys and values, where llama.cpp wants 1"),
    ("glm-dsa-shared", {"attention.indexer.types": [False, True, True, True]}, "block 0 has no indexer"),
    ("cohere2moe", {"attention.sliding_window_pattern": [False] * 5}, "no layer that sees it"),
    ("deepseek32", {"expert_gating_func": 0}, "its expert_gating_func is 0"),
    ("minimax-m2", {"expert_gating_func": None}, "its expert_gating_func is 0"),
    ("bailingmoe3", {"kda.gate_lower_bound": 5.0}, "its kda.gate_lower_bound is 5.0"),
    ("bailingmoe3", {"attention.head_count_kv": [0, 0, 0, 0, 1]}, "its layers are all recurrent"),
    ("lfm2", {"attention.head_count_kv": 2}, "its layers are all attention"),
    ("lfm2", {"attention.head_count": 4}, "its attention.head_count times attention.key_length is 128"),
    ("minimax-01", {"full_attention_interval": 0}, "its full_attention_interval is 0"),
    ("gpt-oss", {"attention.value_length": 64}, "equal to attention.key_length, 32"),
    ("gemma4", {"attention.value_length": 64}, "equal to attention.key_length, 32"),
    ("granitehybrid", {"embedding_length": 128}, "its ssm.inner_size is 128"),
    ("glm5-next", {"attention.key_length": 64}, "attention.kv_lora_rank and rope.dimension_count, 32"),
    ("rwkv7", {"wkv.head_size": 33}, "its wkv.head_size is 33"),
    ("hy_v4", {"attention.value_length_mla": 0}, "its attention.value_length_mla is 0"),
    ("dots3note", {"attention.key_length_swa": 65}, "its attention.key_length_swa is 65"),
    ("dots3note", {"attention.sliding_window_pattern": [True] * 4}, "sees beyond the sliding window"),
    ("dots3note", {"attention.sliding_window_pattern": [True]}, "lists 1 layers, and it has 4"),
    ("qwen3moe", {"expert_used_count": [0, 2, 2, 2]}, "it uses 0 experts in its first block"),
    ("llama", {"attention.head_count_kv": 3, "attention.head_count": 4}, "4 attention heads over 3"),
]
"""Metadata that ended the process in any use."""


def keys(own: dict[str, Any]) -> dict[str, Any]:
    return {key.replace(".", "__"): value for key, value in own.items()}


def without(name: str, tensor: str, folder: Path, path: Path, part: zoo.Part = "whole") -> Path:
    """The file without one tensor."""
    tensors = zoo.part_of(zoo.tensors_of(name, folder), part)
    assert tensor in tensors
    del tensors[tensor]
    zoo.save(path, species.ALL[name], tensors)
    return path


@pytest.mark.parametrize(("name", "tensor"), params(LACKING))
def test_an_incomplete_trunk_is_refused(name: str, tensor: str, tiny_dir: Path, tmp_path: Path) -> None:
    path = without(name, tensor, tiny_dir, tmp_path / "f.gguf")
    sentence = reason(lambda: check_target(path))
    assert sentence == (
        f"{path} is incomplete: it lacks the tensor {tensor}, without which llama.cpp cannot run the "
        f"architecture {species.ALL[name].architecture}. Download it again, or convert it again."
    )
    assert inspect_files(path).model.problem == sentence


@pytest.mark.parametrize(("name", "tensor"), params(LACKING_NEXTN))
def test_an_incomplete_nextn_block_is_refused(name: str, tensor: str, tiny_dir: Path, tmp_path: Path) -> None:
    whole = without(name, NEXTN + tensor, tiny_dir, tmp_path / "f.gguf")
    support = without(name, NEXTN + tensor, tiny_dir, tmp_path / "s.gguf", "support")
    trunk = check_target(zoo.build(name, tiny_dir, part="trunk"))
    for call in (lambda: check_pair(check_target(whole), "embedded"), lambda: check_pair(trunk, support)):
        assert f"is incomplete: it lacks the tensor {NEXTN}{tensor}, without which" in reason(call)
    report = inspect_files(whole, "embedded")
    assert report.model.problem == "" and report.pair is not None and not report.pair.fits


@pytest.mark.slow
def test_a_support_file_without_an_output_head_is_refused(tiny_dir: Path, tmp_path: Path) -> None:
    tensors = zoo.part_of(zoo.tensors_of("step35-1", tiny_dir), "support")
    del tensors["output.weight"], tensors[NEXTN + "nextn.shared_head_head.weight"]
    path = tmp_path / "s.gguf"
    zoo.save(path, species.ALL["step35-1"], tensors)
    trunk = check_target(zoo.build("step35-1", tiny_dir, part="trunk"))
    assert f"lacks the tensor {NEXTN}nextn.shared_head_head.weight" in reason(lambda: check_pair(trunk, path))


@pytest.mark.parametrize(("name", "own", "words"), params(ODD))
def test_a_nextn_block_that_the_graph_cannot_run_is_refused_and_the_trunk_runs(
    name: str, own: dict[str, Any], words: str, tiny_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "f.gguf"
    zoo.save(path, species.ALL[name], zoo.tensors_of(name, tiny_dir), **keys(own))
    target = check_target(path)
    assert words in reason(lambda: check_pair(target, "embedded"))


@pytest.mark.slow
@pytest.mark.parametrize("layers", [26, 27])
def test_a_small_deepseek2_has_no_nextn_that_llama_cpp_runs(
    layers: int, tiny_dir: Path, tmp_path: Path
) -> None:
    """By the number of layers llama.cpp treats it as one without low-rank queries."""
    path = tmp_path / "f.gguf"
    kind = species.ALL["deepseek2"]
    tensors = {
        name.replace(f"blk.{LAYERS}.", f"blk.{layers}."): values
        for name, values in zoo.tensors_of("deepseek2", tiny_dir).items()
    }
    zoo.save(path, kind, tensors, block_count=layers + 1)
    target = check_target(path)
    assert f"with {layers} layers, as a model without low-rank queries" in reason(
        lambda: check_pair(target, "embedded")
    )


@pytest.mark.parametrize(("name", "own", "words"), params(CORRUPT))
def test_odd_metadata_is_refused(
    name: str, own: dict[str, Any], words: str, tiny_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "f.gguf"
    zoo.save(path, species.ALL[name], zoo.tensors_of(name, tiny_dir), **keys(own))
    assert words in reason(lambda: check_target(path))


@pytest.mark.parametrize("name", params(["qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe"]))
def test_a_declared_nextn_block_that_is_not_there_is_said(name: str, tiny_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    zoo.save(path, species.ALL[name], zoo.part_of(zoo.tensors_of(name, tiny_dir), "trunk"))
    assert reason(lambda: check_target(path)) == (
        f"{path} is incomplete: it declares 1 NextN block and holds 0. "
        "Download it again, or convert it again."
    )


# -- the sweep


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    loader = Loader(tmp_path_factory.mktemp("sweep") / "loader.log")
    yield loader
    loader.close()


def others(value: Any) -> list[Any]:
    """Values to put in a key's place; None leaves it out."""
    if isinstance(value, bool):
        return [None, not value]
    if isinstance(value, int):
        return [None, *sorted({0, 1, value + 1, 2 * value} - {value})]
    if isinstance(value, float):
        return [None, 0.0, -value]
    if isinstance(value, list):
        flags = isinstance(value[0], bool)
        first = not value[0] if flags else value[0] + 1
        return [None, [first, *value[1:]], value[::-1], value[:1], [type(value[0])(0)] * len(value)]
    return [None]


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", list(species.ALL))
def test_nothing_that_a_file_lacks_or_says_ends_the_process(
    name: str, loader: Loader, tiny_dir: Path, tmp_path: Path
) -> None:
    """One tensor of each sort in the first, a middle and the last block that has it, and every key."""
    kind, tensors = species.ALL[name], zoo.tensors_of(name, tiny_dir, "random")
    sorts: dict[str, list[str]] = {}
    for tensor in tensors:
        sorts.setdefault(zoo.stem(tensor), []).append(tensor)
    taken = {names[i] for names in sorts.values() for i in (0, len(names) // 2, -1)} - {"token_embd.weight"}
    cases = [(tensor, {n: v for n, v in tensors.items() if n != tensor}, {}) for tensor in sorted(taken)]
    for key, value in kind.keys.items():
        cases += [(f"{key}={other}", tensors, {key: other}) for other in others(value)]
    path = tmp_path / "f.gguf"
    died = []
    for label, kept, own in cases:
        zoo.save(path, kind, kept, **keys(own))
        for support in ("", *(["embedded"] if kind.heads else [])):
            answer = loader.outcome(path, support)
            if answer.startswith("died"):
                died.append(f"{label} {support}: {answer}")
    assert not died, "\n".join(died)
