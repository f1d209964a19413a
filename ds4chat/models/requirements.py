"""What llama.cpp's graphs assume and its loader does not check, by architecture.

A tensor that the loader requires, or a shape that it compares, needs no check: it refuses the file with a
reason. Everything else aborts the whole process: a GGML_ASSERT, a null pointer, a division by zero. Each row
here is one of them (src/models/*.cpp of llama.cpp 0c1e57098); tests/zoo removes each tensor and each key from
a model of each architecture, and nothing may abort the process."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from ds4chat.models.architectures import ABILITIES
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import ArrayInfo, Header
from ds4chat.models.summary import kv_heads, nextn_layers, trunk_layers
from ds4chat.models.tokenizer import vocabulary_size
from ds4chat.text import counted, one_line, shortened

MAX_LAYERS = 512


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# -- tensors


@dataclass(frozen=True, slots=True)
class Needs:
    """Tensors of a block that the graphs of some architectures read without checking that they exist.

    ``tensors``: names without the block's, "a|b" for either of two; a name that the block lacks may also
    be outside of all blocks ("output.weight"). ``given``, ``without``: only in blocks that hold all of
    these, or lack this one. ``key``: only where this metadata integer is not 0."""

    architectures: Collection[str]
    tensors: tuple[str, ...]
    given: tuple[str, ...] = ()
    without: str = ""
    key: str = ""


_FFN = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
_ROUTER = "ffn_gate_inp.weight"
_EXPERTS = ("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight")
_MERGED_EXPERTS = (
    "ffn_gate_exps.weight|ffn_gate_up_exps.weight",
    "ffn_up_exps.weight|ffn_gate_up_exps.weight",
    "ffn_down_exps.weight",
)
_SHARED_EXPERT = ("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight")
_RECURRENT = "ssm_out.weight"
"""Only recurrent blocks have it."""

_NEMOTRON = ("nemotron_h", "nemotron_h_moe")
_LATENT = ("ffn_latent_down.weight", "ffn_latent_up.weight")
_ANY_BLOCK = (
    Needs(("step35", "hy_v3"), _FFN, without=_ROUTER),
    Needs(("step35",), (*_EXPERTS, *_SHARED_EXPERT), given=(_ROUTER,)),
    Needs(("hy_v3",), (*_MERGED_EXPERTS, *_SHARED_EXPERT), given=(_ROUTER,)),
    Needs(_NEMOTRON, _LATENT, given=(_ROUTER,), key="moe_latent_size"),
)

TRUNK = (
    *_ANY_BLOCK,
    Needs(("mimo2",), _FFN, without=_ROUTER),
    Needs(("mimo2",), _EXPERTS, given=(_ROUTER,)),
    Needs(("qwen35", "qwen35moe"), ("attn_qkv.weight", "attn_gate.weight"), given=(_RECURRENT,)),
    Needs(("qwen3next",), ("attn_qkv.weight|ssm_in.weight",), given=(_RECURRENT,)),
    Needs(("qwen3next",), ("attn_gate.weight",), given=(_RECURRENT, "attn_qkv.weight")),
    Needs((*_NEMOTRON, "granitehybrid", "falcon-h1"), ("ssm_conv1d.bias",), given=(_RECURRENT,)),
)
"""Every block before those of NextN."""

NEXTN = (
    Needs(ABILITIES, ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight")),
    *_ANY_BLOCK,
    Needs(("nemotron_h_moe",), ("nextn.shared_head_norm.weight",)),
    Needs(("bailingmoe3",), ("layer_output_norm.weight",)),
    Needs(("step35",), ("nextn.shared_head_head.weight|output.weight",)),
    Needs(("mimo2",), ("attn_qkv.weight", *_FFN)),
)

INDEXER = (Needs(("glm-dsa",), ("indexer.proj.weight", "indexer.attn_k.weight", "indexer.attn_q_b.weight")),)
"""A block with an indexer of its own."""

_WANT_DECLARED_NEXTN = ("qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe")
"""All others accept a trunk that declares NextN blocks which are in another file."""

_ROUTED_NEXTN = ("deepseek2", "deepseek32", "glm-dsa", "glm4moe", "cohere2moe", "bailingmoe3")
"""Their NextN graph routes to experts, whatever the metadata says of the block."""

EXPERTS_BY_BLOCK = _NEMOTRON
"""Each block may use another number of experts; all other graphs use that of block 0."""

_LONG_GLM = 1 << 20
"""Context length from which llama.cpp treats a glm-dsa as GLM 5.2, whose layers share indexers."""


def check_trunk(header: Header) -> None:
    """Raises ModelFileError if a whole model lacks a tensor that plain decoding reads."""
    declared = header.own_integer("nextn_predict_layers") or 0
    if declared and not nextn_layers(header) and header.architecture in _WANT_DECLARED_NEXTN:
        header.incomplete(f"it declares {counted(declared, 'NextN block')} and holds 0")
    blocks = range(trunk_layers(header))
    _check_tensors(header, blocks, TRUNK)
    _check_indexers(header, blocks)
    if header.architecture in EXPERTS_BY_BLOCK:
        used = header.own_each("expert_used_count", len(blocks), 0)
        for i in blocks:
            if f"blk.{i}.{_ROUTER}" in header.tensors and not used[i]:
                header.corrupt(f"its block {i} has experts and uses 0 of them")


def check_nextn(header: Header, blocks: range) -> None:
    """Raises ModelFileError if the graph of a NextN block would abort the process."""
    _check_tensors(header, blocks, NEXTN)
    name, first = one_line(header.path), blocks[0]
    dense = header.own_integer("leading_dense_block_count") or 0
    if dense > first and header.architecture in _ROUTED_NEXTN:
        header.corrupt(f"its first {dense} blocks have no experts, its NextN block {first} among them")
    if header.architecture == "deepseek2":
        if header.metadata.get(header.own("attention.temperature_scale")):
            raise ModelFileError(
                f"{name} scales its attention by the position, which llama.cpp's NextN graph does not. Use "
                "--lookup, or a draft model with --mtp FILE."
            )
        if not _is_mla(header) or _without_low_rank_queries(header):
            what = "queries" if _is_mla(header) else "attention"
            raise ModelFileError(
                f"llama.cpp runs {name}, with {first} layers, as a model without low-rank {what}, and cannot "
                "run the NextN block of such a model. Use --lookup, or a draft model with --mtp FILE."
            )
    if header.architecture in EXPERTS_BY_BLOCK:
        used = header.own_each("expert_used_count", blocks[-1] + 1, 0)
        if used[0] != used[first]:
            header.corrupt(
                f"its NextN block uses {used[first]} experts, and llama.cpp would use as many as in block 0, "
                f"{used[0]}"
            )


def _check_tensors(header: Header, blocks: Iterable[int], table: Iterable[Needs]) -> None:
    needs = [need for need in table if header.architecture in need.architectures]
    for i in blocks:
        prefix = f"blk.{i}."
        for need in needs:
            if not all(prefix + name in header.tensors for name in need.given):
                continue
            if need.without and prefix + need.without in header.tensors:
                continue
            if need.key and not header.own_integer(need.key):
                continue
            for either in need.tensors:
                names = either.split("|")
                if not any(prefix + name in header.tensors or name in header.tensors for name in names):
                    header.incomplete(
                        f"it lacks the tensor {prefix}{names[0]}, without which llama.cpp cannot run the "
                        f"architecture {shortened(header.architecture)}"
                    )


def _check_indexers(header: Header, blocks: range) -> None:
    """Some blocks attend by an indexer's choice, their own or that of a block before: the first of them needs
    its own."""
    architecture = header.architecture
    if architecture == "glm-dsa":
        indexed = list(blocks)
    elif architecture == "dots3note":
        windows = header.own_each(_PATTERN, len(blocks), 0)
        indexed = [i for i in blocks if not windows[i]]
    elif architecture == "glm5-next":
        heads = header.own_each("attention.head_count_kv", len(blocks), 0)
        indexed = [i for i in blocks if heads[i] > 0]
    else:
        return
    if header.own("attention.indexer.types") in header.metadata:
        types = header.own_each("attention.indexer.types", len(blocks), 0)
        own = [i for i in indexed if types[i]]
    elif architecture == "glm-dsa" and (header.own_integer("context_length") or 0) >= _LONG_GLM:
        own = [i for i in indexed if i < 2 or i % 4 == 2]
    else:
        own = indexed
    if indexed[:1] != own[:1]:
        header.corrupt(f"its block {indexed[0]} has no indexer of its own, and no block before it has one")
    _check_tensors(header, own, INDEXER)


def _without_low_rank_queries(header: Header) -> bool:
    """llama.cpp recognises the small DeepSeek V2 by its number of layers alone, and then ignores
    q_lora_rank."""
    layers = trunk_layers(header)
    n_vocab = header.own_integer("vocab_size") or vocabulary_size(header)
    small = layers in (26, 27) or (layers == 48 and n_vocab == 128256)
    return small or not header.own_integer("attention.q_lora_rank")


# -- metadata


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two limits, if the file has it."""

    architectures: Collection[str]
    key: str
    low: float
    high: float
    default: int | None = None
    """llama.cpp's value for a missing key; None if that needs no check."""


