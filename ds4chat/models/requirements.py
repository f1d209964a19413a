"""What llama.cpp's graphs assume and its loader does not check, by architecture.

A tensor that the loader requires, or a shape that it compares, needs no check: it refuses the file with a
reason. Everything else aborts the whole process: a GGML_ASSERT, a null pointer, a division by zero. Each row
here is one of them (src/models/*.cpp of llama.cpp 0c1e57098); tests/zoo removes each tensor and each key from
a model of each architecture, and nothing may abort the process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import ArrayInfo, Header
from ds4chat.models.summary import nextn_layers, trunk_layers
from ds4chat.text import one_line, shortened

MAX_LAYERS = 512

# -- tensors


@dataclass(frozen=True, slots=True)
class Needs:
    """Tensors of a block that its graph reads without checking that they exist.

    ``tensors``: names without the block's, "a|b" for either of two; a name that the block lacks may also
    be outside of all blocks ("output.weight"). ``given``, ``without``: only in blocks that hold all of
    these, or lack this one. ``key``: only where this metadata integer is not 0."""

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

_DENSE_OR_EXPERTS = {
    "step35": (Needs(_FFN, without=_ROUTER), Needs((*_EXPERTS, *_SHARED_EXPERT), given=(_ROUTER,))),
    "mimo2": (Needs(_FFN, without=_ROUTER), Needs(_EXPERTS, given=(_ROUTER,))),
    "hy_v3": (Needs(_FFN, without=_ROUTER), Needs((*_MERGED_EXPERTS, *_SHARED_EXPERT), given=(_ROUTER,))),
}
_DELTA = Needs(("attn_qkv.weight", "attn_gate.weight"), given=(_RECURRENT,))
_CONVOLVES = Needs(("ssm_conv1d.bias",), given=(_RECURRENT,))
_LATENT = Needs(("ffn_latent_down.weight", "ffn_latent_up.weight"), given=(_ROUTER,), key="moe_latent_size")

TRUNK: Mapping[str, tuple[Needs, ...]] = {
    **_DENSE_OR_EXPERTS,
    "qwen35": (_DELTA,),
    "qwen35moe": (_DELTA,),
    "qwen3next": (
        Needs(("attn_qkv.weight|ssm_in.weight",), given=(_RECURRENT,)),
        Needs(("attn_gate.weight",), given=(_RECURRENT, "attn_qkv.weight")),
    ),
    "nemotron_h": (_CONVOLVES, _LATENT),
    "nemotron_h_moe": (_CONVOLVES, _LATENT),
    "granitehybrid": (_CONVOLVES,),
    "falcon-h1": (_CONVOLVES,),
}
"""Every block before those of NextN."""

INDEXER = ("indexer.proj.weight", "indexer.attn_k.weight", "indexer.attn_q_b.weight")
"""What a glm-dsa block with an indexer of its own needs."""

_FUSION = Needs(("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"))
_OWN_NORM = Needs(("nextn.shared_head_norm.weight",))

NEXTN: Mapping[str, tuple[Needs, ...]] = {
    "qwen35": (),
    "qwen35moe": (),
    "qwen3next": (),
    "deepseek2": (),
    "deepseek32": (),
    "deepseek4": (),
    "glm4moe": (),
    "glm-dsa": (),
    "cohere2moe": (),
    "nemotron_h_moe": (_OWN_NORM, _LATENT),
    "bailingmoe3": (Needs(("layer_output_norm.weight",)),),
    "step35": (*_DENSE_OR_EXPERTS["step35"], Needs(("nextn.shared_head_head.weight|output.weight",))),
    "mimo2": (Needs(("attn_qkv.weight", *_FFN)),),
    "hy_v3": _DENSE_OR_EXPERTS["hy_v3"],
}
"""What a NextN block needs besides the tensors that all architectures need."""


def check_trunk(header: Header) -> None:
    """Raises ModelFileError if a whole model lacks a tensor that plain decoding reads."""
    declared, held = header.own_integer("nextn_predict_layers") or 0, nextn_layers(header)
    if declared and not held and header.architecture in _WANT_DECLARED_NEXTN:
        raise ModelFileError(
            f"{one_line(header.path)} is incomplete: it declares {declared} NextN block"
            f"{'s' if declared > 1 else ''} and holds 0. Convert it again, or download it again."
        )
    blocks = range(trunk_layers(header))
    _check_tensors(header, blocks, TRUNK.get(header.architecture, ()))
    if header.architecture in _INDEXED:
        indexed = [i for i in blocks if _INDEXED[header.architecture](header, i)]
        own = [i for i in indexed if _has_indexer(header, i)]
        if indexed[:1] != own[:1]:
            _corrupt(header, f"its block {indexed[0]} has no indexer of its own, and none before it to go by")
        if header.architecture == "glm-dsa":
            _check_tensors(header, own, (Needs(INDEXER),))
    if header.architecture in EXPERTS_BY_BLOCK:
        used = header.own_each("expert_used_count", len(blocks), 0)
        for i in blocks:
            if f"blk.{i}.{_ROUTER}" in header.tensors and not used[i]:
                _corrupt(header, f"its block {i} has experts and uses 0 of them")


def check_nextn(header: Header, blocks: Iterable[int]) -> None:
    """Raises ModelFileError if the graph of a NextN block would abort the process."""
    blocks = list(blocks)
    _check_tensors(header, blocks, (_FUSION, *NEXTN[header.architecture]))
    dense = header.own_integer("leading_dense_block_count") or 0
    if dense > blocks[0] and header.architecture in _ROUTED_NEXTN:
        _corrupt(header, f"its first {dense} blocks have no experts, its NextN block {blocks[0]} among them")
    if header.architecture == "deepseek2" and header.metadata.get(header.own("attention.temperature_scale")):
        raise ModelFileError(
            f"{one_line(header.path)} scales its attention by the position, which llama.cpp's NextN graph "
            "does not. Use --lookup, or a draft model with --mtp FILE."
        )
    if header.architecture == "deepseek2" and _reads_no_low_rank_queries(header):
        raise ModelFileError(
            f"llama.cpp takes {one_line(header.path)}, by its {trunk_layers(header)} layers, for a model "
            "without low-rank queries, and such a one's NextN block it cannot run. Use --lookup, or a draft "
            "model with --mtp FILE."
        )
    if header.architecture in EXPERTS_BY_BLOCK:
        used = header.own_each("expert_used_count", blocks[-1] + 1, 0)
        if used[0] != used[blocks[0]]:
            _corrupt(
                header,
                f"its NextN block uses {used[blocks[0]]} experts, and llama.cpp would use as many as block 0 "
                f"does, {used[0]}",
            )


_WANT_DECLARED_NEXTN = frozenset(["qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe"])
"""All others accept a trunk that declares NextN blocks which are in another file."""

_ROUTED_NEXTN = frozenset(["deepseek2", "deepseek32", "glm-dsa", "glm4moe", "cohere2moe", "bailingmoe3"])
"""Their NextN graph routes to experts, whatever the metadata says of the block."""

EXPERTS_BY_BLOCK = frozenset(["nemotron_h", "nemotron_h_moe"])
"""Each block may use another number of experts; all other graphs go by block 0's."""


