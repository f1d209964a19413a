"""Metadata of one tiny model of each architecture that ds4chat's tables name: all of it that is written by
hand. tiny.zoo finds the tensors.

Sizes are the smallest that keep what matters: every kind of layer, experts, shared experts, windows, and
heads 32 wide, which any cache type can store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

LAYERS = 4
"""Blocks of the trunk."""
WIDTH = 64

FFN = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
EXPERTS = ("ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight")
SHARED_EXPERT = ("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight")
INDEXER = (
    "indexer.k_norm.weight",
    "indexer.k_norm.bias",
    "indexer.proj.weight",
    "indexer.attn_k.weight",
    "indexer.attn_q_b.weight",
)
OWN_HEAD = ("nextn.shared_head_head.weight", "nextn.shared_head_norm.weight")


@dataclass(frozen=True)
class Species:
    """An architecture as a tiny model. ``optional``: tensors that llama.cpp does not ask for when it loads
    the file, "blk.2.attn_gate.weight". ``own_head``: whether a NextN block may have an output head of its
    own."""

    architecture: str
    metadata: Mapping[str, Any]
    heads: int = 0
    optional: tuple[str, ...] = ()
    pre: str = "gpt-2"
    own_head: bool = True

    @property
    def keys(self) -> dict[str, Any]:
        """The metadata under the architecture's prefix."""
        counts = {"block_count": LAYERS + self.heads}
        if self.heads:
            counts["nextn_predict_layers"] = self.heads
        return {**_COMMON, **counts, **self.metadata}


def _blocks(numbers: Iterable[int], *tensors: str) -> tuple[str, ...]:
    return tuple(f"blk.{i}.{tensor}" for i in numbers for tensor in tensors)


def _nextn(heads: int = 1) -> range:
    return range(LAYERS, LAYERS + heads)


_COMMON = {
    "context_length": 4096,
    "embedding_length": WIDTH,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.head_count": 2,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "rope.dimension_count": 32,
    "feed_forward_length": 96,
}
_MOE = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
_SIGMOID = {"expert_gating_func": 2}
_SHARED = {"expert_shared_count": 1, "expert_weights_scale": 1.5, "expert_weights_norm": True}
_DENSE_LEAD = {**_MOE, **_SHARED, **_SIGMOID, "leading_dense_block_count": 1}
_SSM = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
_MLA = {
    "attention.head_count_kv": 1,
    "attention.key_length": 64,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 24,
    "attention.kv_lora_rank": 32,
    "attention.q_lora_rank": 24,
}
_INDEXER = {
    "attention.indexer.head_count": 2,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 16,
}
_WINDOW = {"attention.sliding_window": 64}
_KDA = {"ssm.conv_kernel": 4, "kda.head_dim": 32, "kda.gate_lower_bound": -5.0}
_STREAMS = {"hyper_connection.count": 4, "hyper_connection.epsilon": 1e-6}
_DELTA = {**_SSM, "rope.dimension_sections": [6, 5, 5, 0], "full_attention_interval": 4}
_SHARED_FFN = {"expert_shared_feed_forward_length": 32}
_RECURRENT = _blocks((0, 1, 2), "attn_qkv.weight", "attn_gate.weight")
_ROUTER_BIAS = _blocks(range(1, LAYERS + 1), "exp_probs_b.bias")
_NEMOTRON = {**_SSM, "attention.layer_norm_epsilon": 1e-5}
_ONE_ATTENDS = {"attention.head_count_kv": [0, 0, 2, 0]}


def _pattern(windows: str, heads: int = 0) -> list[bool]:
    """Which blocks see a window: "fwwf", NextN blocks after them do."""
    return [letter == "w" for letter in windows] + [True] * heads


def _chained(architecture: str, heads: int) -> Species:
    """The three architectures whose NextN blocks are run in turn."""
    all_blocks = range(LAYERS + heads)
    optional = _blocks(_nextn(heads), *OWN_HEAD) + _blocks((0,), *FFN)
    routed = _blocks(range(1, LAYERS), *EXPERTS)
    pattern = {**_WINDOW, "attention.sliding_window_pattern": _pattern("fwwf", heads)}
    if architecture == "step35":
        metadata = {
            **_MOE,
            **_SIGMOID,
            **_SHARED_FFN,
            **pattern,
            "attention.head_count": [2, 4, 4, 2, *[4] * heads],
            "expert_weights_norm": True,
        }
        optional += routed + _blocks(range(1, LAYERS), *SHARED_EXPERT) + _blocks(_nextn(heads), *FFN)
        optional += _blocks(all_blocks, "attn_gate.weight", "attn_q_norm.weight", "attn_k_norm.weight")
    elif architecture == "mimo2":
        metadata = {**_MOE, **pattern, "attention.key_length": 64, "rope.dimension_count": 16}
        optional += routed + _blocks(_nextn(heads), *FFN) + _blocks(all_blocks, "attn_qkv.weight")
        optional += _blocks((1, 2, *_nextn(heads)), "attn_sinks.weight")
    else:
        metadata = {**_MOE, **_SIGMOID, **_SHARED_FFN, "expert_weights_norm": True}
        routed += _blocks(range(1, LAYERS), *SHARED_EXPERT)
        optional += routed + _blocks(_nextn(heads), *EXPERTS, *SHARED_EXPERT)
        optional += _blocks(range(1, LAYERS + heads), "exp_probs_b")
    return Species(architecture, metadata, heads, optional)


