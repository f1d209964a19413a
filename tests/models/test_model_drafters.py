"""check_pair for the kinds that are trained or whole models of their own: EAGLE-3, draft model, assistant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from kits import gguf as kit
from kits.refusals import misfit, reason

from ds4chat.models.architectures import ABILITIES
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.models.gguf_file import Header, read_header
from ds4chat.models.pairing import check_pair, check_target

# -- EAGLE-3


def eagle3(path: Path, **more: Any) -> Path:
    """An EAGLE-3 head for a llama target of two layers, 32 wide; borrows embeddings and output."""
    own = {
        "block_count": 1,
        "target_layers": [0, 1, 1],
        "target_hidden_size": 32,
        "attention.head_count": 4,
    } | more.pop("own", {})
    tensors = {"fc.weight": (96, 32), "blk.0.attn_norm.weight": (32,)} | more.pop("tensors", {})
    return kit.write(path, "eagle3", tensors=tensors, own=own, **more)


@pytest.fixture
def llama(tmp_path: Path) -> Header:
    return check_target(kit.whole(tmp_path / "target.gguf"))


def test_demo_pair() -> None:
    pair = check_pair(check_target(demo_model()), demo_support())
    assert (pair.kind, pair.n_heads, pair.notes, pair.off_reason) == ("eagle3", 0, (), "")


def test_constructed_eagle3(tiny_dir: Path) -> None:
    target = check_target(tiny.build("llama", tiny_dir))
    for reduced in (True, False):
        assert check_pair(target, tiny.build("eagle3", tiny_dir, reduced=reduced)).kind == "eagle3"


def test_eagle3_that_borrows_both_tables(llama: Header, tmp_path: Path) -> None:
    assert check_pair(llama, eagle3(tmp_path / "e.gguf")).kind == "eagle3"


@pytest.mark.parametrize("architecture", [name for name, able in ABILITIES.items() if able.eagle3])
def test_eagle3_targets(architecture: str, tmp_path: Path) -> None:
    target = read_header(kit.whole(tmp_path / "t.gguf", architecture))
    assert check_pair(target, eagle3(tmp_path / "e.gguf")).kind == "eagle3"


@pytest.mark.parametrize(
    ("architecture", "own", "end"),
    [("mimo2", {}, 2), ("nemotron_h", {}, 2), ("nanbeige", {"num_loops": 2}, 3), ("qwen3", {}, 1)],
)
def test_eagle3_reads_layers_as_llama_cpp_counts_them(
    architecture: str, own: dict[str, Any], end: int, tmp_path: Path
) -> None:
    """What the last layer makes counts as one more where it is given out; looped layers count each time."""
    target = read_header(kit.whole(tmp_path / "t.gguf", architecture, 2, own=own))
    last = eagle3(tmp_path / "e.gguf", own={"target_layers": [0, 1, end]})
    assert check_pair(target, last).kind == "eagle3"
    beyond = eagle3(tmp_path / "f.gguf", own={"target_layers": [0, 1, end + 1]})
    assert f"layers 0, 1, {end + 1}, and the target has" in misfit(target, beyond)


@pytest.mark.parametrize("architecture", ["gemma3", "qwen2", "phi3", "glm4"])
def test_eagle3_for_a_target_that_does_not_give_out_its_layers(architecture: str, tmp_path: Path) -> None:
    target = check_target(kit.whole(tmp_path / "t.gguf", architecture))
    assert misfit(target, eagle3(tmp_path / "e.gguf")) == (
        "it reads the inputs of the target's layers, which llama.cpp does not expose for the architecture "
        f"{architecture}"
    )


EAGLE3: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"own": {"target_hidden_size": 64}}, "it was made for a target 64 wide, this one is 32 wide"),
    "no width": ({"own": {"target_hidden_size": None}}, "it was made for a target None wide"),
    "layers": (
        {"own": {"target_layers": [0, 1, 2]}},
        "it reads the inputs of the target's layers 0, 1, 2, and the target has 2 layers",
    ),
    "two layers": (
        {"own": {"target_layers": [0, 1]}},
        "its metadata does not name the 3 layers of the target that it reads",
    ),
    "no layers": (
        {"own": {"target_layers": None}},
        "its metadata does not name the 3 layers of the target that it reads",
    ),
    "blocks": ({"own": {"block_count": 2}}, "it has more than the one block that llama.cpp runs"),
    "heads": ({"own": {"attention.head_count": 0}}, "it has no attention heads"),
    "head widths": (
        {"own": {"attention.key_length": 16, "attention.value_length": 8}},
        "its attention keys and values differ in width, which llama.cpp does not run",
    ),
    "borrowed embeddings": (
        {"own": {"embedding_length": 64}},
        "it borrows the target's embeddings, which are 32 wide, and is 64 wide itself",
    ),
    "borrowed output": (
        {"own": {"embedding_length": 64}, "tensors": {"token_embd.weight": (64, 8)}},
        "it borrows the target's output, which are 32 wide, and is 64 wide itself",
    ),
    "short embeddings": (
        {"tensors": {"token_embd.weight": (32, 7)}},
        "its embeddings do not cover the target's vocabulary",
    ),
    "map type": (
        {"tensors": {"d2t": np.arange(4, dtype=np.int32), "output.weight": (32, 4)}},
        "its token map d2t is stored as I32, where llama.cpp asks for I64",
    ),
    "map length": (
        {"tensors": {"d2t": np.arange(4, dtype=np.int64), "output.weight": (32, 5)}},
        "its token map d2t has 4 entries for 5 rows of output",
    ),
    "map over a borrowed output": (
        {"tensors": {"d2t": np.arange(4, dtype=np.int64)}},
        "its token map d2t has 4 entries for 8 rows of output",
    ),
    "map beyond the vocabulary": (
        {"tensors": {"d2t": np.array([0, 8], dtype=np.int64), "output.weight": (32, 2)}},
        "its token map d2t names tokens that the target does not have",
    ),
    "negative map": (
        {"tensors": {"d2t": np.array([0, -1], dtype=np.int64), "output.weight": (32, 2)}},
        "its token map d2t names tokens that the target does not have",
    ),
    "vocabulary": ({"tokens": [*kit.TOKENS, "e"]}, "its vocabulary has 9 tokens, the target's 8"),
    "vocabulary without a tokenizer": (
        {"tokens": None, "own": {"vocab_size": 9}},
        "its vocabulary has 9 tokens, the target's 8",
    ),
    "token": (
        {"tokens": ["<other>", *kit.TOKENS[1:]]},
        'token 0 of its vocabulary is "<other>", the target\'s is "<unk>"',
    ),
}


@pytest.mark.parametrize("case", EAGLE3)
def test_eagle3_that_does_not_fit(case: str, llama: Header, tmp_path: Path) -> None:
    more, expected = EAGLE3[case]
    given = {key: dict(value) if isinstance(value, dict) else value for key, value in more.items()}
    assert misfit(llama, eagle3(tmp_path / "e.gguf", **given)).startswith(expected)


def test_eagle3_with_a_reduced_vocabulary(llama: Header, tmp_path: Path) -> None:
    """d2t holds the target's own ids: 0 and 7 are the first and the last of eight."""
    tensors = {"d2t": np.array([0, 7], dtype=np.int64), "output.weight": (32, 2)}
    assert check_pair(llama, eagle3(tmp_path / "e.gguf", tensors=tensors)).kind == "eagle3"