def _check_tensors(header: Header, blocks: Iterable[int], needs: tuple[Needs, ...]) -> None:
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
                    raise ModelFileError(
                        f"{one_line(header.path)} is incomplete: it lacks the tensor {prefix}{names[0]}, "
                        "without which llama.cpp cannot run the architecture "
                        f"{shortened(header.architecture)}. Convert it again, or download it again."
                    )


_INDEXED: Mapping[str, Callable[[Header, int], bool]] = {
    "glm-dsa": lambda header, i: True,
    "dots3note": lambda header, i: not header.own_each(_PATTERN, i + 1, 0)[i],
    "glm5-next": lambda header, i: header.own_each("attention.head_count_kv", i + 1, 0)[i] > 0,
}
"""Which blocks attend by an indexer's choice, their own or that of the block before."""

_LONG_GLM = 1 << 20
"""Context length from which llama.cpp takes a glm-dsa for GLM 5.2, whose layers share indexers."""


def _has_indexer(header: Header, block: int) -> bool:
    key = "attention.indexer.types"
    if header.own(key) in header.metadata:
        return bool(header.own_each(key, block + 1, 0)[block])
    shares = header.architecture == "glm-dsa" and (header.own_integer("context_length") or 0) >= _LONG_GLM
    return not shares or block < 2 or block % 4 == 2


def _reads_no_low_rank_queries(header: Header) -> bool:
    """llama.cpp tells the small DeepSeek V2 by the number of its layers alone, and reads no q_lora_rank
    then."""
    layers = trunk_layers(header)
    texts = header.metadata.get("tokenizer.ggml.tokens")
    n_vocab = header.own_integer("vocab_size") or getattr(texts, "length", 0)
    small = layers in (26, 27) or (layers == 48 and n_vocab == 128256)
    return small or not header.own_integer("attention.q_lora_rank")


