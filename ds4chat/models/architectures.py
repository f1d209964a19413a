"""What llama.cpp can do with each architecture, as of commit 0c1e57098 (llama-cpp-python 0.3.36).

Names are values of ``general.architecture``. Sources: src/llama-arch.cpp (recurrent, hybrid, rollback,
diffusion), src/models/*.cpp (graphs with LLM_GRAPH_TYPE_DECODER_MTP; graphs that fill t_layer_inp).

Nearly all were run as tiny models on a CPU (tests/zoo, which names the exceptions): plain decoding; NextN
inside the target and as a support file at depths 1, 2, 4 and 8, with the counters worked out beforehand;
EAGLE-3 likewise. Conversations with cancelled and retried turns, and strict mode, were run on the targets of
NextN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rollback = Literal["kv", "bounded", "none"]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What llama.cpp can do with an architecture."""

    rollback: Rollback = "kv"
    """How far the cache can be cut back after rejected drafts: "kv" to any length; "bounded" by tokens of the
    last batch only, as many as were asked for when the context was made; "none" not at all."""
    nextn: Literal["", "single", "chained"] = ""
    """Its NextN graph: "single" takes one block and aborts the process with more; "chained" runs the blocks
    one after the other, one for each drafted position."""
    eagle3: Literal["", "inputs", "inputs and output"] = ""
    """What its graph exposes for EAGLE-3: the inputs of its layers, each a row as wide as the embeddings, and
    perhaps the last layer's output, as the input of one more. Requesting more aborts the process."""


ABILITIES = {
    "arwkv7": Abilities("none"),
    "bailingmoe3": Abilities("bounded", nextn="single", eagle3="inputs"),
    "cohere2moe": Abilities(nextn="single"),
    "deepseek2": Abilities(nextn="single"),
    "deepseek32": Abilities(nextn="single"),
    "deepseek4": Abilities("bounded", nextn="single", eagle3="inputs and output"),
    "falcon-h1": Abilities("none"),
    "gemma4": Abilities(eagle3="inputs"),
    "glm-dsa": Abilities(nextn="single"),
    "glm4moe": Abilities(nextn="single"),
    "glm5-next": Abilities("bounded"),
    "gpt-oss": Abilities(eagle3="inputs"),
    "granitehybrid": Abilities("none"),
    "hunyuan-dense": Abilities(eagle3="inputs"),
    "hunyuan_vl": Abilities(eagle3="inputs"),
    "hy_v3": Abilities(nextn="chained"),
    "jamba": Abilities("none"),
    "kimi-k3": Abilities("bounded"),
    "kimi-linear": Abilities("none"),
    "lfm2": Abilities("bounded", eagle3="inputs"),
    "lfm2moe": Abilities("bounded", eagle3="inputs"),
    "llama": Abilities(eagle3="inputs"),
    "mamba": Abilities("none"),
    "mamba2": Abilities("none"),
    "mimo2": Abilities(nextn="chained", eagle3="inputs and output"),
    "minimax-01": Abilities("none", eagle3="inputs"),
    "minimax-m2": Abilities(eagle3="inputs"),
    "muse-glimmer": Abilities(eagle3="inputs"),
    "nanbeige": Abilities(eagle3="inputs"),
    "nemotron_h": Abilities("bounded", eagle3="inputs and output"),
    "nemotron_h_moe": Abilities("bounded", nextn="single", eagle3="inputs and output"),
    "plamo2": Abilities("none"),
    "qwen3": Abilities(eagle3="inputs"),
    "qwen35": Abilities("bounded", nextn="single", eagle3="inputs"),
    "qwen35moe": Abilities("bounded", nextn="single", eagle3="inputs"),
    "qwen3moe": Abilities(eagle3="inputs"),
    "qwen3next": Abilities("none", nextn="single", eagle3="inputs"),
    "qwen4exp": Abilities("bounded"),
    "rwkv6": Abilities("none"),
    "rwkv6qwen2": Abilities("none"),
    "rwkv7": Abilities("none"),
    "step35": Abilities(nextn="chained"),
}
"""Every architecture that can do more or less than draft by another model and by lookup."""


def abilities(architecture: str) -> Abilities:
    """What llama.cpp can do with this architecture."""
    return ABILITIES.get(architecture, Abilities())


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