@dataclass(frozen=True, slots=True)
class Relation:
    """What ``left`` must be to ``right``, both keys of the metadata."""

    architectures: Collection[str]
    left: str
    how: Literal["equal to", "less than", "at most", "a divisor of", "twice"]
    right: str


_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "equal to": lambda a, b: a == b,
    "less than": lambda a, b: a < b,
    "at most": lambda a, b: a <= b,
    "a divisor of": lambda a, b: a > 0 and b % a == 0,
    "twice": lambda a, b: a == 2 * b,
}

_HEAD, _VALUE, _ROTATED = "attention.key_length", "attention.value_length", "rope.dimension_count"
_MLA_KEY, _MLA_VALUE = "attention.key_length_mla", "attention.value_length_mla"
_DEFAULTS = {_ROTATED: _HEAD, _MLA_KEY: _HEAD}
_WINDOW = "_swa"
"""Suffix of the keys for window layers' own sizes."""


def size_of(header: Header, key: str, suffix: str = "") -> int | None:
    """An integer, or llama.cpp's default for a missing one; None if that has no default, or the file has a
    value for each block. The key with ``suffix`` takes precedence."""
    if suffix and header.own(key + suffix) in header.metadata:
        return header.own_integer(key + suffix)
    value = header.metadata.get(header.own(key))
    if isinstance(value, ArrayInfo):
        return None
    if value is not None:
        return header.own_integer(key)
    if key in (_HEAD, _VALUE):
        heads = header.own_each("attention.head_count", 1, 0)[0]
        return (header.own_integer("embedding_length") or 0) // heads if heads > 0 else None
    return size_of(header, _DEFAULTS[key], suffix) if key in _DEFAULTS else None


