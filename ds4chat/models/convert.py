"""Conversion of ds4's MTP support file for llama.cpp: the same values under other names.

ds4 keeps the NextN block of DeepSeek V4 as tensors ``mtp.0.*`` and nothing else. llama.cpp wants block N of a
``deepseek4`` file, with the trunk's metadata and tokenizer, embeddings and output beside it, the two input
projections in one matrix, and the block's own hyper-connection head at the root (src/models/deepseek4.cpp).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gguf.constants import GGUFValueType

from ds4chat.models.errors import ModelFileError
from ds4chat.models.fit import check_checkpoint, misfit, times
from ds4chat.models.gguf_file import ArrayInfo, Header, TensorInfo, read_header, read_range
from ds4chat.models.gguf_write import OnProgress, OutTensor, array_value, text_value, uint32_value, write_gguf
from ds4chat.models.kinds import describe, kind_of
from ds4chat.models.pairing import check_target
from ds4chat.models.summary import nextn_layers
from ds4chat.text import one_line, shortened

ARCHITECTURE = "deepseek4"
_PREFIX = "mtp.0."
_VERSION = 1
"""Version of the conversion: part of a converted file's name in the cache, so that a change creates a new
one."""

_ROOT = ("token_embd.weight", "output_norm.weight", "output.weight")
HEAD = ("hc_head_fn.weight", "hc_head_base.weight", "hc_head_scale.weight")
NORMS = {
    "enorm.weight": "nextn.enorm.weight",
    "hnorm.weight": "nextn.hnorm.weight",
    "norm.weight": "nextn.shared_head_norm.weight",
}
BLOCK = (
    *(f"attn_{s}.weight" for s in ("norm", "sinks", "q_a", "q_a_norm", "q_b", "kv", "kv_a_norm")),
    *(f"attn_{s}.weight" for s in ("output_a", "output_b")),
    *(f"hc_{part}_{s}.weight" for part in ("attn", "ffn") for s in ("fn", "base", "scale")),
    *(f"ffn_{s}.weight" for s in ("norm", "gate_inp", "gate_exps", "up_exps", "down_exps")),
    *(f"ffn_{s}.weight" for s in ("gate_shexp", "up_shexp", "down_shexp")),
    "exp_probs_b.bias",
)
PROJECTIONS = ("e_proj.weight", "h_proj.weight")
_RESHAPED = "attn_output_a.weight"
"""llama.cpp accepts this tensor in two or three dimensions."""

_NOT_COPIED = frozenset(
    [f"{ARCHITECTURE}.{key}" for key in ("block_count", "nextn_predict_layers", "mtp_layer_count")]
    + [f"{ARCHITECTURE}.embedding_length_out"]
    + [f"general.{key}" for key in ("architecture", "name", "alignment", "file_type", "size_label")]
)
"""Keys that are rewritten, or apply only to the whole model."""
_PREFIXES_NOT_COPIED = ("split.", "quantize.")
_NOT_PER_LAYER = f"{ARCHITECTURE}.rope.dimension_sections"
_RATIOS = f"{ARCHITECTURE}.attention.compress_ratios"


def convert_mtp(
    main: str | os.PathLike[str],
    support: str | os.PathLike[str],
    out: str | os.PathLike[str],
    progress: OnProgress = lambda done, total: None,
    *,
    force: bool = False,
) -> None:
    """Write ``out``: the support file in llama.cpp's layout, with what it needs of the ``main`` model.

    Lossless, as a stream of small pieces; ``out`` appears whole or not at all. Raises ModelFileError when the
    files do not belong together or ``out`` cannot be written.
    """
    target, source = check_target(main), read_header(support)
    block = _check(target, source)
    _refuse_overwriting(Path(out), target, source)
    write_gguf(
        Path(out), _metadata(target, source, block), _tensors(target, source, block), progress, force=force
    )


def converted_path(
    main: str | os.PathLike[str], support: str | os.PathLike[str], cache_dir: str | os.PathLike[str]
) -> Path:
    """The path in ``cache_dir`` for the conversion of these two files: the same as long as neither changes.
    Raises ModelFileError when one of them is missing."""
    digest = hashlib.sha256(f"convert-mtp {_VERSION}".encode())
    for path in (Path(main), Path(support)):
        try:
            status = path.stat()
            identity = f"\0{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
        except (OSError, ValueError):
            raise ModelFileError(f"{one_line(path)} cannot be read. Give the path of a .gguf file.") from None
        digest.update(identity.encode("utf-8", "surrogateescape"))
    return Path(cache_dir) / f"{Path(support).stem[:80]}-{digest.hexdigest()[:16]}.gguf"


# -- checks


def _check(target: Header, source: Header) -> int:
    """Number of the block that the support file becomes. Raises ModelFileError if the two do not fit."""
    name = one_line(source.path)
    kind = kind_of(source)
    if kind.drafts == "nextn-support":
        raise ModelFileError(f"{name} is in llama.cpp's layout already. Give it with --mtp as it is.")
    if not kind.converts:
        raise ModelFileError(f"{name} is {describe(source)}, not an MTP support file of ds4. Give that file.")
    if target.architecture != ARCHITECTURE:
        theirs = shortened(target.architecture)
        misfit(source, target, f"the model's architecture is {theirs}, not {ARCHITECTURE}")
    if nextn_layers(target):
        raise ModelFileError(
            f"{one_line(target.path)} has a NextN block inside already. Use --mtp without a file."
        )
    check_checkpoint(target, source)
    for key in ("mtp_layer_count", "nextn_predict_layers"):
        if (source.integer(f"{ARCHITECTURE}.{key}") or 1) != 1:
            raise ModelFileError(f"{name} has several MTP blocks, and llama.cpp runs one. Give another file.")
    experts = [h.integer(f"{ARCHITECTURE}.expert_count") for h in (target, source)]
    if experts[1] is not None and experts[0] != experts[1]:
        misfit(source, target, f"it routes among {experts[1]} experts, the model among {experts[0]}")
    block = _trunk(target)
    _check_tensors(target, source, block)
    return block


def _trunk(target: Header) -> int:
    """Blocks of the model, counted by its tensors."""
    blocks = target.own_integer("block_count") or 0
    held = 0
    while held < blocks and f"blk.{held}.attn_norm.weight" in target.tensors:
        held += 1
    missing = [name for name in _ROOT if name not in target.tensors]
    ratios = target.metadata.get(_RATIOS)
    if not isinstance(ratios, ArrayInfo) or ratios.length < held:
        missing.append(_RATIOS)
    if missing or held < blocks - (target.own_integer("nextn_predict_layers") or 0):
        target.incomplete(f"it lacks {missing[0] if missing else f'blk.{held}.attn_norm.weight'}")
    return held


def _check_tensors(target: Header, source: Header, block: int) -> None:
    """Check that exactly the tensors that llama.cpp needs are there, in the shapes that the model
    requires."""
    width = target.own_integer("embedding_length") or 0
    streams = target.own_integer("hyper_connection.count") or 0
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(PROJECTIONS, (width, width))
    shapes |= dict.fromkeys(NORMS, (width,))
    shapes |= dict(zip(HEAD, ((streams * width, streams), (streams,), (1,)), strict=True))
    known = [*PROJECTIONS, *NORMS, *HEAD, *BLOCK]
    name = one_line(source.path)
    for stem in known:
        tensor = source.tensors.get(_PREFIX + stem)
        if tensor is None:
            source.incomplete(f"it lacks the tensor {_PREFIX}{stem}")
        trunk = target.tensors.get(f"blk.{block - 1}.{stem}")
        expected = shapes.get(stem) or (trunk.dims if trunk else None)
        fits = expected is None or tensor.dims == expected
        if stem == _RESHAPED and trunk:
            fits = tensor.n_elements == trunk.n_elements
        if not fits:
            sizes = f"{times(tensor.dims)}, the model asks for {times(expected or ())}"
            misfit(source, target, f"its tensor {_PREFIX}{stem} is {sizes}")
    unknown = source.tensors.keys() - {_PREFIX + stem for stem in known}
    if unknown:
        raise ModelFileError(
            f"{name} has the tensor {shortened(min(unknown))}, which has no place in llama.cpp's layout. "
            "Give the support file of DeepSeek V4 Flash as it was published."
        )
    e_proj, h_proj = (source.tensors[_PREFIX + stem] for stem in PROJECTIONS)
    if e_proj.type != h_proj.type:
        raise ModelFileError(
            f"{name} stores e_proj in {e_proj.type.name} and h_proj in {h_proj.type.name}; llama.cpp wants "
            "both in one matrix, so they must be alike. Give a file where they are."
        )


def _refuse_overwriting(out: Path, *inputs: Header) -> None:
    for header in inputs:
        if any(out.exists() and out.samefile(part.path) for part in header.parts):
            raise ModelFileError(f"{one_line(out)} is one of the files to read. Give another name.")


# -- what is written


def _metadata(target: Header, source: Header, block: int) -> list[bytes]:
    """Encoded keys with their values: copies of the model's, except for those that count layers."""
    pairs = [text_value("general.architecture", ARCHITECTURE)]
    name = target.text("general.name")
    if name:
        pairs.append(text_value("general.name", f"{name} NextN"))
    for key, value in target.metadata.items():
        if key in _NOT_COPIED or key.startswith(_PREFIXES_NOT_COPIED):
            continue
        if isinstance(value, ArrayInfo) and _is_per_layer(key, value, block):
            pairs.append(array_value(key, value.type, _extended(target, key, block)))
            continue
        start, end = target.spans[key]
        pairs.append(b"".join(read_range(target.path, start, end - start)))
    for key in ("deepseek4.checkpoint_variant", "general.source.revision"):
        if key not in target.metadata and source.text(key):
            pairs.append(text_value(key, source.text(key)))
    width, streams = target.own_integer("embedding_length"), target.own_integer("hyper_connection.count")
    counts = {
        "block_count": block + 1,
        "nextn_predict_layers": 1,
        "embedding_length_out": (width or 0) * (streams or 1),
    }
    return pairs + [uint32_value(f"{ARCHITECTURE}.{key}", count) for key, count in counts.items()]


