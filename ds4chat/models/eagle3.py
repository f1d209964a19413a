"""What an EAGLE-3 support model requires of its target (llama.cpp's src/models/eagle3.cpp)."""

from __future__ import annotations

import numpy as np

from ds4chat.models import fit, tokenizer
from ds4chat.models.architectures import abilities
from ds4chat.models.fit import Fit
from ds4chat.models.gguf_file import ArrayInfo, Header, TensorInfo
from ds4chat.models.requirements import size_of
from ds4chat.models.summary import trunk_layers
from ds4chat.text import shortened

N_FEATURES = 3
"""Layers of the target whose inputs the encoder takes."""

_MAX_MAP = 1 << 24
"""Bytes of the largest sane token map: two million tokens."""


def check(target: Header, support: Header) -> Fit:
    """Raises ModelFileError if the two do not belong together."""
    fit.check_vocabulary(target, support)
    reason = _reason(target, support)
    if reason:
        fit.misfit(support, target, reason)
    return Fit()


def _reason(target: Header, support: Header) -> str:
    """Why the two do not belong together, or ""."""
    if not abilities(target.architecture).eagle3:
        return (
            "it reads the inputs of the target's layers, which llama.cpp does not expose for the "
            f"architecture {shortened(target.architecture)}"
        )
    width = target.own_integer("embedding_length")
    made_for = support.own_integer("target_hidden_size")
    if made_for != width:
        return f"it was made for a target {made_for} wide, this one is {width} wide"
    return _layers(target, support) or _shape(support) or _tables(target, support)


def _layers(target: Header, support: Header) -> str:
    info = support.metadata.get(support.own("target_layers"))
    if not isinstance(info, ArrayInfo) or info.length != N_FEATURES:
        return f"its metadata does not name the {N_FEATURES} layers of the target that it reads"
    layers = support.integers(support.own("target_layers")) or []
    n_layer = trunk_layers(target) * (target.own_integer("num_loops") or 1)
    end = n_layer + (abilities(target.architecture).eagle3 == "inputs and output")
    if not all(0 <= layer < end for layer in layers):
        named = ", ".join(str(layer) for layer in layers)
        return f"it reads the inputs of the target's layers {named}, and the target has {n_layer} layers"
    return ""


def _shape(support: Header) -> str:
    if support.own_integer("block_count") != 1:
        return "it has more than the one block that llama.cpp runs"
    if not support.own_integer("attention.head_count"):
        return "it has no attention heads"
    if size_of(support, "attention.key_length") != size_of(support, "attention.value_length"):
        return "its attention keys and values differ in width, which llama.cpp does not run"
    return ""


def _tables(target: Header, support: Header) -> str:
    """Embeddings and output: its own, or the target's, which must then be as wide."""
    width = support.own_integer("embedding_length")
    vocabulary = tokenizer.vocabulary_size(target) or 0
    embeddings, output = support.tensors.get("token_embd.weight"), support.tensors.get("output.weight")
    token_map = support.tensors.get("d2t")
    if embeddings is None or output is None:
        table = "embeddings" if embeddings is None else "output"
        theirs = target.own_integer("embedding_length")
        if width != theirs:
            return f"it borrows the target's {table}, which are {theirs} wide, and is {width} wide itself"
    if embeddings is not None and (len(embeddings.dims) != 2 or embeddings.dims[1] < vocabulary):
        return "its embeddings do not cover the target's vocabulary"
    if token_map is None:
        return ""
    if token_map.type.name != "I64" or len(token_map.dims) != 1:
        return f"its token map d2t is stored as {token_map.type.name}, where llama.cpp asks for I64"
    rows = output.dims[1] if output is not None and len(output.dims) == 2 else vocabulary
    if token_map.dims[0] != rows:
        return f"its token map d2t has {token_map.dims[0]:,} entries for {rows:,} rows of output"
    return _mapped_ids(support, token_map, vocabulary)


def _mapped_ids(support: Header, token_map: TensorInfo, vocabulary: int) -> str:
    """d2t contains ids of the target; one outside its vocabulary would be written out of bounds."""
    if token_map.n_bytes > _MAX_MAP:
        return f"its token map d2t has {token_map.dims[0]:,} entries"
    ids = np.frombuffer(b"".join(support.tensor_chunks(token_map)), "<i8")
    if ids.size and not 0 <= ids.min() <= ids.max() < vocabulary:
        return "its token map d2t names tokens that the target does not have"
    return ""