_GLM_DSA = Species(
    "glm-dsa",
    {**_MLA, **_INDEXER, **_DENSE_LEAD},
    1,
    _blocks(_nextn(), *OWN_HEAD) + _ROUTER_BIAS + _blocks(range(LAYERS + 1), *INDEXER),
)

NEXTN: dict[str, Species] = {
    "qwen35": Species("qwen35", _DELTA, 1, _blocks(_nextn(), *OWN_HEAD) + _RECURRENT, "qwen35"),
    "qwen35moe": Species(
        "qwen35moe",
        {**_DELTA, **_MOE, **_SHARED_FFN},
        1,
        _blocks(_nextn(), *OWN_HEAD) + _RECURRENT,
        "qwen35",
    ),
    "qwen3next": Species(
        "qwen3next",
        {**_SSM, **_MOE, **_SHARED_FFN, "full_attention_interval": 4},
        1,
        _blocks(_nextn(), *OWN_HEAD) + _RECURRENT,
    ),
    "deepseek2": Species(
        "deepseek2", {**_MLA, **_DENSE_LEAD}, 1, _blocks(_nextn(), *OWN_HEAD) + _ROUTER_BIAS
    ),
    "deepseek32": Species(
        "deepseek32", {**_MLA, **_INDEXER, **_DENSE_LEAD}, 1, _blocks(_nextn(), *OWN_HEAD) + _ROUTER_BIAS
    ),
    "glm-dsa": _GLM_DSA,
    # Some layers go by the indexer's choice in the layer before.
    "glm-dsa-shared": replace(
        _GLM_DSA,
        metadata={
            **_GLM_DSA.metadata,
            "context_length": 1048576,
            "attention.indexer.types": [True, False, True, False],
        },
        optional=_blocks(_nextn(), *OWN_HEAD) + _ROUTER_BIAS + _blocks((0, 2, LAYERS), *INDEXER),
    ),
    "glm4moe": Species(
        "glm4moe", {**_DENSE_LEAD, "rope.dimension_count": 16}, 1, _blocks(_nextn(), *OWN_HEAD)
    ),
    "cohere2moe": Species(
        "cohere2moe",
        {
            **_MOE,
            **_SIGMOID,
            **_WINDOW,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "logit_scale": 1.0,
            "attention.sliding_window_pattern": [*_pattern("wwwf"), False],
        },
        1,
        _blocks(_nextn(), *OWN_HEAD),
    ),
    "nemotron_h_moe": Species(
        "nemotron_h_moe",
        {
            **_NEMOTRON,
            **_MOE,
            **_SHARED,
            **_SHARED_FFN,
            "moe_latent_size": 16,
            "attention.head_count_kv": [0, 0, 2, 0, 2],
            "feed_forward_length": [0, 32, 0, 0, 0],
        },
        1,
        _blocks((0, 3), "ssm_conv1d.bias")
        + _blocks((1, *_nextn()), "ffn_latent_down.weight", "ffn_latent_up.weight"),
        own_head=False,
    ),
    "bailingmoe3": Species(
        "bailingmoe3",
        {**_MLA, **_KDA, **_DENSE_LEAD, "kda.safe_gate": True, "attention.head_count_kv": [0, 0, 0, 1, 1]},
        1,
        own_head=False,
    ),
    **{f"{name}-{heads}": _chained(name, heads) for name in ("step35", "mimo2", "hy_v3") for heads in (1, 3)},
}
"""Trunks with NextN blocks behind them."""

