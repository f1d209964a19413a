"""Tensors of the constructed models, and the file they go into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from tiny import chain, vocab
from tiny.vocab import Variant

Floats = NDArray[np.float32]
Tensors = dict[str, NDArray[Any]]
"""Name -> numpy array; the GGUF shows shapes reversed: a (rows, columns) matrix is ggml {columns, rows}."""

GAIN = 2.0
"""Default height of the right logit: a one-hot row of width n has norm sqrt(n) after RMS norm, so for the
default width 64 the right logit is 8 * gain = 16 and all others are 0."""
TOKEN_WEIGHT = 0.4
HIDDEN_WEIGHT = 0.6
"""A NextN or EAGLE-3 head mixes its token's class with the successor of its hidden row's class. The hidden
row weighs more: a row from the wrong position gives a wrong draft, so acceptance counts prove the pairing."""


def zeros(*shape: int) -> Floats:
    """All zeros, numpy shape."""
    return np.zeros(shape, np.float32)


def ones(*shape: int) -> Floats:
    """All ones, numpy shape."""
    return np.ones(shape, np.float32)


def noise(rng: np.random.Generator, shape: Sequence[int]) -> Floats:
    """Random weights, scaled by the width of a row."""
    values: Floats = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    return values


def random_table(rng: np.random.Generator, width: int) -> Tensors:
    """Embedding and head of a random twin. Control tokens have no logit, so that no reply ends by chance."""
    head = noise(rng, (vocab.N_VOCAB, width))
    head[: vocab.FIRST_BYTE] = 0
    table = noise(rng, (vocab.N_VOCAB, width)) * np.float32(np.sqrt(width))
    return {"token_embd.weight": table, "output.weight": head}


def embedding(n_vocab: int, width: int = chain.N_CLASSES) -> Floats:
    """One-hot class embedding, (n_vocab, width)."""
    table = zeros(n_vocab, width)
    for token in range(n_vocab):
        table[token, chain.class_of(token)] = 1
    return table


def target_output(n_vocab: int, gain: float = GAIN, runner_ratio: float = 0.0) -> Floats:
    """The target's head, (n_vocab, 64): ``gain`` where the token follows the class.

    ``runner_ratio`` r > 0 gives the token that a wrong draft proposes r times the probability of the right
    one, after every word of the cycle.
    """
    head = zeros(n_vocab, chain.N_CLASSES)
    for class_, following in chain.successors().items():
        head[following, class_] = gain
    if runner_ratio > 0:
        for token in chain.CYCLE:
            logit = 8 * gain + np.log(runner_ratio)
            head[chain.wrong_token(token), chain.class_of(token)] = logit / 8
    return head


def draft_output(
    n_vocab: int, wrong_every: int, gain: float = GAIN, wrong_gain: float | None = None, *, head: int = 0
) -> Floats:
    """A drafter's head, (n_vocab, 64): tiny.chain.draft_token as a table.

    ``wrong_gain`` is the height where the drafter errs, so that its margin can tell (default: the same).
    ``head`` counts chained heads.
    """
    table = zeros(n_vocab, chain.N_CLASSES)
    table[chain.draft_token(vocab.BOS), chain.SHARED] = gain
    for token in range(vocab.N_VOCAB):
        class_ = chain.class_of(token)
        if class_ != chain.SHARED:
            wrong = chain.is_wrong(token, wrong_every, head)
            height = wrong_gain if wrong and wrong_gain is not None else gain
            table[chain.draft_token(token, wrong_every, head), class_] = height
    return table


def successor_matrix(wrong_every: int = 0) -> Floats:
    """Class of a token -> class of the next one as the drafter sees it, (64, 64): chain.successor_class."""
    matrix = zeros(chain.N_CLASSES, chain.N_CLASSES)
    for class_ in chain.successors():
        following = chain.successor_class(class_, wrong_every)
        if following is not None:
            matrix[following, class_] = 1
    return matrix


def mixing_matrix(wrong_every: int = 0) -> Floats:
    """``nextn.eh_proj`` of a constructed head, (64, 128): token half, then hidden half."""
    eye = np.eye(chain.N_CLASSES, dtype=np.float32)
    return np.hstack([TOKEN_WEIGHT * eye, HIDDEN_WEIGHT * successor_matrix(wrong_every)]).astype(np.float32)


def write(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    tensors: Tensors,
    *,
    name: str,
    variant: Variant | None = "standard",
    pre: str = "gpt-2",
    prefix: str | None = None,
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
    raw_types: Mapping[str, GGMLQuantizationType] | None = None,
) -> None:
    """Write a GGUF. Keys get ``prefix`` (the architecture's by default); ``variant`` None: no tokenizer,
    or the one that ``tokenizer`` writes.

    ``raw_types`` stores some tensors quantised; those whose rows are no whole number of blocks, and
    vectors, stay F32.
    """
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(name)
    for key, value in metadata.items():
        add_value(writer, f"{prefix or arch}.{key}", value)
    if variant is not None:
        vocab.add_tokenizer(writer, variant, pre)
    elif tokenizer is not None:
        tokenizer(writer)
    for tensor_name, values in tensors.items():
        kind = (raw_types or {}).get(tensor_name, GGMLQuantizationType.F32)
        quantised = kind is not GGMLQuantizationType.F32 and values.ndim > 1
        if quantised and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            writer.add_tensor(tensor_name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Write a key with the type that its Python value has; None is left out."""
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))
