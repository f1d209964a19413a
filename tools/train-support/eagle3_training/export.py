"""The trained head on disk: head.npz while training, and the GGUF that llama.cpp loads as ``eagle3``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant
from numpy.typing import NDArray
from torch import Tensor

from eagle3_training.errors import TrainingError
from eagle3_training.head import Head, HeadConfig, weight_shapes
from eagle3_training.target import LlamaShape, Target, dequantised, field, open_gguf, read_shape

ARCH = "eagle3"
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}
"""llama.cpp's general.file_type of each quantisation offered."""

Weights = dict[str, NDArray[Any]]

# GGUF name -> our weight, and the rows of it where ours stacks several.
NORM_TENSORS = {
    "output_norm.weight": "output_norm",
    "blk.0.attn_norm.weight": "token_norm",
    "blk.0.attn_norm_2.weight": "feature_norm",
    "blk.0.ffn_norm.weight": "ffn_norm",
}


def matrix_tensors(shape: LlamaShape, n_ff: int) -> dict[str, tuple[str, slice]]:
    """GGUF name -> (our weight, its rows) of every matrix but fc."""
    q = shape.n_head * shape.head_dim
    kv = shape.n_head_kv * shape.head_dim
    return {
        "output.weight": ("output", slice(None)),
        "blk.0.attn_q.weight": ("qkv", slice(0, q)),
        "blk.0.attn_k.weight": ("qkv", slice(q, q + kv)),
        "blk.0.attn_v.weight": ("qkv", slice(q + kv, q + 2 * kv)),
        "blk.0.attn_output.weight": ("attn_output", slice(None)),
        "blk.0.ffn_gate.weight": ("gate_up", slice(0, n_ff)),
        "blk.0.ffn_up.weight": ("gate_up", slice(n_ff, 2 * n_ff)),
        "blk.0.ffn_down.weight": ("down", slice(None)),
    }


def save_head(head: Head, path: Path) -> None:
    """Write the head's weights, its vocabulary and its layers; the scale of the inputs goes into fc."""
    weights = {name: p.detach() for name, p in head.named_parameters()}
    weights["fc"] = weights["fc"] * head.input_scale
    arrays: Weights = {name: w.float().cpu().numpy() for name, w in weights.items()}
    partial = path.with_suffix(".partial.npz")
    arrays["vocabulary"] = head.vocabulary.cpu().numpy()
    arrays["layers"] = np.array(head.config.layers)
    np.savez(partial, allow_pickle=False, **arrays)
    partial.replace(path)


def load_weights(path: Path) -> Weights:
    """What save_head wrote. Raises TrainingError."""
    try:
        with np.load(path) as file:
            return dict(file)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} is not a trained head: {error}. Run the step 'train' first.") from None


def write_gguf(
    weights: Weights, target_path: Path, out: Path, *, quantisation: str, name: str, licence: str = ""
) -> None:
    """Write the head as a GGUF with the target's tokenizer.

    weights: as load_weights gives them. Norms stay F32; fc stays F16 (F32 in an F32 file), because its inputs
    differ in size by orders of magnitude. d2t holds absolute target ids in int64, as llama.cpp reads it.
    Raises TrainingError when the weights do not fit the target or a row does not divide into blocks.
    """
    reader = open_gguf(target_path)
    shape = read_shape(reader)
    config = HeadConfig(
        shape, tuple(weights["layers"].tolist()), weights["down"].shape[1], len(weights["vocabulary"])
    )
    for key, wanted in weight_shapes(config).items():
        if weights[key].shape != wanted:
            raise TrainingError(f"The head's {key} is {weights[key].shape}, this target wants {wanted}.")
    quant = Quant[quantisation]
    partial = out.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, ARCH)
    _add_metadata(writer, config, quantisation, name, licence)
    _add_tokenizer(writer, reader)
    fc_type = Quant.F32 if quantisation == "F32" else Quant.F16
    _add_matrix(writer, "fc.weight", weights["fc"], fc_type)
    for tensor, key in NORM_TENSORS.items():
        writer.add_tensor(tensor, weights[key].astype(np.float32))
    for tensor, (key, rows) in matrix_tensors(shape, config.n_ff).items():
        _add_matrix(writer, tensor, weights[key][rows], quant)
    writer.add_tensor("d2t", weights["vocabulary"].astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(out)


def _add_metadata(
    writer: gguf.GGUFWriter, config: HeadConfig, quantisation: str, name: str, licence: str
) -> None:
    s = config.target
    writer.add_name(name)
    writer.add_type("model")
    writer.add_description("EAGLE-3 draft head, trained on its target's own outputs")
    if licence:
        writer.add_license(licence)
    writer.add_block_count(1)
    writer.add_context_length(s.n_ctx)
    writer.add_embedding_length(s.n_embd)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    if s.head_dim * s.n_head != s.n_embd:
        writer.add_key_length(s.head_dim)
        writer.add_value_length(s.head_dim)
    writer.add_layer_norm_rms_eps(s.rms_eps)
    writer.add_rope_freq_base(s.rope_base)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_vocab_size(s.n_vocab)
    writer.add_file_type(FILE_TYPES[quantisation])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_array(f"{ARCH}.target_layers", list(config.layers))
    writer.add_uint32(f"{ARCH}.target_hidden_size", s.n_embd)
    writer.add_bool(f"{ARCH}.norm_before_residual", True)
    writer.add_bool(f"{ARCH}.norm_before_fc", False)


def _add_tokenizer(writer: gguf.GGUFWriter, reader: Any) -> None:
    """Copy every tokenizer key of the target, types included."""
    for key, entry in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        element = entry.types[1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, entry.contents(), entry.types[0], element)


def _add_matrix(writer: gguf.GGUFWriter, name: str, values: NDArray[Any], quant: Quant) -> None:
    values = np.ascontiguousarray(values, np.float32)
    if quant == Quant.F32:
        writer.add_tensor(name, values)
    elif quant == Quant.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        block = gguf.GGML_QUANT_SIZES[quant][0]
        if values.shape[-1] % block:
            raise TrainingError(
                f"{name} has rows of {values.shape[-1]} values, which {quant.name} cannot hold in blocks of "
                f"{block}. Export with --type F16."
            )
        writer.add_tensor(name, gguf.quants.quantize(values, quant), raw_dtype=quant)


def read_head(path: Path, target: Target) -> Head:
    """The head in an ``eagle3`` GGUF, dequantised. Raises TrainingError when it is none for this target."""
    reader = open_gguf(path)
    if field(reader, "general.architecture") != ARCH:
        raise TrainingError(f"{path} is not an EAGLE-3 head.")
    tensors = dequantised(reader)
    n_ff = field(reader, f"{ARCH}.feed_forward_length")
    parts: dict[str, list[Tensor]] = {"fc": [tensors["fc.weight"]]}
    for tensor, (key, _) in matrix_tensors(target.shape, n_ff).items():
        parts.setdefault(key, []).append(tensors[tensor])
    for tensor, key in NORM_TENSORS.items():
        parts[key] = [tensors[tensor]]
    vocabulary = tensors["d2t"]
    config = HeadConfig(target.shape, tuple(field(reader, f"{ARCH}.target_layers")), n_ff, len(vocabulary))
    try:
        return Head(
            config,
            {key: torch.cat(values).to(target.device) for key, values in parts.items()},
            vocabulary.to(target.device),
            target,
        )
    except ValueError as error:
        raise TrainingError(f"{path} does not fit this target: {error}.") from None
