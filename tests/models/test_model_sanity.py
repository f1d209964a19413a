"""Metadata on which llama.cpp ends the process is refused before."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import tiny
from kits import gguf as kit

from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import read_header
from ds4chat.models.pairing import check_target
from ds4chat.models.sanity import check_metadata, check_tables

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too many blocks": ({"block_count": 100_000}, "it counts 100,000 blocks, where 1 to 512 are possible"),
    "no blocks": ({"block_count": 0}, "it counts 0 blocks, where 1 to 512 are possible"),
    "nextn": ({"nextn_predict_layers": 3}, "it counts 3 NextN blocks among 2 blocks"),
    "width": ({"embedding_length": 0}, "its embeddings are 0 wide"),
    "experts": (
        {"expert_count": 1025, "expert_used_count": 1},
        "it counts 1,025 experts, where at most 1024 are possible",
    ),
    "experts used": ({"expert_count": 4, "expert_used_count": 5}, "it uses 5 of 4 experts"),
    "experts used of a layer": ({"expert_count": 4, "expert_used_count": [2, 9]}, "it uses 9 of 4 experts"),
    "no experts used": ({"expert_count": 4, "expert_used_count": 0}, "it uses 0 of 4 experts"),
    "experts used of none": ({"expert_used_count": 2}, "it uses 2 of 0 experts"),
    "groups": (
        {"expert_count": 4, "expert_used_count": 2, "expert_group_count": 4},
        "it has 4 groups of 4 experts",
    ),
    "uneven groups": (
        {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 3, "expert_group_used_count": 1},
        "it uses 1 of 3 groups of 8 experts",
    ),
    "groups used": (
        {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4, "expert_group_used_count": 4},
        "it uses 4 of 4 groups of 8 experts",
    ),
    "rope": ({"rope.scaling.type": "spiral"}, "its rope scaling is of the unknown type spiral"),
    "ratios": ({"attention.compress_ratios": [0] * 513}, "it counts 513 compression ratios"),
}


BAD_OF_ONE: dict[str, tuple[str, dict[str, Any], str]] = {
    "epsilon": (
        "llama",
        {"attention.layer_norm_rms_epsilon": -1.0},
        "its attention.layer_norm_rms_epsilon is -1.0",
    ),
    "epsilon nan": (
        "bert",
        {"attention.layer_norm_epsilon": float("nan")},
        "its attention.layer_norm_epsilon is nan",
    ),
    "odd rotation": ("llama", {"rope.dimension_count": 7}, "it rotates 7 values of a head"),
    "no rotation": ("llama", {"rope.dimension_count": 0}, "it rotates 0 values of a head"),
    "wild rotation": (
        "llama",
        {"rope.dimension_count": 1 << 31},
        "it rotates 2,147,483,648 values of a head",
    ),
    "wide rotation": (
        "gemma4",
        {"rope.dimension_count_swa": 66, "attention.key_length_swa": 64},
        "it rotates 66 values of heads that are 64 wide",
    ),
    "key-value heads": ("deepseek4", {"attention.head_count_kv": 2}, "its attention.head_count_kv is 2"),
    "groups": ("deepseek4", {"attention.output_group_count": 0}, "its attention.output_group_count is 0"),
    "iterations": (
        "deepseek4",
        {"hyper_connection.sinkhorn_iterations": 0},
        "its hyper_connection.sinkhorn_iterations is 0",
    ),
    "endless iterations": (
        "deepseek4",
        {"hyper_connection.sinkhorn_iterations": 1 << 30},
        "its hyper_connection.sinkhorn_iterations is 1,073,741,824",
    ),
    "values": (
        "deepseek4",
        {"attention.key_length": 8, "attention.value_length": 16},
        "its attention.value_length is 16, where llama.cpp wants it equal to attention.key_length, 8",
    ),
    "interval": ("qwen35", {"full_attention_interval": 0}, "its full_attention_interval is 0"),
    "shared layers": ("gemma4", {"attention.shared_kv_layers": 1}, "its attention.shared_kv_layers is 1"),
    "no shared heads": (
        "gemma4-assistant",
        {"attention.head_count_kv": 0},
        "its attention.head_count_kv is 0",
    ),
}


@pytest.mark.parametrize("case", BAD_OF_ONE)
def test_refused_of_one_architecture(case: str, tmp_path: Path) -> None:
    architecture, own, what = BAD_OF_ONE[case]
    path = kit.whole(tmp_path / "f.gguf", architecture, own=own)
    with pytest.raises(ModelFileError) as caught:
        check_metadata(read_header(path))
    assert str(caught.value) == f"{path} is corrupt: {what}. Download it again, or convert it again."


def test_an_empty_tensor_is_refused(tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "f.gguf", tensors={"blk.1.ffn_up.weight": (32, 0)})
    with pytest.raises(ModelFileError, match=r"its tensor blk\.1\.ffn_up\.weight is empty"):
        check_target(path)


def test_a_model_that_rotates_nothing_passes(tmp_path: Path) -> None:
    own = {"rope.dimension_count": 0, "attention.head_count_kv": [0, 1]}
    check_metadata(read_header(kit.whole(tmp_path / "f.gguf", "glm5-next", own=own)))


def test_a_deepseek2_without_mla_passes(tmp_path: Path) -> None:
    """DeepSeek V2 Lite as converted before llama.cpp had MLA."""
    own = {
        "attention.key_length": 192,
        "attention.value_length": 128,
        "attention.kv_lora_rank": 512,
        "rope.dimension_count": 64,
        "attention.head_count": 16,
        "attention.head_count_kv": 16,
    }
    check_metadata(read_header(kit.whole(tmp_path / "f.gguf", "deepseek2", own=own)))


def test_recurrent_width_is_that_of_the_tensors(tmp_path: Path) -> None:
    tensors = {"blk.0.ssm_out.weight": (64, 32)}
    check_metadata(read_header(kit.whole(tmp_path / "a.gguf", own={"ssm.inner_size": 64}, tensors=tensors)))
    path = kit.whole(tmp_path / "b.gguf", own={"ssm.inner_size": 65}, tensors=tensors)
    with pytest.raises(ModelFileError, match="its recurrent state is 65 wide, and its tensors ask for 64"):
        check_metadata(read_header(path))


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str, tmp_path: Path) -> None:
    own, what = BAD[case]
    path = kit.whole(tmp_path / "f.gguf", own=own)
    with pytest.raises(ModelFileError) as caught:
        check_metadata(read_header(path))
    assert str(caught.value) == f"{path} is corrupt: {what}. Download it again, or convert it again."


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"block_count": 512},
        {"nextn_predict_layers": 2},
        {"expert_count": 8, "expert_used_count": 8},
        {"expert_count": 8, "expert_used_count": [1, 8]},
        {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 1},
        {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4, "expert_group_used_count": 3},
        {"rope.scaling.type": "yarn"},
    ],
)
def test_what_llama_cpp_takes_passes(own: dict[str, Any], tmp_path: Path) -> None:
    check_metadata(read_header(kit.whole(tmp_path / "f.gguf", own=own)))


def test_one_expert_of_hunyuan_counts_as_none(tmp_path: Path) -> None:
    own = {"expert_count": 0, "expert_used_count": 1}
    check_metadata(read_header(kit.whole(tmp_path / "f.gguf", "hunyuan-dense", own=own)))
    with pytest.raises(ModelFileError):
        check_metadata(read_header(kit.whole(tmp_path / "g.gguf", "hunyuan-moe", own=own)))


VOCABULARY: dict[str, tuple[dict[str, Any], str]] = {
    "the same up to a zero byte": (
        {"tokens": [*kit.TOKENS, "a\0b"]},
        "its vocabulary has the same token twice",
    ),
    "the name of an empty one": (
        {"tokens": ["", "[EMPTY_0]", *kit.TOKENS]},
        "its vocabulary has the same token twice",
    ),
    "the same token twice": (
        {"tokens": [*kit.TOKENS, "a"]},
        "its vocabulary has the same token twice",
    ),
    "begin token": (
        {
            "keys": {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.add_bos_token": True,
                "tokenizer.ggml.bos_token_id": None,
            }
        },
        "its tokenizer puts a begin token before each prompt and names none",
    ),
    "end token": (
        {
            "keys": {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.add_eos_token": True,
                "tokenizer.ggml.eos_token_id": 99,
            }
        },
        "its tokenizer puts an end token after each prompt and names none",
    ),
}


@pytest.mark.parametrize("case", VOCABULARY)
def test_vocabulary_refused(case: str, tmp_path: Path) -> None:
    more, what = VOCABULARY[case]
    path = kit.whole(tmp_path / "f.gguf", **more)
    with pytest.raises(ModelFileError, match=what):
        check_target(path)


def test_empty_tokens_may_repeat(tmp_path: Path) -> None:
    """llama.cpp gives each empty text a name of its own."""
    check_target(kit.whole(tmp_path / "f.gguf", tokens=[*kit.TOKENS, "", ""]))


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ([11, -1, 10, 0], "it rotates the parts [11, -1, 10, 0] of a head"),
        ([2, 1 << 30, 1, 0], f"it rotates the parts [2, {1 << 30}, 1, 0] of a head"),
        ([0, 0, 0, 8], "it rotates the parts [0, 0, 0, 8] of a head"),  # llama.cpp wants one of the first
    ],
)
def test_parts_of_a_head_that_do_not_fit_are_refused(sections: list[int], what: str, tmp_path: Path) -> None:
    own = {"rope.dimension_sections": sections, "attention.key_length": 64}
    path = kit.whole(tmp_path / "f.gguf", "qwen35", own=own)
    with pytest.raises(ModelFileError) as caught:
        check_metadata(read_header(path))
    assert str(caught.value) == f"{path} is corrupt: {what}. Download it again, or convert it again."


def test_parts_of_a_head_that_fit_pass(tmp_path: Path) -> None:
    own = {"rope.dimension_sections": [24, 20, 20, 0], "attention.key_length": 64}
    check_metadata(read_header(kit.whole(tmp_path / "f.gguf", "qwen35", own=own)))


def test_a_table_names_only_experts_that_are_there(tiny_dir: Path, tmp_path: Path) -> None:
    """The constructed DeepSeek V4 picks the experts of its first layer by token."""
    good = tiny.build("deepseek4", tiny_dir)
    header = read_header(good)
    check_tables(header)
    table = header.tensors["blk.0.ffn_gate_tid2eid.weight"]
    experts = header.own_integer("expert_count")
    assert experts is not None
    content = bytearray(good.read_bytes())
    path = tmp_path / "f.gguf"
    for wrong in (-1, experts):
        content[table.offset + 4 : table.offset + 8] = struct.pack("<i", wrong)
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="names experts that do not exist"):
            check_target(path)