PLAIN: dict[str, Species] = {
    **{name: Species(name, {}) for name in ("llama", "qwen3", "nanbeige", "hunyuan-dense")},
    "nanbeige-loops": Species("nanbeige", {"num_loops": 2, "skip_loop_final_norm": True}),
    # As converted before llama.cpp had MLA: a whole head for every head of the queries.
    "deepseek2-legacy": Species(
        "deepseek2",
        {
            **_DENSE_LEAD,
            "attention.key_length": 96,
            "attention.kv_lora_rank": 32,
            "attention.q_lora_rank": 24,
        },
        optional=_blocks(range(1, LAYERS), "exp_probs_b.bias"),
    ),
    "hunyuan_vl": Species("hunyuan_vl", {"rope.dimension_sections": [6, 5, 5, 0]}),
    "qwen3moe": Species("qwen3moe", _MOE),
    "minimax-m2": Species("minimax-m2", {**_MOE, **_SIGMOID, "rope.dimension_count": 16}),
    "lfm2": Species("lfm2", {"shortconv.l_cache": 3, **_ONE_ATTENDS}),
    "lfm2moe": Species(
        "lfm2moe",
        {**_MOE, **_SIGMOID, **_ONE_ATTENDS, "shortconv.l_cache": 3, "leading_dense_block_count": 1},
    ),
    "minimax-01": Species(
        "minimax-01",
        {**_MOE, "residual_scale": 1.0, "full_attention_interval": 2},
        optional=_blocks(range(LAYERS), "ffn_gate_exps.weight"),
    ),
    "muse-glimmer": Species(
        "muse-glimmer", {**_WINDOW, "logit_scale": 1.0, "attention.sliding_window_pattern": _pattern("wwwf")}
    ),
    "gpt-oss": Species("gpt-oss", {**_MOE, **_WINDOW, "attention.sliding_window_pattern": _pattern("wfwf")}),
    "nemotron_h": Species(
        "nemotron_h",
        {**_NEMOTRON, **_ONE_ATTENDS, "feed_forward_length": [0, 64, 0, 0]},
        optional=_blocks((0, 3), "ssm_conv1d.bias"),
    ),
    "gemma4": Species(
        "gemma4",
        {
            **_WINDOW,
            "attention.sliding_window_pattern": _pattern("wwwf"),
            "embedding_length_per_layer_input": 0,
            "attention.key_length_swa": 32,
            "attention.value_length_swa": 32,
            "rope.dimension_count_swa": 32,
        },
    ),
    "qwen4exp": Species(
        "qwen4exp",
        {
            **_DELTA,
            **_MOE,
            **_SHARED_FFN,
            **_INDEXER,
            "hyper_connection.count": 4,
            "hyper_connection.low_rank": 8,
        },
    ),
    "glm5-next": Species(
        "glm5-next",
        {
            **_MLA,
            **_DENSE_LEAD,
            **_INDEXER,
            **_STREAMS,
            **_KDA,
            "hyper_connection.sinkhorn_iterations": 5,
            "attention.indexer.kpool": 4,
            "attention.head_count_kv": [0, 0, 1, 1],
            "attention.layer_norm_epsilon": 1e-6,
            "attention.key_length": 32,
            "attention.key_length_mla": 16,
            "rope.dimension_count": 0,
        },
    ),
    "kimi-k3": Species(
        "kimi-k3",
        {
            **_MLA,
            **_DENSE_LEAD,
            **_KDA,
            "attention.head_count_kv": [0, 0, 1, 0],
            "attn_res.block_size": 2,
            "activation.situ_beta": 1.0,
            "activation.situ_linear_beta": 1.0,
        },
    ),
    "kimi-linear": Species(
        "kimi-linear",
        {
            **_MLA,
            **_DENSE_LEAD,
            **_KDA,
            "attention.head_count_kv": [0, 0, 1, 0],
            "attention.q_lora_rank": 0,
        },
    ),
    "granitehybrid": Species(
        "granitehybrid",
        {
            **_SSM,
            **_MOE,
            **_ONE_ATTENDS,
            "ssm.inner_size": 2 * WIDTH,
            "attention.scale": 0.2,
            "embedding_scale": 1.0,
            "residual_scale": 1.0,
            "logit_scale": 1.0,
        },
        optional=_blocks((0, 1, 3), "ssm_conv1d.bias"),
    ),
    "falcon-h1": Species("falcon-h1", _SSM, optional=_blocks(range(LAYERS), "ssm_conv1d.bias")),
    "mamba2": Species("mamba2", {**_SSM, "ssm.inner_size": 2 * WIDTH, "attention.head_count": 0}),
    "rwkv7": Species(
        "rwkv7",
        {
            "wkv.head_size": 64,
            "attention.decay_lora_rank": 8,
            "attention.iclr_lora_rank": 8,
            "attention.value_residual_mix_lora_rank": 8,
            "attention.gate_lora_rank": 8,
            "attention.layer_norm_epsilon": 1e-6,
            "attention.head_count": 0,
        },
    ),
    "minimax-m3": Species(
        "minimax-m3",
        {
            **_DENSE_LEAD,
            "attention.indexer.head_count": 2,
            "attention.indexer.key_length": 64,
            "attention.indexer.top_k": 2,
            "attention.indexer.block_size": 16,
            "attention.indexer.local_blocks": 1,
        },
    ),
    "hy_v4": Species(
        "hy_v4",
        {
            **_MLA,
            **_DENSE_LEAD,
            **_INDEXER,
            **_STREAMS,
            "hyper_connection.magnitude": 1.0,
            "attention.indexer.types": [True, False, True, False],
        },
    ),
    "dots3note": Species(
        "dots3note",
        {
            **_MLA,
            **_DENSE_LEAD,
            **_INDEXER,
            **_WINDOW,
            "attention.kv_lora_rank_swa": 32,
            "attention.key_length_mla_swa": 48,
            "attention.value_length_mla_swa": 24,
            "attention.key_length_swa": 64,
            "attention.value_length_swa": 32,
            "rope.freq_base_swa": 10000.0,
            "attention.sliding_window_pattern": _pattern("wfwf"),
            "attention.indexer.types": [False, True, False, True],
        },
    ),
}
"""Whole models without NextN: targets of EAGLE-3, and the caches of their own kinds."""

ALL = {**NEXTN, **PLAIN}