# -- metadata


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two limits, if the file has it."""

    key: str
    low: float
    high: float
    default: int | None = None
    """llama.cpp's value for a missing key; None if that needs no check."""


@dataclass(frozen=True, slots=True)
class Relation:
    """``left``, times ``times``, must be equal to, at most, less than, a divisor of, or twice ``right`` and
    ``plus``. ``given``: only where this key is not 0."""

    left: str
    how: Literal["equal to", "at most", "less than", "a divisor of", "twice"]
    right: str
    times: str = ""
    plus: str = ""
    given: str = ""

    def check(self, header: Header) -> None:
        """Raises ModelFileError if llama.cpp would abort the process; window layers are checked separately if
        the file gives them sizes of their own."""
        windows = any(header.own(key + _WINDOW) in header.metadata for key in (_HEAD, _VALUE, _ROTATED))
        for suffix in ("", _WINDOW) if windows else ("",):
            a, b = _number(header, self.left, suffix), _number(header, self.right, suffix)
            if a is None or b is None or (self.given and not _number(header, self.given, suffix)):
                continue
            a *= (_number(header, self.times, suffix) or 0) if self.times else 1
            b += (_number(header, self.plus, suffix) or 0) if self.plus else 0
            if not _HOLDS[self.how](a, b):
                left = self.left + suffix + (f" times {self.times}" if self.times else "")
                right = self.right + suffix + (f" and {self.plus}" if self.plus else "")
                _corrupt(header, f"its {left} is {a:,}, where llama.cpp wants it {self.how} {right}, {b:,}")


