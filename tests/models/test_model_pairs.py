"""check_target and check_pair: what fits, and one sentence for each thing that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from gguf import GGMLQuantizationType
from kits import gguf as kit
from kits.refusals import misfit, reason

from ds4chat.models.architectures import abilities
from ds4chat.models.gguf_file import Header, read_header
from ds4chat.models.pairing import Pair, check_pair, check_target

# -- the target


@pytest.mark.parametrize("kind", ["deepseek4", "deepseek4-nextn", "qwen35-nextn", "llama", "gemma4"])
def test_whole_models_pass(kind: str, tiny_dir: Path) -> None:
    assert check_target(tiny.build(kind, tiny_dir)).path == tiny.build(kind, tiny_dir)


AS_TARGET = {
    "deepseek4-support": (
        "is a NextN support model, the NextN block without its model. "
        "Give the whole model with -m, and this file with --mtp."
    ),
    "deepseek4-ds4": (
        "is an MTP support file in the layout of ds4. Give the whole model with -m; rewrite this file with "
        "`ds4chat convert-mtp MAIN SUPPORT OUT`, and give OUT with --mtp."
    ),
    "eagle3": "is an EAGLE-3 support model. Give the whole model with -m, and this file with --mtp.",
    "gemma4-assistant": (
        "is a Gemma 4 assistant, which drafts for a Gemma 4 model. "
        "Give the whole model with -m, and this file with --mtp."
    ),
}


@pytest.mark.parametrize("kind", AS_TARGET)
def test_support_file_given_as_the_model(kind: str, tiny_dir: Path) -> None:
    path = tiny.build(kind, tiny_dir)
    assert reason(lambda: check_target(path)) == f"{path} {AS_TARGET[kind]}"


@pytest.mark.parametrize(
    ("architecture", "more", "words"),
    [
        ("bert", {}, "is an embedding or reranking model, which writes no text. Give a chat model with -m."),
        (
            "llada",
            {},
            "is a diffusion model, which does not write token by token. Give a chat model with -m.",
        ),
        ("t5", {}, "is an encoder-decoder model. Give a chat model with -m."),
        ("clip", {}, "is a projector of images or audio for another model. Give a chat model with -m."),
        (
            "llama",
            {"keys": {"general.type": "adapter"}},
            "is a LoRA adapter for another model. Merge it into its model first, or give that model with -m.",
        ),
    ],
)
def test_other_files_given_as_the_model(
    architecture: str, more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = kit.whole(tmp_path / "f.gguf", architecture, **more)
    assert reason(lambda: check_target(path)) == f"{path} {words}"


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "context_length"])
def test_target_without_a_key_that_llama_cpp_needs(key: str, tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "f.gguf", own={key: None})
    assert reason(lambda: check_target(path)) == (
        f"{path} is incomplete: it lacks the metadata key llama.{key}. "
        "Download it again, or convert it again."
    )


def test_a_target_with_windows_and_without_a_count_of_blocks(tmp_path: Path) -> None:
    own = {"block_count": None, "attention.sliding_window_pattern": 6}
    path = kit.whole(tmp_path / "f.gguf", "gemma4", own=own)
    assert "it lacks the metadata key gemma4.block_count" in reason(lambda: check_target(path))


@pytest.mark.parametrize(
    "without", [{"tokens": None}, *({"keys": {"tokenizer.ggml.model": n}} for n in ("none", "no_vocab"))]
)
def test_target_without_tokenizer(without: dict[str, Any], tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "f.gguf", **without)
    assert reason(lambda: check_target(path)) == (
        f"{path} has no tokenizer, so it cannot read a prompt. "
        "Convert it again with its tokenizer files beside it."
    )


# -- rollback


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        *((name, "kv") for name in ("llama", "gemma4", "glm4moe", "mimo2")),
        *((name, "bounded") for name in ("qwen35", "deepseek4", "lfm2", "nemotron_h_moe")),
        *((name, "none") for name in ("qwen3next", "mamba", "falcon-h1", "rwkv7")),
    ],
)
def test_rollback(architecture: str, expected: str) -> None:
    assert abilities(architecture).rollback == expected


def test_a_target_that_cannot_roll_back_pairs_but_stays_off(tmp_path: Path) -> None:
    """The reason is a clause for a status line: no capital, no full stop."""
    own = {"block_count": 3, "nextn_predict_layers": 1}
    target = check_target(kit.whole(tmp_path / "t.gguf", "qwen3next", 2, tensors=kit.nextn(2), own=own))
    pair = check_pair(target, "embedded")
    assert pair.kind == "nextn-embedded"
    assert pair.off_reason == (
        "qwen3next models keep a recurrent state that llama.cpp cannot roll back: each rejected draft would "
        "cost a second pass over the target, which costs more than drafts save"
    )


# -- NextN inside the target


def embedded(path: Path, architecture: str = "qwen35", n: int = 1, **more: Any) -> Header:
    """A target of two layers and ``n`` NextN blocks."""
    tensors: dict[str, Any] = {}
    for i in range(2, 2 + n):
        tensors |= kit.nextn(i)
    own = {"block_count": 2 + n, "nextn_predict_layers": n} | more.pop("own", {})
    return read_header(
        kit.whole(path, architecture, 2, own=own, tensors=tensors | more.pop("tensors", {}), **more)
    )


@pytest.mark.parametrize("kind", ["deepseek4-nextn", "qwen35-nextn"])
def test_embedded_block_of_the_constructed_models(kind: str, tiny_dir: Path) -> None:
    pair = check_pair(check_target(tiny.build(kind, tiny_dir)), "embedded")
    assert pair == Pair("nextn-embedded", n_heads=1)


def test_no_block_inside(tiny_dir: Path) -> None:
    target = check_target(tiny.build("llama", tiny_dir))
    assert reason(lambda: check_pair(target, "embedded")) == (
        f"{target.path} has no NextN block inside, so --mtp needs a file: give its support model with "
        "--mtp FILE, or use --lookup."
    )


def test_two_blocks_where_llama_cpp_runs_one(tmp_path: Path) -> None:
    target = embedded(tmp_path / "f.gguf", "qwen35", 2)
    assert reason(lambda: check_pair(target, "embedded")) == (
        f"{target.path} has 2 NextN blocks, and llama.cpp runs only one for the architecture qwen35. "
        "Convert the model with one NextN block, or use --lookup."
    )


@pytest.mark.parametrize("architecture", ["glm5-next", "bailingmoe2", "ernie4_5-moe"])
def test_blocks_that_llama_cpp_has_no_graph_for(architecture: str, tmp_path: Path) -> None:
    target = embedded(tmp_path / "f.gguf", architecture)
    assert reason(lambda: check_pair(target, "embedded")) == (
        f"llama.cpp cannot run NextN blocks of the architecture {architecture}, so the one of {target.path} "
        "cannot be used. Give a draft model with --mtp FILE, or use --lookup."
    )


def test_fewer_blocks_than_declared(tmp_path: Path) -> None:
    target = embedded(tmp_path / "f.gguf", "mimo2", 1, own={"block_count": 5, "nextn_predict_layers": 3})
    assert "its metadata declares 3 NextN blocks, and it holds 1. Download it again" in reason(
        lambda: check_pair(target, "embedded")
    )


@pytest.mark.parametrize("stem", ["enorm", "hnorm"])
def test_block_without_a_tensor_that_the_graph_asserts(stem: str, tmp_path: Path) -> None:
    tensors = kit.nextn(2)
    del tensors[f"blk.2.nextn.{stem}.weight"]
    own = {"block_count": 3, "nextn_predict_layers": 1}
    target = read_header(kit.whole(tmp_path / "f.gguf", "qwen35", 2, own=own, tensors=tensors))
    assert f"is incomplete: it lacks the tensor blk.2.nextn.{stem}.weight, without which llama.cpp" in reason(
        lambda: check_pair(target, "embedded")
    )


@pytest.mark.parametrize(
    ("architecture", "norm"),
    [("bailingmoe3", "layer_output_norm"), ("nemotron_h_moe", "nextn.shared_head_norm")],
)
def test_final_norm_where_it_is_not_optional(architecture: str, norm: str, tmp_path: Path) -> None:
    tensors = kit.nextn(2)
    tensors.pop(f"blk.2.{norm}.weight", None)
    own = {"block_count": 3, "nextn_predict_layers": 1}
    target = read_header(kit.whole(tmp_path / "f.gguf", architecture, 2, own=own, tensors=tensors))
    assert f"lacks the tensor blk.2.{norm}.weight" in reason(lambda: check_pair(target, "embedded"))


def test_projection_of_another_width(tmp_path: Path) -> None:
    target = embedded(tmp_path / "f.gguf", tensors={"blk.2.nextn.eh_proj.weight": (32, 32)})
    assert "eh_proj is 32 x 32, where an embedding width of 32 asks for 64 x 32" in reason(
        lambda: check_pair(target, "embedded")
    )


@pytest.mark.parametrize("ratios", [[0, 4, 4], [0, 4, 128], [0, 4], None])
def test_deepseek4_block_with_a_compression_ratio(ratios: list[int] | None, tmp_path: Path) -> None:
    own = {"attention.compress_ratios": ratios}
    target = embedded(tmp_path / "f.gguf", "deepseek4", own=own)
    assert "has no compression ratio of 0 for its NextN block, number 2" in reason(
        lambda: check_pair(target, "embedded")
    )


def test_deepseek4_block_that_would_route_by_hashes(tmp_path: Path) -> None:
    own = {"attention.compress_ratios": [0, 4, 0], "hash_layer_count": 3}
    target = embedded(tmp_path / "f.gguf", "deepseek4", own=own)
    assert "its NextN block would route by hashes" in reason(lambda: check_pair(target, "embedded"))


@pytest.mark.parametrize(
    ("kind", "warned"), [("Q2_K", True), ("Q3_K", True), ("Q4_0", False), ("Q4_K", False)]
)
def test_heads_below_four_bits_are_warned_of(kind: str, warned: bool, tmp_path: Path) -> None:
    width = 256
    types = {"blk.2.nextn.eh_proj.weight": GGMLQuantizationType[kind]}
    path = kit.whole(
        tmp_path / "f.gguf",
        "qwen35",
        own={"block_count": 3, "nextn_predict_layers": 1, "embedding_length": width},
        tensors=kit.nextn(2, width=width),
        types=types,
    )
    notes = check_pair(read_header(path), "embedded").notes
    assert bool(notes) is warned
    if warned:
        assert (
            f"is stored in {kind} (" in notes[0]
            and "below 4 bits most drafts tend to be rejected." in notes[0]
        )


def test_low_bit_experts_are_not_warned_of(tmp_path: Path) -> None:
    tensors = kit.nextn(2, width=256) | {"blk.2.ffn_up_exps.weight": (256, 32, 4)}
    path = kit.whole(
        tmp_path / "f.gguf",
        "qwen35",
        own={"block_count": 3, "nextn_predict_layers": 1, "embedding_length": 256},
        tensors=tensors,
        types={"blk.2.ffn_up_exps.weight": GGMLQuantizationType.IQ2_XXS},
    )
    assert check_pair(read_header(path), "embedded").notes == ()


# -- NextN support model


def support(path: Path, architecture: str = "qwen35", **more: Any) -> Path:
    """A NextN block alone, for a target of two layers."""
    own = {"block_count": 3, "nextn_predict_layers": 1} | more.pop("own", {})
    tensors = kit.root() | kit.nextn(2) | more.pop("tensors", {})
    return kit.write(path, architecture, tensors=tensors, own=own, **more)


@pytest.fixture
def target(tmp_path: Path) -> Header:
    return check_target(kit.whole(tmp_path / "target.gguf", "qwen35"))


def test_support_that_fits(target: Header, tmp_path: Path) -> None:
    path = support(tmp_path / "s.gguf")
    pair = check_pair(target, str(path))
    assert (pair.kind, pair.support and pair.support.path, pair.n_heads, pair.notes, pair.off_reason) == (
        "nextn-support",
        path,
        1,
        (),
        "",
    )
    assert pair.support is not None and pair.support.architecture == "qwen35"


def test_constructed_support(tiny_dir: Path) -> None:
    target = check_target(tiny.build("deepseek4", tiny_dir))
    assert check_pair(target, tiny.build("deepseek4-support", tiny_dir)).kind == "nextn-support"


def test_support_of_another_architecture(target: Header, tmp_path: Path) -> None:
    path = support(tmp_path / "s.gguf", "qwen35moe")
    assert misfit(target, path) == "it was made for the architecture qwen35moe, the target is qwen35"


def test_support_of_another_width(target: Header, tmp_path: Path) -> None:
    path = support(tmp_path / "s.gguf", own={"embedding_length": 64})
    assert misfit(target, path) == "its hidden rows are 64 wide, the target's 32"


def test_support_with_another_vocabulary_size(target: Header, tmp_path: Path) -> None:
    path = support(tmp_path / "s.gguf", tokens=[*kit.TOKENS, "e"])
    assert misfit(target, path) == "its vocabulary has 9 tokens, the target's 8"


def test_support_with_one_other_token(target: Header, tmp_path: Path) -> None:
    tokens = [*kit.TOKENS[:5], "B\x1b", *kit.TOKENS[6:]]
    path = support(tmp_path / "s.gguf", tokens=tokens)
    assert misfit(target, path) == r'token 5 of its vocabulary is "B\x1b", the target' + '\'s is "b"'


def test_support_without_tokenizer(target: Header, tmp_path: Path) -> None:
    path = support(tmp_path / "s.gguf", tokens=None)
    assert "llama.cpp wants the embeddings and the tokenizer in the support model too" in reason(
        lambda: check_pair(target, path)
    )


@pytest.mark.parametrize(
    ("key", "word"),
    [("deepseek4.checkpoint_variant", "checkpoint"), ("general.source.revision", "revision")],
)
def test_support_of_another_checkpoint(key: str, word: str, tmp_path: Path) -> None:
    target = check_target(kit.whole(tmp_path / "t.gguf", "qwen35", keys={key: "0731"}))
    path = support(tmp_path / "s.gguf", keys={key: "first"})
    assert misfit(target, path) == f"it was made from the {word} first, the target from 0731"
    same = support(tmp_path / "same.gguf", keys={key: "0731"})
    assert check_pair(target, same).kind == "nextn-support"


def test_support_in_ds4s_layout(tiny_dir: Path) -> None:
    target = check_target(tiny.build("deepseek4", tiny_dir))
    path = tiny.build("deepseek4-ds4", tiny_dir)
    assert reason(lambda: check_pair(target, path)) == (
        f"{path} is an MTP support file in the layout of ds4. Rewrite it with `ds4chat convert-mtp MAIN "
        "SUPPORT OUT` and give OUT with --mtp, or add --mtp-convert."
    )


@pytest.mark.parametrize(
    ("architecture", "more", "words"),
    [
        ("dflash", {}, "is a DFlash drafter. ds4chat cannot run those."),
        (
            "dflash",
            {"tensors": {"markov_w1.weight": (8, 8)}},
            "is a DSpark drafter. ds4chat cannot run those.",
        ),
        ("bert", {}, "is an embedding or reranking model, which writes no text. Give a NextN support model"),
        ("clip", {}, "is a projector of images or audio for another model. Give a NextN support model"),
        ("llama", {"keys": {"general.type": "adapter"}}, "is a LoRA adapter for another model. Give a NextN"),
    ],
)
def test_files_that_cannot_draft(
    architecture: str, more: dict[str, Any], words: str, target: Header, tmp_path: Path
) -> None:
    path = kit.whole(tmp_path / "s.gguf", architecture, **more)
    sentence = reason(lambda: check_pair(target, path))
    assert sentence.startswith(f"{path} {words}")
    assert sentence.endswith("with --mtp, or use --lookup.")


def test_the_target_itself(tiny_dir: Path) -> None:
    plain, nextn = (check_target(tiny.build(kind, tiny_dir)) for kind in ("llama", "deepseek4-nextn"))
    assert "is the target itself. Give a NextN support model" in reason(lambda: check_pair(plain, plain.path))
    assert reason(lambda: check_pair(nextn, nextn.path)).endswith(
        "is the target itself. Use --mtp without a file for the NextN block inside it."
    )