_ROTATE_WHOLE_HEADS = _names(
    """apertus arcee arctic baichuan chameleon codeshell cogvlm cohere2moe dbrx deci deepseek dots1
    ernie4_5 ernie4_5-moe exaone exaone4 exaone-moe falcon gpt-oss granite granite_swa granitemoe
    graniteswitch grok grovemoe hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 llama
    llama4 maincoder mellum minicpm mistral3 olmo olmo2 olmoe orion paddleocr pangu-embedded plamo
    qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe seed_oss smallthinker smollm3
    starcoder2 talkie xverse"""
)
"""Graphs that assert n_embd_head == n_rot."""

ROTATE_NOTHING = ("glm5-next",)
"""Graphs that assert n_rot == 0."""

_VALUES_AS_WIDE_AS_KEYS = _ROTATE_WHOLE_HEADS | _names(
    """afmoe bailingmoe2 bitnet bloom chatglm cohere2 command-r deepseek4 gemma4 glm4 glm4moe gpt2 gptneox
    granitehybrid jais laguna lfm2 lfm2moe minimax-01 minimax-m2 minimax-m3 mpt muse-glimmer
    nanbeige nemotron nemotron_h nemotron_h_moe openelm phi2 phi3 phimoe qwen qwen35 qwen35moe
    qwen3next qwen4exp refact spark2_5 stablelm starcoder"""
)
"""Graphs that assert n_embd_head_v == n_embd_head_k."""

_DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next", "qwen4exp")
_MAMBA2 = ("mamba2", "granitehybrid", "falcon-h1", *_NEMOTRON)
_LFM2 = ("lfm2", "lfm2moe")
_LOW_RANK = _names(
    """deepseek2 mistral4 deepseek32 glm-dsa bailingmoe3 kimi-k3 kimi-linear hy_v4 dots3note glm5-next"""
)
"""With attention.key_length_mla their cache holds one low-rank row a token, beside the rotated part of the
key (MLA)."""

_MAY_BE_LOW_RANK = ("deepseek2", "mistral4")
"""The loader accepts them without attention.key_length_mla too; each query head has keys and values then."""

_MANY = 1 << 16

