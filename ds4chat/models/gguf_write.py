"""Writing a GGUF as a stream: a header made in memory, then tensors copied piece by piece, atomically."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUF_MAGIC, GGUF_VERSION, GGUFValueType

from ds4chat.files import whole_file
from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.gguf_file import TensorType
from ds4chat.text import one_line

OnProgress = Callable[[int, int], None]
"""Called with the bytes written so far and the bytes in all."""

_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to write: ``dims`` in ggml's order, and a function that yields its ``n_bytes`` bytes in
    pieces."""

    name: str
    dims: tuple[int, ...]
    type: TensorType
    n_bytes: int
    chunks: Callable[[], Iterator[bytes]]


def string(text: str | bytes) -> bytes:
    """A GGUF string."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def text_value(key: str, value: str) -> bytes:
    """A key with a string."""
    return string(key) + struct.pack("<I", GGUFValueType.STRING) + string(value)


def uint32_value(key: str, value: int) -> bytes:
    """A key with an unsigned 32-bit number."""
    return string(key) + struct.pack("<II", GGUFValueType.UINT32, value)


def array_value(key: str, kind: GGUFValueType, values: Sequence[int] | Sequence[float]) -> bytes:
    """A key with an array of numbers."""
    head = struct.pack("<IIQ", GGUFValueType.ARRAY, kind, len(values))
    return string(key) + head + struct.pack(f"<{len(values)}{_FORMATS[kind]}", *values)


def write_gguf(
    out: Path, pairs: Sequence[bytes], tensors: Sequence[OutTensor], progress: OnProgress, *, force: bool
) -> None:
    """Write ``out`` atomically.

    ``pairs`` are encoded keys with their values. An existing file is only replaced with ``force``. Raises
    ModelFileError if it cannot be written.
    """
    header = _header(pairs, tensors)
    padding = -len(header) % GGUF_DEFAULT_ALIGNMENT
    total = len(header) + padding + sum(_padded(t.n_bytes) for t in tensors)
    _check_place(out, total, force)
    try:
        with whole_file(out, overwrite=force) as file:
            file.write(header + bytes(padding))
            _write_tensors(file, tensors, total - sum(_padded(t.n_bytes) for t in tensors), total, progress)
    except FileExistsError:
        raise _exists(out) from None
    except OSError as error:
        raise ModelFileError(
            f"{one_line(out)} could not be written: {error.strerror}. Nothing was left behind; "
            "change that, or write it elsewhere."
        ) from None


def _header(pairs: Sequence[bytes], tensors: Sequence[OutTensor]) -> bytes:
    parts = [struct.pack("<IIQQ", GGUF_MAGIC, GGUF_VERSION, len(tensors), len(pairs)), *pairs]
    offset = 0
    for tensor in tensors:
        dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        parts += [string(tensor.name), dims, struct.pack("<IQ", tensor.type.id, offset)]
        offset += _padded(tensor.n_bytes)
    return b"".join(parts)


def _write_tensors(
    file: BinaryIO, tensors: Iterable[OutTensor], done: int, total: int, progress: OnProgress
) -> None:
    progress(done, total)
    for tensor in tensors:
        written = 0
        for chunk in tensor.chunks():
            file.write(chunk)
            written += len(chunk)
            progress(done + written, total)
        if written != tensor.n_bytes:
            raise AssertionError(f"{tensor.name}: {written} bytes for {tensor.n_bytes}")
        file.write(bytes(_padded(written) - written))
        done += _padded(written)
    progress(total, total)


def _check_place(out: Path, total: int, force: bool) -> None:
    name = one_line(out)
    try:
        if not out.parent.is_dir():
            raise ModelFileError(f"The folder {one_line(out.parent)} does not exist. Make it first.")
        if out.is_dir():
            raise ModelFileError(f"{name} is a folder. Give the name of the file to write.")
        if out.exists() and not out.is_file():
            # The rename at the end would replace a device, such as /dev/null, with a file.
            raise ModelFileError(f"{name} is not a regular file. Give the name of the file to write.")
        if out.exists() and not force:
            raise _exists(out)
        free = shutil.disk_usage(out.parent).free
    except (OSError, ValueError):
        raise ModelFileError(f"{name} is not a path that can be written. Give another.") from None
    if free < total:
        raise ModelFileError(
            f"{name} needs {shown_size(total)}, and its disk has {shown_size(free)} free. "
            "Free some space, or write it elsewhere."
        )


def _exists(out: Path) -> ModelFileError:
    return ModelFileError(f"{one_line(out)} exists already. Give another name, or --force to replace it.")


def _padded(n_bytes: int) -> int:
    padding: int = -n_bytes % GGUF_DEFAULT_ALIGNMENT
    return n_bytes + padding
