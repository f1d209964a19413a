"""GGUF files for these tests: whole ones through the gguf package, broken ones byte by byte."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType
from tiny.tensors import add_value

TOKENS = ["<unk>", "<s>", "</s>", "<pad>", "a", "b", "c", "d"]
WIDTH = 32

Dims = tuple[int, ...]


def block(i: int, *, width: int = WIDTH) -> dict[str, Dims]:
    """The tensors by which a trunk block is known."""
    return {f"blk.{i}.attn_norm.weight": (width,), f"blk.{i}.ffn_norm.weight": (width,)}


def nextn(i: int, *, width: int = WIDTH) -> dict[str, Dims]:
    """A NextN block, in ggml's order of dimensions."""
    p = f"blk.{i}."
    return {
        p + "attn_norm.weight": (width,),
        p + "attn_q.weight": (width, width),
        p + "nextn.eh_proj.weight": (2 * width, width),
        p + "nextn.enorm.weight": (width,),
        p + "nextn.hnorm.weight": (width,),
        p + "nextn.shared_head_norm.weight": (width,),
    }


def root(*, width: int = WIDTH, n_vocab: int = len(TOKENS)) -> dict[str, Dims]:
    """Embeddings and output."""
    return {
        "token_embd.weight": (width, n_vocab),
        "output_norm.weight": (width,),
        "output.weight": (width, n_vocab),
    }


def write(
    path: Path,
    architecture: str = "llama",
    *,
    tensors: Mapping[str, Dims | np.ndarray],
    own: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
    tokens: Sequence[str] | None = TOKENS,
    types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """A GGUF made by the gguf package. ``own`` keys get the architecture's prefix; a value of None leaves a
    default key out. ``tensors`` are zeros of ggml dimensions, or arrays."""
    writer = gguf.GGUFWriter(path, architecture)
    defaults: dict[str, Any] = {"block_count": 2, "embedding_length": WIDTH, "context_length": 256}
    defaults |= _ALWAYS.get(architecture, {})
    for key, value in (defaults | dict(own or {})).items():
        add_value(writer, f"{architecture}.{key}", value)
    vocabulary = {}
    if tokens is not None:
        vocabulary = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": list(tokens),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    for key, value in (vocabulary | dict(keys or {})).items():
        add_value(writer, key, value)
    for name, given in tensors.items():
        values = given if isinstance(given, np.ndarray) else np.zeros(given[::-1], np.float32)
        kind = (types or {}).get(name)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
            packed = np.zeros((*values.shape[:-1], values.shape[-1] // size * n_bytes), np.uint8)
            writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_ALWAYS: dict[str, dict[str, Any]] = {
    "deepseek4": {"attention.head_count_kv": 1},
    "bailingmoe3": {"attention.head_count_kv": [0, 1]},
    "nemotron_h_moe": {"attention.head_count_kv": [0, 1]},
    **{name: {"full_attention_interval": 2} for name in ("qwen35", "qwen35moe", "qwen3next")},
}
"""What a file of an architecture must say for ds4chat to let it pass, whatever else is wrong with it."""


def whole(path: Path, architecture: str = "llama", n_layer: int = 2, **more: Any) -> Path:
    """A whole model of ``n_layer`` blocks; ``tensors`` adds to or replaces its tensors."""
    tensors: dict[str, Any] = root()
    for i in range(n_layer):
        tensors |= block(i)
    own = {"block_count": n_layer} | more.pop("own", {})
    return write(path, architecture, tensors=tensors | more.pop("tensors", {}), own=own, **more)


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Within: allocations are traced. The function gives their peak in bytes, also after."""
    peak = 0
    tracemalloc.start()
    try:
        yield lambda: peak
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


# -- byte by byte


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, body: bytes) -> bytes:
    """A key with its value."""
    return text(key) + struct.pack("<I", kind) + body


def string_pair(key: str, value: str) -> bytes:
    """A key with a string."""
    return pair(key, GGUFValueType.STRING, text(value))


def array(kind: int, length: int, body: bytes = b"") -> bytes:
    """An array's value."""
    return struct.pack("<IQ", kind, length) + body


def tensor(name: str, dims: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """An entry of the tensor directory."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def raw(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    """A whole file, its counts as given or right."""
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(pairs) if n_pairs is None else n_pairs,
    )
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return head + (bytes(-len(head) % 32) + data if tensors else b"")
