"""What llama.cpp can do with each architecture, as of commit 0c1e57098 (llama-cpp-python 0.3.36).

Names are values of ``general.architecture``. Sources: src/llama-arch.cpp (recurrent, hybrid, rollback,
diffusion), src/models/*.cpp (graphs with LLM_GRAPH_TYPE_DECODER_MTP; graphs that fill t_layer_inp).

All but NOT_RUN were run as tiny models on a CPU (tests/zoo): plain decoding; NextN inside the target and as a
support file at depths 1, 2, 4 and 8, with the counters worked out beforehand; EAGLE-3 likewise. Conversations
with cancelled and retried turns, and strict mode, were run on the targets of NextN.
"""

from __future__ import annotations

from typing import Literal

Rollback = Literal["kv", "bounded", "none"]

BOUNDED = frozenset(
    [
        "kimi-k3",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
        "deepseek4",
        "glm5-next",
        "nemotron_h",
        "nemotron_h_moe",
        "lfm2",
        "lfm2moe",
        "bailingmoe3",
    ]
)
"""Architectures with recurrent states of which llama.cpp keeps a copy for each of the last tokens."""

NO_ROLLBACK = frozenset(
    [
        "mamba",
        "mamba2",
        "rwkv6",
        "rwkv6qwen2",
        "rwkv7",
        "arwkv7",
        "jamba",
        "falcon-h1",
        "plamo2",
        "granitehybrid",
        "qwen3next",
        "kimi-linear",
        "minimax-01",
    ]
)
"""Architectures with recurrent states that cannot be rolled back."""

NEXTN_SINGLE = frozenset(
    [
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "deepseek2",
        "deepseek32",
        "deepseek4",
        "glm4moe",
        "glm-dsa",
        "cohere2moe",
        "nemotron_h_moe",
        "bailingmoe3",
    ]
)
"""Architectures whose NextN graph takes one block; with more it aborts the process."""

NEXTN_CHAINED = frozenset(["step35", "mimo2", "hy_v3"])
"""Architectures whose NextN blocks are run one after the other, one for each drafted position."""

NEXTN = NEXTN_SINGLE | NEXTN_CHAINED

EAGLE3_TARGETS = frozenset(
    [
        "bailingmoe3",
        "deepseek4",
        "gemma4",
        "hunyuan-dense",
        "hunyuan_vl",
        "lfm2",
        "lfm2moe",
        "llama",
        "mimo2",
        "minimax-01",
        "minimax-m2",
        "muse-glimmer",
        "nanbeige",
        "nemotron_h",
        "nemotron_h_moe",
        "gpt-oss",
        "qwen3",
        "qwen3moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
    ]
)
"""Architectures whose graph exposes the inputs of its layers, each a row as wide as the embeddings;
requesting them from any other aborts the process."""

EAGLE3_LAST_OUTPUT = frozenset(["mimo2", "nemotron_h", "nemotron_h_moe", "deepseek4"])
"""Of these, those that also expose their last layer's output, as the input of one more layer."""

NOT_RUN = frozenset(["mamba", "rwkv6", "rwkv6qwen2", "arwkv7", "jamba", "plamo2"])
"""Architectures with a recurrent state for which only lookup could draft, which is off."""

DIFFUSION = frozenset(["dream", "llada", "llada-moe", "rnd1"])

ENCODERS = frozenset(
    [
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "gemma-embedding",
        "llama-embed",
        "t5encoder",
    ]
)
"""Text in, one vector out."""

OTHER_OUTPUT = {
    "t5": "an encoder-decoder model",
    "wavtokenizer-dec": "a decoder of audio tokens",
    "qwen3tts": "a speech model",
    "pockettts": "a speech model",
    "controlvector": "a control vector",
    "imatrix": "an importance matrix",
}
"""Whole models that do not chat, by kind, and what they are."""


def rollback_of(architecture: str) -> Rollback:
    """How far the cache of this architecture can be cut back after rejected drafts.

    "kv": to any length; "bounded": by tokens of the last batch only, as many as were asked for when the
    context was made; "none": not at all.
    """
    if architecture in BOUNDED:
        return "bounded"
    return "none" if architecture in NO_ROLLBACK else "kv"
