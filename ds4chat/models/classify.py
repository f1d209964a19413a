"""What a GGUF is: a whole model, one of the kinds of support file, or something that is no chat model."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

from gguf.constants import LlamaFileType

from ds4chat.models import architectures
from ds4chat.models.gguf_file import Header

Kind = Literal[
    "target",
    "nextn-embedded",
    "nextn-support",
    "ds4-support",
    "eagle3",
    "gemma4-assistant",
    "dflash",
    "dspark",
    "embedding",
    "diffusion",
    "mmproj",
    "lora",
    "other",
]
"""Of one file by itself. "target": a whole model (beside a larger one it can be a draft model);
"nextn-embedded": a whole model with NextN blocks inside."""

_NEXTN_TENSOR = re.compile(r"(?:blk\.\d+\.)?nextn\.")
_EH_PROJ = re.compile(r"blk\.(\d{1,9})\.nextn\.eh_proj\.weight", re.ASCII)
_FIRST_BLOCK = "blk.0.attn_norm.weight"
"""llama.cpp takes a file with NextN blocks and without this tensor for the blocks alone (``mtp_only``)."""

_GUESSED = 1024
"""Flag in general.file_type: the converter guessed it."""

DESCRIPTIONS: dict[Kind, str] = {
    "target": "a whole model",
    "nextn-embedded": "a whole model with a NextN block inside",
    "nextn-support": "a NextN support model, the NextN block alone",
    "ds4-support": "an MTP support file in the layout of ds4",
    "eagle3": "an EAGLE-3 support model",
    "gemma4-assistant": "a Gemma 4 assistant, which drafts for a Gemma 4 model",
    "dflash": "a DFlash drafter",
    "dspark": "a DSpark drafter",
    "embedding": "an embedding or reranking model, which writes no text",
    "diffusion": "a diffusion model, which does not write token by token",
    "mmproj": "a projector of images or audio for another model",
    "lora": "a LoRA adapter for another model",
    "other": "no chat model",
}


def classify(header: Header) -> Kind:
    """The kind of a file, from its architecture, its type and the names of its tensors."""
    architecture = header.architecture
    by_type = _by_type(header)
    if by_type:
        return by_type
    if architecture == "deepseek4_mtp_support":
        return "dspark" if _is_dspark(header) else "ds4-support"
    if architecture == "dflash":
        return "dspark" if _is_dspark(header) else "dflash"
    if "dspark" in architecture or _is_dspark(header):
        return "dspark"
    if architecture == "eagle3":
        return "eagle3"
    if architecture == "gemma4-assistant":
        return "gemma4-assistant"
    if architecture in architectures.ENCODERS or _pools(header):
        return "embedding"
    if architecture in architectures.DIFFUSION:
        return "diffusion"
    if any(_NEXTN_TENSOR.match(name) for name in header.tensors):
        return "nextn-embedded" if _FIRST_BLOCK in header.tensors else "nextn-support"
    whole = "token_embd.weight" in header.tensors and any(n.startswith("blk.0.") for n in header.tensors)
    return "target" if whole else "other"


def describe(header: Header) -> str:
    """The kind of a file in words: "an EAGLE-3 support model"."""
    kind = classify(header)
    if kind == "other":
        return architectures.OTHER_OUTPUT.get(header.architecture, DESCRIPTIONS["other"])
    return DESCRIPTIONS[kind]


def nextn_layers(header: Header) -> int:
    """NextN blocks that the file declares and holds."""
    blocks = header.own_integer("block_count") or 0
    nextn = header.own_integer("nextn_predict_layers") or 0
    if header.architecture == "gemma4-assistant":
        return nextn
    held = (_EH_PROJ.fullmatch(name) for name in header.tensors)
    return sum(blocks - nextn <= int(match[1]) < blocks for match in held if match)


def trunk_layers(header: Header) -> int:
    """Blocks without those of NextN."""
    blocks = header.own_integer("block_count") or 0
    nextn = header.own_integer("nextn_predict_layers") or 0
    # DeepSeek V4 counts the blocks anew where the metadata promises one that is not there.
    return blocks if header.architecture == "deepseek4" and not nextn_layers(header) else blocks - nextn


def dominant_type(header: Header) -> str:
    """The ggml type that most bytes of the tensors are stored in, "" without tensors."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        sizes[tensor.type.name] += tensor.n_bytes
    return sizes.most_common(1)[0][0] if sizes else ""


def file_type(header: Header) -> str:
    """The quantisation that ``general.file_type`` names, "Q4_K_M"; "" where it names none."""
    value = header.metadata.get("general.file_type")
    if not isinstance(value, int):
        return ""
    try:
        name = str(LlamaFileType(value & ~_GUESSED).name)
    except ValueError:
        return ""
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def quantisation(header: Header) -> str:
    """The quantisation by its usual name: what the file says it is, else the type of most of its bytes."""
    return file_type(header) or dominant_type(header)


def _by_type(header: Header) -> Kind | None:
    """Kinds that ``general.type`` or the architecture names outright."""
    general_type = header.text("general.type")
    if general_type == "adapter":
        return "lora"
    if general_type == "mmproj" or header.architecture == "clip":
        return "mmproj"
    if header.architecture in architectures.OTHER_OUTPUT or general_type in ("imatrix", "vocab"):
        return "other"
    return None


def _is_dspark(header: Header) -> bool:
    """DSpark has a Markov head, or several stages of ds4's layout."""
    return any("markov" in name or name.startswith("mtp.1.") for name in header.tensors)


def _pools(header: Header) -> bool:
    """The model makes one vector of a text: it pools its rows, or each token sees those after it."""
    pooling = header.own_integer("pooling_type") if header.architecture else None
    return bool(pooling) or header.flag(header.own("attention.causal")) is False