RANGES = (
    # A missing one would default to the number of query heads.
    Range(("deepseek4",), "attention.head_count_kv", 1, 1, default=0),
    Range(("deepseek4",), "attention.output_group_count", 1, MAX_LAYERS),
    Range(("deepseek4", "glm5-next"), "hyper_connection.count", 4, 4),
    # Steps a layer: the published models take 20; billions would be a hang.
    Range(("deepseek4", "glm5-next"), "hyper_connection.sinkhorn_iterations", 1, 1000),
    Range(_MAY_BE_LOW_RANK, "attention.head_count", 1, _MANY, default=0),
    Range(("gemma4-assistant",), "attention.head_count_kv", 1, MAX_LAYERS),
    Range(ROTATE_NOTHING, _ROTATED, 0, 0),
    Range(("glm5-next",), "attention.indexer.kpool", 2, _MANY),
    Range(("bailingmoe3",), "kda.safe_gate", 1, 1),
    Range(("bailingmoe3",), "kda.gate_lower_bound", -math.inf, -1e-9),
    Range(("minimax-m3",), "attention.indexer.block_size", 1, _MANY),
    Range(("nanbeige",), "num_loops", 1, MAX_LAYERS),
    Range((*_DELTA_NETS, "minimax-01"), "full_attention_interval", 1, MAX_LAYERS),
    Range(_LFM2, "shortconv.l_cache", 2, _MANY),
    Range((*_DELTA_NETS, *_MAMBA2), "ssm.conv_kernel", 1, _MANY),
    Range(("hy_v4",), _MLA_KEY, 1, _MANY, default=0),
    Range(("hy_v4",), _MLA_VALUE, 1, _MANY, default=0),
    Range(
        _names(
            """bailingmoe2 bailingmoe3 deepseek32 dots3note exaone-moe kimi-k3 kimi-linear lfm2moe
            minimax-m3"""
        ),
        "expert_gating_func",
        1,
        4,
    ),
    Range(("dots1", "hy_v4", "minimax-m2", "smallthinker"), "expert_gating_func", 1, 4, default=0),
    # 0: the graph has a default of its own.
    Range(
        _names(
            """afmoe cohere2moe deepseek2 glm-dsa glm4moe glm5-next hy_v3 laguna mistral4
            step35"""
        ),
        "expert_gating_func",
        0,
        4,
    ),
)

