"""kind_of: the kind of each file, and what is said of its blocks and quantisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from gguf import GGMLQuantizationType, LlamaFileType
from kits import gguf as kit

from ds4chat.models.demo import demo_model, demo_support
from ds4chat.models.gguf_file import read_header
from ds4chat.models.kinds import KINDS, describe, kind_of
from ds4chat.models.summary import dominant_type, nextn_layers, quantisation, trunk_layers

TINY = {
    "deepseek4": "target",
    "deepseek4-nextn": "nextn-embedded",
    "deepseek4-support": "nextn-support",
    "deepseek4-ds4": "ds4-support",
    "qwen35-nextn": "nextn-embedded",
    "llama": "target",
    "llama-draft": "target",
    "eagle3": "eagle3",
    "gemma4": "target",
    "gemma4-assistant": "gemma4-assistant",
}


@pytest.mark.parametrize("kind", TINY)
def test_constructed_models(kind: str, tiny_dir: Path) -> None:
    assert kind_of(read_header(tiny.build(kind, tiny_dir))).name == TINY[kind]


def test_demo_files() -> None:
    assert kind_of(read_header(demo_model())).name == "target"
    assert kind_of(read_header(demo_support())).name == "eagle3"


OTHERS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "dflash": ("dflash", {"tensors": {"fc.weight": (32, 32)}}, "dflash", "a DFlash drafter"),
    "dspark in llama.cpp's layout": (
        "dflash",
        {"tensors": {"markov_w1.weight": (32, 32)}},
        "dspark",
        "a DSpark drafter",
    ),
    "dspark in ds4's layout": (
        "deepseek4_mtp_support",
        {"tensors": {f"mtp.{i}.attn_norm.weight": (32,) for i in range(3)}},
        "dspark",
        "a DSpark drafter",
    ),
    "mmproj by architecture": (
        "clip",
        {"tensors": {"v.patch_embd.weight": (32, 32)}},
        "mmproj",
        "a projector",
    ),
    "mmproj by type": ("llama", {"keys": {"general.type": "mmproj"}}, "mmproj", "a projector"),
    "lora": ("llama", {"keys": {"general.type": "adapter"}}, "lora", "a LoRA adapter"),
    "encoder": ("bert", {}, "embedding", "an embedding"),
    "pooling decoder": ("qwen3", {"own": {"pooling_type": 3}}, "embedding", "an embedding"),
    "decoder that sees ahead": ("qwen2", {"own": {"attention.causal": False}}, "embedding", "an embedding"),
    "diffusion": ("llada", {}, "diffusion", "a diffusion model"),
    "encoder-decoder": ("t5", {}, "other", "an encoder-decoder model"),
    "importance matrix": ("imatrix", {}, "other", "an importance matrix"),
    "vocabulary alone": ("llama", {"keys": {"general.type": "vocab"}}, "other", "not a chat model"),
    "no tensors": ("llama", {"tensors": {}}, "other", "not a chat model"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_files_of_other_kinds(case: str, tmp_path: Path) -> None:
    architecture, more, kind, words = OTHERS[case]
    tensors = more.pop("tensors", kit.root() | kit.block(0)) if "tensors" not in more else more["tensors"]
    rest = {key: value for key, value in more.items() if key != "tensors"}
    header = read_header(kit.write(tmp_path / "f.gguf", architecture, tensors=tensors, **rest))
    assert kind_of(header).name == kind
    assert describe(header).startswith(words)


def test_pooling_type_none_is_a_chat_model(tmp_path: Path) -> None:
    header = read_header(
        kit.whole(tmp_path / "f.gguf", "qwen3", own={"pooling_type": 0, "attention.causal": True})
    )
    assert kind_of(header).name == "target"


def test_no_architecture_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    path.write_bytes(kit.raw([kit.string_pair("general.name", "nothing")]))
    assert kind_of(read_header(path)).name == "other"


def test_every_kind_has_its_words() -> None:
    """Each description completes "is ..."."""
    assert all(kind.description.startswith(("a ", "an ", "not a ")) for kind in KINDS.values())


def test_every_kind_that_drafts_has_its_check_and_only_whole_models_are_draft_models() -> None:
    for kind in KINDS.values():
        assert bool(kind.drafts) == (kind.check is not None), kind.name
        assert kind.whole == (kind.drafts == "draft-model"), kind.name


def test_nextn_blocks_are_those_after_the_trunk(tmp_path: Path) -> None:
    """Four blocks of which two are NextN's; eh_proj of a trunk block does not count."""
    extra = kit.nextn(2) | kit.nextn(3) | {"blk.1.nextn.eh_proj.weight": (64, 32)}
    path = kit.whole(
        tmp_path / "f.gguf", "mimo2", 2, own={"block_count": 4, "nextn_predict_layers": 2}, tensors=extra
    )
    header = read_header(path)
    assert (nextn_layers(header), trunk_layers(header)) == (2, 2)


def test_deepseek4_counts_anew_where_the_promised_block_is_missing(tmp_path: Path) -> None:
    own = {"block_count": 3, "nextn_predict_layers": 1}
    deepseek = read_header(kit.whole(tmp_path / "a.gguf", "deepseek4", 3, own=own))
    glm = read_header(kit.whole(tmp_path / "b.gguf", "glm4moe", 2, own=own))
    assert (nextn_layers(deepseek), trunk_layers(deepseek)) == (0, 3)
    assert (nextn_layers(glm), trunk_layers(glm)) == (0, 2)


def test_a_wild_count_of_blocks_costs_nothing(tmp_path: Path) -> None:
    own = {"block_count": 0xFFFFFFFF, "nextn_predict_layers": 0xFFFFFFFF}
    header = read_header(kit.whole(tmp_path / "f.gguf", "qwen35", tensors=kit.nextn(2), own=own))
    assert nextn_layers(header) == 1


@pytest.mark.parametrize(
    ("file_type", "expected"),
    [
        (LlamaFileType.MOSTLY_Q4_K_M, "Q4_K_M"),
        (LlamaFileType.ALL_F32, "F32"),
        (LlamaFileType.MOSTLY_Q8_0 | 1024, "Q8_0"),
        (9999, "Q8_0"),
        (None, "Q8_0"),
    ],
)
def test_quantisation(file_type: int | None, expected: str, tmp_path: Path) -> None:
    """What the file says; where it says nothing known, the type of most bytes: Q8_0, 32 x 320 values."""
    keys = {} if file_type is None else {"general.file_type": int(file_type)}
    path = kit.whole(
        tmp_path / "f.gguf",
        tensors={"blk.0.big.weight": (32, 320)},
        types={"blk.0.big.weight": GGMLQuantizationType.Q8_0},
        keys=keys,
    )
    header = read_header(path)
    assert quantisation(header) == expected
    assert dominant_type(header) == "Q8_0"