# -- draft model


def test_draft_model(tiny_dir: Path) -> None:
    pair = check_pair(check_target(tiny.build("llama", tiny_dir)), tiny.build("llama-draft", tiny_dir))
    assert (pair.kind, pair.n_heads, pair.notes) == ("draft-model", 0, ())


def test_draft_model_no_smaller_than_the_target(tiny_dir: Path) -> None:
    pair = check_pair(check_target(tiny.build("llama-draft", tiny_dir)), tiny.build("llama", tiny_dir))
    assert pair.notes and "is not smaller than the target" in pair.notes[0]


def test_draft_model_of_another_architecture_and_width(llama: Header, tmp_path: Path) -> None:
    """Only the vocabulary must agree."""
    path = kit.whole(tmp_path / "d.gguf", "qwen2", 1, own={"embedding_length": 16})
    assert check_pair(llama, path).kind == "draft-model"


@pytest.mark.parametrize("architecture", ["mamba", "qwen35", "deepseek4", "rwkv7"])
def test_recurrent_draft_model(architecture: str, llama: Header, tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "d.gguf", architecture)
    assert reason(lambda: check_pair(llama, path)) == (
        f"{path} keeps a recurrent state ({architecture}), which a draft model cannot roll back. "
        "Give a draft model whose layers all attend."
    )