RELATIONS = (
    Relation(_VALUES_AS_WIDE_AS_KEYS, _VALUE, "equal to", _HEAD),
    Relation(_ROTATE_WHOLE_HEADS, _ROTATED, "equal to", _HEAD),
    Relation(_DELTA_NETS, "ssm.group_count", "a divisor of", "ssm.time_step_rank"),
    Relation(_MAMBA2, "ssm.group_count", "a divisor of", "ssm.inner_size"),
    Relation((*_DELTA_NETS, *_MAMBA2), "ssm.time_step_rank", "a divisor of", "ssm.inner_size"),
    Relation(("mamba2", "granitehybrid"), "ssm.inner_size", "twice", "embedding_length"),
    Relation(("deepseek2", "mistral4", "hy_v4"), _ROTATED, "less than", _MLA_KEY),
    Relation(("deepseek32", "glm-dsa", "dots3note"), _ROTATED, "at most", "attention.indexer.key_length"),
    Relation(("deepseek4",), "attention.output_group_count", "a divisor of", "attention.head_count"),
    Relation(("glm5-next",), "attention.indexer.kpool", "a divisor of", "attention.indexer.top_k"),
    Relation(("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), "wkv.head_size", "a divisor of", "embedding_length"),
)

_BY_INTERVAL = (*_DELTA_NETS, "minimax-01")
"""Hybrids in which one block in full_attention_interval attends, by default one in four."""
_BY_HEADS = _names(
    """bailingmoe3 glm5-next granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe nemotron_h nemotron_h_moe
    plamo2"""
)
"""Hybrids whose blocks without heads of keys and values are recurrent, unless they have a feed-forward
width."""

_PATTERN = "attention.sliding_window_pattern"
WINDOWED = _names(
    """cohere2moe dots3note gemma4 gemma4-assistant gpt-oss granite_swa maple mimo2 muse-glimmer spark2_5
    step35"""
)
"""Their cache asserts that some layer sees a window."""


def check_values(header: Header) -> None:
    """Raises ModelFileError for metadata that the architecture's graph asserts otherwise."""
    for rule in RANGES:
        if header.architecture in rule.architectures:
            value = header.metadata.get(header.own(rule.key), rule.default)
            if isinstance(value, int | float) and not rule.low <= value <= rule.high:
                header.corrupt(f"its {rule.key} is {value:,}")
    for relation in RELATIONS:
        if header.architecture in relation.architectures:
            _check_relation(header, relation)
    if header.architecture == "gemma4":
        shared = header.own_integer("attention.shared_kv_layers")
        if shared is not None and not 0 <= shared <= (_blocks(header) or 2) - 2:
            header.corrupt(f"its attention.shared_kv_layers is {shared:,}")
    _check_heads(header)
    _check_layers(header)
    _check_windows(header)


def _suffixes(header: Header) -> tuple[str, ...]:
    """Those of the keys to check: window layers are checked separately if the file gives them sizes of their
    own."""
    own_sizes = any(header.own(key + _WINDOW) in header.metadata for key in (_HEAD, _VALUE, _ROTATED))
    return ("", _WINDOW) if own_sizes else ("",)


def _check_relation(header: Header, relation: Relation) -> None:
    left, how, right = relation.left, relation.how, relation.right
    for suffix in _suffixes(header):
        a, b = size_of(header, left, suffix), size_of(header, right, suffix)
        if a is not None and b is not None and not _HOLDS[how](a, b):
            header.corrupt(
                f"its {left}{suffix} is {a:,}, where llama.cpp wants it {how} {right}{suffix}, {b:,}"
            )


def _check_heads(header: Header) -> None:
    """Query heads share those of keys and values evenly; a low-rank cache has one of the latter, as wide as
    its rows."""
    shared = kv_heads(header, _blocks(header))
    heads = header.own_each("attention.head_count", len(shared), 0)
    low_rank = header.architecture in _LOW_RANK and header.own_integer(_MLA_KEY)
    for i, (n, kv) in enumerate(zip(heads, shared)):
        if kv and n % kv:
            header.corrupt(f"its block {i} has {n} attention heads over {kv} of keys and values")
        if kv > 1 and low_rank:
            header.corrupt(f"its block {i} has {kv} heads of keys and values, where llama.cpp wants 1")
        if kv != n and header.architecture in _MAY_BE_LOW_RANK and not low_rank:
            header.corrupt(f"its block {i} has {kv} heads of keys and values, where llama.cpp wants {n}")
    for suffix in _suffixes(header):
        width, rank = size_of(header, _HEAD, suffix), size_of(header, "attention.kv_lora_rank", suffix)
        if low_rank and width is not None and rank is not None:
            row = rank + (size_of(header, _ROTATED, suffix) or 0)
            if width != row:
                header.corrupt(
                    f"its {_HEAD}{suffix} is {width:,}, where llama.cpp wants it equal to "
                    f"attention.kv_lora_rank and {_ROTATED}, {row:,}"
                )
    if header.architecture in _LFM2:
        _check_lfm2(header)


def _check_lfm2(header: Header) -> None:
    """All heads together are as wide as the embeddings."""
    n, embedding = size_of(header, "attention.head_count"), header.own_integer("embedding_length")
    for suffix in _suffixes(header):
        width = size_of(header, _HEAD, suffix)
        if n is not None and width is not None and embedding is not None and n * width != embedding:
            header.corrupt(
                f"its attention.head_count times {_HEAD}{suffix} is {n * width:,}, where llama.cpp wants it "
                f"equal to embedding_length, {embedding:,}"
            )


def _is_mla(header: Header) -> bool:
    return all(header.own_integer(key) for key in (_MLA_KEY, _MLA_VALUE))


def _check_layers(header: Header) -> None:
    """llama.cpp makes a cache for each kind of layer that the architecture has, and none may be empty."""
    n = trunk_layers(header)
    if header.architecture in _BY_INTERVAL:
        interval = header.own_integer("full_attention_interval") or 4
        recurrent = [(i + 1) % interval != 0 for i in range(n)]
        if header.own("attention.recurrent_layers") in header.metadata:
            recurrent = [bool(x) for x in header.own_each("attention.recurrent_layers", n, 0)]
    elif header.architecture in _BY_HEADS:
        by_block = header.architecture in EXPERTS_BY_BLOCK
        widths = header.own_each("feed_forward_length", n, 0) if by_block else [0] * n
        recurrent = [kv == 0 for kv, width in zip(kv_heads(header, n), widths) if not width]
    else:
        return
    if n and len(set(recurrent)) < 2:
        kind = "recurrent" if any(recurrent) else "attention"
        header.corrupt(f"its layers are all {kind} layers, where the architecture has both kinds")


def _check_windows(header: Header) -> None:
    """Some layer of a model with a sliding window sees only that; some other layer sees more, if it has a
    cache for those."""
    pattern = header.metadata.get(header.own(_PATTERN))
    if header.architecture not in WINDOWED or pattern is None:
        return
    windows = header.own_each(_PATTERN, _blocks(header), 0)
    unused = pattern == 1
    if isinstance(pattern, ArrayInfo):
        unused = not any(windows)
        if pattern.length < trunk_layers(header):
            header.corrupt(f"its {_PATTERN} lists {pattern.length} layers, and it has {trunk_layers(header)}")
    if unused:
        header.corrupt("it has a sliding window, and no layer that sees it")
    if header.architecture == "dots3note" and windows and all(windows):
        header.corrupt("none of its layers sees beyond the sliding window")


def _blocks(header: Header) -> int:
    return header.own_integer("block_count") or 0