def _is_per_layer(key: str, value: ArrayInfo, block: int) -> bool:
    return (
        key.startswith(f"{ARCHITECTURE}.")
        and key != _NOT_PER_LAYER
        and value.type is not GGUFValueType.STRING
        and value.length >= block
    )


def _extended(target: Header, key: str, block: int) -> list[int] | list[float]:
    """The model's values for its layers and one for the new block, that of the last layer; the block attends
    without compression."""
    values = [v for v in target.array(key) or () if not isinstance(v, bytes)][:block]
    last = 0 if key == _RATIOS else values[-1]
    return [*values, last]


def _tensors(target: Header, source: Header, block: int) -> list[OutTensor]:
    tensors = [_copy(target, target.tensors[name], name) for name in _ROOT]
    for stem in HEAD:
        tensors.append(_copy(source, source.tensors[_PREFIX + stem], stem.replace("hc_head_", "output_hc_")))
    tensors.append(_fused(source, f"blk.{block}.nextn.eh_proj.weight"))
    for old, new in (NORMS | {stem: stem for stem in BLOCK}).items():
        tensors.append(_copy(source, source.tensors[_PREFIX + old], f"blk.{block}.{new}"))
    return tensors


def _copy(header: Header, tensor: TensorInfo, name: str) -> OutTensor:
    """The tensor's unchanged bytes under another name."""
    return OutTensor(name, tensor.dims, tensor.type, tensor.n_bytes, partial(header.tensor_chunks, tensor))


def _fused(source: Header, name: str) -> OutTensor:
    """eh_proj: each of its rows is e_proj's row, then h_proj's. Both rows are whole numbers of quantisation
    blocks, so they are put together as bytes."""
    halves = [source.tensors[_PREFIX + stem] for stem in PROJECTIONS]
    width = halves[0].dims[0]
    return OutTensor(
        name,
        (2 * width, halves[0].dims[1]),
        halves[0].type,
        2 * halves[0].n_bytes,
        partial(_fused_rows, source, halves),
    )


def _fused_rows(source: Header, halves: list[TensorInfo]) -> Iterator[bytes]:
    row, rows = halves[0].row_bytes, halves[0].dims[1]
    step = max(1, (1 << 20) // (2 * row))
    for first in range(0, rows, step):
        n = min(step, rows - first)
        e, h = (b"".join(source.tensor_chunks(half, first * row, n * row)) for half in halves)
        yield b"".join(part[i * row : (i + 1) * row] for i in range(n) for part in (e, h))