_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "equal to": lambda a, b: a == b,
    "at most": lambda a, b: a <= b,
    "less than": lambda a, b: a < b,
    "a divisor of": lambda a, b: a > 0 and b % a == 0,
    "twice": lambda a, b: a == 2 * b,
}
_WINDOW = "_swa"
"""Suffix of the keys for window layers' own sizes."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HEAD, _VALUE, _ROTATED = "attention.key_length", "attention.value_length", "rope.dimension_count"
_DEFAULTS = {
    _ROTATED: _HEAD,
    "attention.key_length_mla": _HEAD,
    "attention.head_count_kv": "attention.head_count",
}


def _number(header: Header, key: str, suffix: str = "") -> int | None:
    """An integer with llama.cpp's default for what a file leaves out; None where there is none, or one for
    each block. A key with ``suffix`` stands before the key itself."""
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
    return _number(header, _DEFAULTS[key], suffix) if key in _DEFAULTS else None


_ROTATE_WHOLE_HEADS = _names(
    """apertus arcee arctic baichuan chameleon codeshell cogvlm cohere2moe dbrx deci deepseek dots1
    ernie4_5 ernie4_5-moe exaone exaone4 exaone-moe falcon gpt-oss granite granite_swa granitemoe
    graniteswitch grok grovemoe hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 llama
    llama4 maincoder mellum minicpm mistral3 olmo olmo2 olmoe orion paddleocr pangu-embedded plamo
    qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe seed_oss smallthinker smollm3
    starcoder2 talkie xverse"""
)
"""Graphs that assert n_embd_head == n_rot."""

ROTATE_NOTHING = frozenset(["glm5-next"])
"""Graphs that assert n_rot == 0."""

_VALUES_AS_WIDE_AS_KEYS = _ROTATE_WHOLE_HEADS | _names(
    """afmoe bailingmoe2 bitnet bloom chatglm cohere2 command-r deepseek4 gemma4 glm4 glm4moe gpt2 gptneox
    granitehybrid jais laguna lfm2 lfm2moe minimax-01 minimax-m2 minimax-m3 mpt muse-glimmer
    nanbeige nemotron nemotron_h nemotron_h_moe openelm phi2 phi3 phimoe qwen qwen35 qwen35moe
    qwen3next qwen4exp refact spark2_5 stablelm starcoder"""
)
"""Graphs that assert n_embd_head_v == n_embd_head_k."""

_DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next", "qwen4exp")
_MAMBA2 = ("mamba2", "granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe")
_LOW_RANK = (
    "deepseek2",
    "mistral4",
    "deepseek32",
    "glm-dsa",
    "bailingmoe3",
    "kimi-k3",
    "kimi-linear",
    "hy_v4",
    "dots3note",
    "glm5-next",
)
"""Their cache holds one low-rank row a token, beside the rotated part of the key (MLA)."""

_MANY = 1 << 16
_INTERVAL = Range("full_attention_interval", 1, MAX_LAYERS)
_STREAMS = (Range("hyper_connection.count", 4, 4), Range("hyper_connection.sinkhorn_iterations", 1, 1000))
"""Sinkhorn steps a layer: the published models take 20; billions would be a hang."""
_CONVOLUTION = Range("shortconv.l_cache", 2, _MANY)
_SSM_CONVOLUTION = Range("ssm.conv_kernel", 1, _MANY)
_ROUTES = Range("expert_gating_func", 1, 4)
_ROUTES_OR_DEFAULTS = Range("expert_gating_func", 0, 4)
_MUST_ROUTE = Range("expert_gating_func", 1, 4, default=0)

RANGES: Mapping[str, tuple[Range, ...]] = {
    "deepseek4": (
        Range("attention.head_count_kv", 1, 1),
        Range("attention.output_group_count", 1, MAX_LAYERS),
        *_STREAMS,
    ),
    "gemma4-assistant": (Range("attention.head_count_kv", 1, MAX_LAYERS),),
    "glm5-next": (
        Range(_ROTATED, 0, 0),
        Range("attention.indexer.kpool", 2, _MANY),
        *_STREAMS,
        _ROUTES_OR_DEFAULTS,
    ),
    "bailingmoe3": (Range("kda.safe_gate", 1, 1), Range("kda.gate_lower_bound", -math.inf, -1e-9), _ROUTES),
    "minimax-m3": (Range("attention.indexer.block_size", 1, _MANY), _ROUTES),
    "nanbeige": (Range("num_loops", 1, MAX_LAYERS),),
    "lfm2": (_CONVOLUTION,),
    "lfm2moe": (_CONVOLUTION, _ROUTES),
    "minimax-01": (_INTERVAL,),
    **dict.fromkeys(_DELTA_NETS, (_INTERVAL, _SSM_CONVOLUTION)),
    **dict.fromkeys(_MAMBA2, (_SSM_CONVOLUTION,)),
    **dict.fromkeys(
        ("deepseek32", "bailingmoe2", "dots3note", "exaone-moe", "kimi-k3", "kimi-linear"), (_ROUTES,)
    ),
    **dict.fromkeys(("minimax-m2", "dots1", "smallthinker"), (_MUST_ROUTE,)),
    "hy_v4": (
        _MUST_ROUTE,
        Range("attention.key_length_mla", 1, _MANY, default=0),
        Range("attention.value_length_mla", 1, _MANY, default=0),
    ),
    **dict.fromkeys(
        ("afmoe", "cohere2moe", "deepseek2", "mistral4", "glm-dsa", "glm4moe", "hy_v3", "laguna", "step35"),
        (_ROUTES_OR_DEFAULTS,),
    ),
}

RELATIONS: tuple[tuple[Iterable[str], tuple[Relation, ...]], ...] = (
    (_VALUES_AS_WIDE_AS_KEYS, (Relation(_VALUE, "equal to", _HEAD),)),
    (_ROTATE_WHOLE_HEADS, (Relation(_ROTATED, "equal to", _HEAD),)),
    (
        _DELTA_NETS,
        (
            Relation("ssm.group_count", "a divisor of", "ssm.time_step_rank"),
            Relation("ssm.time_step_rank", "a divisor of", "ssm.inner_size"),
        ),
    ),
    (
        _MAMBA2,
        (
            Relation("ssm.time_step_rank", "a divisor of", "ssm.inner_size"),
            Relation("ssm.group_count", "a divisor of", "ssm.inner_size"),
        ),
    ),
    (("mamba2", "granitehybrid"), (Relation("ssm.inner_size", "twice", "embedding_length"),)),
    (
        ("deepseek2", "mistral4", "hy_v4"),
        (Relation(_ROTATED, "less than", "attention.key_length_mla"),),
    ),
    (
        _LOW_RANK,
        (
            Relation(
                _HEAD,
                "equal to",
                "attention.kv_lora_rank",
                plus=_ROTATED,
                given="attention.key_length_mla",
            ),
        ),
    ),
    (
        ("deepseek32", "glm-dsa", "dots3note"),
        (Relation(_ROTATED, "at most", "attention.indexer.key_length"),),
    ),
    (("deepseek4",), (Relation("attention.output_group_count", "a divisor of", "attention.head_count"),)),
    (
        ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"),
        (Relation("wkv.head_size", "a divisor of", "embedding_length"),),
    ),
    (("glm5-next",), (Relation("attention.indexer.kpool", "a divisor of", "attention.indexer.top_k"),)),
    (
        ("lfm2", "lfm2moe"),
        (Relation("attention.head_count", "equal to", "embedding_length", times=_HEAD),),
    ),
)

_BY_INTERVAL = frozenset(["qwen35", "qwen35moe", "qwen3next", "qwen4exp", "minimax-01"])
"""Hybrids of which every full_attention_interval-th block attends, four where they do not say."""
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
    architecture = header.architecture
    for rule in RANGES.get(architecture, ()):
        value = header.metadata.get(header.own(rule.key), rule.default)
        if isinstance(value, int | float) and not rule.low <= value <= rule.high:
            _corrupt(header, f"its {rule.key} is {value:,}")
    for architectures, relations in RELATIONS:
        if architecture in architectures:
            for relation in relations:
                relation.check(header)
    _check_heads(header)
    _check_layers(header)
    _check_windows(header)


def _check_heads(header: Header) -> None:
    """Query heads share those of keys and values evenly; a low-rank cache has one of them."""
    if header.own("attention.head_count_kv") not in header.metadata:
        shared = header.own_each("attention.head_count", 1, 0)
    else:
        shared = header.own_each("attention.head_count_kv", _blocks(header), 0)
    heads = header.own_each("attention.head_count", len(shared), 0)
    low_rank = header.architecture in _LOW_RANK and _number(header, "attention.key_length_mla", "")
    for i, (n, kv) in enumerate(zip(heads, shared)):
        if kv and n % kv:
            _corrupt(header, f"its block {i} has {n} attention heads over {kv} of keys and values")
        if kv > 1 and low_rank and header.own("attention.key_length_mla") in header.metadata:
            _corrupt(header, f"its block {i} has {kv} heads of keys and values, where llama.cpp wants 1")


def _check_windows(header: Header) -> None:
    """Of a model with a sliding window some layer sees it, and of those that have a cache for the rest, some
    layer does not."""
    architecture = header.architecture
    if architecture in WINDOWED and header.own(_PATTERN) in header.metadata:
        info = header.metadata[header.own(_PATTERN)]
        listed = isinstance(info, ArrayInfo)
        trunk = _blocks(header) - (header.own_integer("nextn_predict_layers") or 0)
        if isinstance(info, ArrayInfo) and info.length < trunk:
            _corrupt(header, f"its {_PATTERN} tells of {info.length} layers, and it has {trunk}")
        windows = header.own_each(_PATTERN, _blocks(header), 0)
        if not any(windows) if listed else windows[0] == 1:
            _corrupt(header, "it has a sliding window, and no layer that sees it")
        if architecture == "dots3note" and all(windows):
            _corrupt(header, "none of its layers sees beyond the sliding window")


def _check_layers(header: Header) -> None:
    """llama.cpp makes a cache for each kind of layer that the architecture has, and none may be empty."""
    architecture = header.architecture
    trunk = range(_blocks(header) - (header.own_integer("nextn_predict_layers") or 0))
    if not trunk:
        return
    recurrent = None
    if architecture in _BY_INTERVAL:
        interval = header.own_integer("full_attention_interval") or 4
        recurrent = [(i + 1) % interval != 0 for i in trunk]
        if header.own("attention.recurrent_layers") in header.metadata:
            recurrent = [bool(x) for x in header.own_each("attention.recurrent_layers", len(trunk), 0)]
    elif architecture in _BY_HEADS:
        key = "attention.head_count_kv"
        kv = header.own_each(
            key if header.own(key) in header.metadata else "attention.head_count", len(trunk), 0
        )
        width = [0] * len(trunk)
        if architecture in EXPERTS_BY_BLOCK:
            width = header.own_each("feed_forward_length", len(trunk), 0)
        recurrent = [n == 0 for n, ff in zip(kv, width) if not ff]
    if recurrent is not None and len(set(recurrent)) < 2:
        kind = "recurrent" if any(recurrent) else "attention"
        _corrupt(header, f"its layers are all {kind} layers, where the architecture has both kinds")


def _blocks(header: Header) -> int:
    return header.own_integer("block_count") or 0


def _corrupt(header: Header, what: str) -> NoReturn:
    raise ModelFileError(
        f"{one_line(header.path)} is corrupt: {what}. Download it again, or convert it again."
    )