def test_draft_model_with_padding_tokens(llama: Header, tmp_path: Path) -> None:
    """128 tokens more are padding; 129 are another vocabulary."""
    padding = [f"<pad{i}>" for i in range(129)]
    path = kit.whole(tmp_path / "d.gguf", n_layer=1, tokens=kit.TOKENS + padding[:128])
    assert check_pair(llama, path).kind == "draft-model"
    path = kit.whole(tmp_path / "e.gguf", n_layer=1, tokens=kit.TOKENS + padding)
    assert misfit(llama, path) == "its vocabulary has 137 tokens, the target's 8"


def test_draft_model_tokens_count_from_the_sixth_on(llama: Header, tmp_path: Path) -> None:
    named_anew = ["<0>", "<1>", "<2>", "<3>", "<4>", *kit.TOKENS[5:]]
    assert (
        check_pair(llama, kit.whole(tmp_path / "d.gguf", n_layer=1, tokens=named_anew)).kind == "draft-model"
    )
    changed = [*kit.TOKENS[:5], "B", *kit.TOKENS[6:]]
    path = kit.whole(tmp_path / "e.gguf", n_layer=1, tokens=changed)
    assert misfit(llama, path) == 'token 5 of its vocabulary is "B", the target\'s is "b"'


DRAFT_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "type": (
        {"tokenizer.ggml.model": "gpt2"},
        "its tokenizer is of the type gpt2, the target's llama",
    ),
    "adds no begin": (
        {"tokenizer.ggml.add_bos_token": False},
        "their tokenizers treat the begin token differently",
    ),
    "another begin": (
        {"tokenizer.ggml.bos_token_id": 3},
        "their tokenizers treat the begin token differently",
    ),
    "adds an end": (
        {"tokenizer.ggml.add_eos_token": True},
        "their tokenizers treat the end token differently",
    ),
}


@pytest.mark.parametrize("case", DRAFT_KEYS)
def test_draft_model_with_another_tokenizer(case: str, llama: Header, tmp_path: Path) -> None:
    keys, expected = DRAFT_KEYS[case]
    assert misfit(llama, kit.whole(tmp_path / "d.gguf", n_layer=1, keys=keys)) == expected


def test_end_tokens_that_are_not_added_may_differ(llama: Header, tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "d.gguf", n_layer=1, keys={"tokenizer.ggml.eos_token_id": 3})
    assert check_pair(llama, path).kind == "draft-model"


def test_draft_model_without_tokenizer(llama: Header, tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "d.gguf", n_layer=1, tokens=None)
    assert misfit(llama, path) == "it has no tokenizer"


# -- Gemma 4 assistant


def assistant(path: Path, **own: Any) -> Path:
    given = {
        "block_count": 2,
        "nextn_predict_layers": 2,
        "embedding_length": 16,
        "embedding_length_out": 32,
        **HEADS,
        **WINDOW,
        **SLIDES,
    } | own
    tensors = {"token_embd.weight": (16, 8), "nextn.post_projection.weight": (16, 32)} | kit.block(
        0, width=16
    )
    return kit.write(path, "gemma4-assistant", tensors=tensors, own=given)


