"""Summaries of a header: the number of blocks and the quantisation."""

from __future__ import annotations

import re
from collections import Counter

from gguf.constants import LlamaFileType

from ds4chat.models.gguf_file import Header

_EH_PROJ = re.compile(r"blk\.(\d{1,9})\.nextn\.eh_proj\.weight", re.ASCII)
_GUESSED = 1024
"""Flag in general.file_type: the converter guessed it."""


def nextn_layers(header: Header) -> int:
    """Numbers of NextN blocks that the file declares and contains."""
    blocks = header.own_integer("block_count") or 0
    nextn = header.own_integer("nextn_predict_layers") or 0
    if header.architecture == "gemma4-assistant":
        return nextn
    held = (_EH_PROJ.fullmatch(name) for name in header.tensors)
    return sum(blocks - nextn <= int(match[1]) < blocks for match in held if match)


def trunk_layers(header: Header) -> int:
    """Number of blocks without those of NextN."""
    blocks = header.own_integer("block_count") or 0
    nextn = header.own_integer("nextn_predict_layers") or 0
    # DeepSeek V4's metadata may count a block that is not in the file.
    return blocks if header.architecture == "deepseek4" and not nextn_layers(header) else blocks - nextn


def kv_heads(header: Header, count: int) -> list[int]:
    """Heads of keys and values of each of ``count`` blocks; as many as of queries if not given."""
    shared = header.own("attention.head_count_kv") in header.metadata
    return header.own_each("attention.head_count_kv" if shared else "attention.head_count", count, 0)


def dominant_type(header: Header) -> str:
    """The ggml type that most bytes of the tensors are stored in, "" without tensors."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        sizes[tensor.type.name] += tensor.n_bytes
    return sizes.most_common(1)[0][0] if sizes else ""


def file_type(header: Header) -> str:
    """The quantisation in ``general.file_type``, "Q4_K_M"; "" if there is none."""
    value = header.metadata.get("general.file_type")
    if not isinstance(value, int):
        return ""
    try:
        name = str(LlamaFileType(value & ~_GUESSED).name)
    except ValueError:
        return ""
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def quantisation(header: Header) -> str:
    """The name of the quantisation: the file's own, else the type of most of its bytes."""
    return file_type(header) or dominant_type(header)