HEADS = {"attention.head_count": 2, "attention.head_count_kv": 2, "attention.key_length": 64}
HEADS |= {"attention.value_length": 64}
"""Of target and assistant alike. The first layer of each slides a window, the second does not."""
WINDOW = {"attention.key_length_swa": 32, "attention.value_length_swa": 32}
SLIDES = {"attention.sliding_window_pattern": [True, False]}


@pytest.fixture
def gemma(tmp_path: Path) -> Header:
    own = {"block_count": 2, **HEADS, **WINDOW, **SLIDES}
    return check_target(kit.whole(tmp_path / "target.gguf", "gemma4", own=own))


def test_assistant(gemma: Header, tmp_path: Path) -> None:
    pair = check_pair(gemma, assistant(tmp_path / "a.gguf"))
    assert (pair.kind, pair.n_heads) == ("gemma4-assistant", 1)


def test_constructed_assistant(tiny_dir: Path) -> None:
    target = check_target(tiny.build("gemma4", tiny_dir))
    assert check_pair(target, tiny.build("gemma4-assistant", tiny_dir)).kind == "gemma4-assistant"


def test_assistant_that_does_not_fit(gemma: Header, llama: Header, tmp_path: Path) -> None:
    other = check_target(kit.whole(tmp_path / "other.gguf"))
    assert misfit(other, assistant(tmp_path / "a.gguf")) == "it drafts for gemma4, the target is llama"
    path = assistant(tmp_path / "b.gguf", embedding_length_out=64)
    assert misfit(gemma, path) == "it was made for hidden rows 64 wide, the target's are 32"
    path = assistant(tmp_path / "d.gguf", nextn_predict_layers=1)
    assert "all blocks of an assistant are NextN blocks" in reason(lambda: check_pair(gemma, path))


READS: dict[str, tuple[dict[str, Any], str]] = {
    "a longer key": (
        {"attention.key_length": 128},
        "its full layers read 2 heads 128 and 64 wide, the target's keep 2 heads 64 and 64 wide",
    ),
    # 16 values in 2 heads are 8 a head, where the metadata does not say otherwise.
    "no length of the values": (
        {"attention.value_length": None},
        "its full layers read 2 heads 64 and 8 wide, the target's keep 2 heads 64 and 64 wide",
    ),
    "window values of another length": (
        {"attention.value_length_swa": 64},
        "its window layers read 2 heads 32 and 64 wide, the target's keep 2 heads 32 and 32 wide",
    ),
    "heads layer by layer": (
        {"attention.head_count_kv": [2, 4], "attention.head_count": 4},
        "its full layers read 4 heads 64 and 64 wide, the target's keep 2 heads 64 and 64 wide",
    ),
    "as many key heads as heads": (
        {"attention.head_count_kv": None, "attention.head_count": 4},
        "its window layers read 4 heads 32 and 32 wide, the target's keep 2 heads 32 and 32 wide",
    ),
}


@pytest.mark.parametrize("case", READS)
def test_an_assistant_reads_what_the_target_keeps(case: str, gemma: Header, tmp_path: Path) -> None:
    own, what = READS[case]
    assert misfit(gemma, assistant(tmp_path / "a.gguf", **own)) == what


def test_an_assistant_of_full_layers_has_no_window_that_llama_cpp_asks_for(
    gemma: Header, tmp_path: Path
) -> None:
    path = assistant(tmp_path / "a.gguf", **{"attention.sliding_window_pattern": [False, False]})
    assert "it has a sliding window, and no layer that sees it" in reason(lambda: check_pair(gemma, path))


@pytest.mark.parametrize(("pattern", "missing"), [([False, True], "window"), ([True, True], "full")])
def test_the_target_keeps_its_last_two_layers_in_that_order(
    pattern: list[bool], missing: str, tmp_path: Path
) -> None:
    own = {"block_count": 2, **HEADS, **WINDOW, "attention.sliding_window_pattern": pattern}
    target = check_target(kit.whole(tmp_path / "t.gguf", "gemma4", own=own))
    said = misfit(target, assistant(tmp_path / "a.gguf"))
    assert said == f"it has {missing} layers, and the target has none where llama.cpp looks for them"
