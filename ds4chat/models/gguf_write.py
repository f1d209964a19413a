"""Writing a GGUF as a stream: a header made in memory, then tensors copied piece by piece, atomically."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gguf.constants import GGUF_MAGIC, GGUF_VERSION, GGUFValueType

from ds4chat.files import NotRegularError, whole_file
from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.gguf_file import SCALARS, TensorType, padded
from ds4chat.text import one_line

OnProgress = Callable[[int, int], None]
"""Called with the bytes written so far and the bytes in all."""


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to write: ``dims`` in ggml's order, and a function that yields its ``n_bytes`` bytes in
    pieces."""

    name: str
    dims: tuple[int, ...]
    type: TensorType
    n_bytes: int
    chunks: Callable[[], Iterator[bytes]]


def string(text: str) -> bytes:
    """A GGUF string."""
    raw = text.encode("utf-8", "surrogateescape")
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
    return string(key) + head + struct.pack(f"<{len(values)}{SCALARS[kind].format[1:]}", *values)


def write_gguf(
    out: Path, pairs: Sequence[bytes], tensors: Sequence[OutTensor], progress: OnProgress, *, force: bool
) -> None:
    """Write ``out`` atomically.

    ``pairs`` are encoded keys with their values. An existing file is only replaced with ``force``. Raises
    ModelFileError if it cannot be written.
    """
    header = _header(pairs, tensors)
    total = len(header) + sum(padded(tensor.n_bytes) for tensor in tensors)
    name = one_line(out)
    try:
        with whole_file(out, overwrite=force) as file:
            free = shutil.disk_usage(out.parent).free
            if free < total:
                raise ModelFileError(
                    f"{name} needs {shown_size(total)}, and its disk has {shown_size(free)} free. "
                    "Free some space, or write it elsewhere."
                )
            file.write(header)
            _write_tensors(file, tensors, len(header), total, progress)
    except FileExistsError:
        raise ModelFileError(f"{name} exists already. Give another name, or --force to replace it.") from None
    except FileNotFoundError:
        raise ModelFileError(f"The folder {one_line(out.parent)} does not exist. Make it first.") from None
    except NotRegularError:
        what = "a folder" if out.is_dir() else "not a regular file"
        raise ModelFileError(f"{name} is {what}. Give the name of the file to write.") from None
    except OSError as error:
        raise ModelFileError(
            f"{name} could not be written: {error.strerror}. Nothing was left behind. Fix that, or write "
            "it elsewhere."
        ) from None
    except ValueError:  # a NUL in it
        raise ModelFileError(f"{name} is not a path that can be written. Give another.") from None


def _header(pairs: Sequence[bytes], tensors: Sequence[OutTensor]) -> bytes:
    parts = [struct.pack("<IIQQ", GGUF_MAGIC, GGUF_VERSION, len(tensors), len(pairs)), *pairs]
    offset = 0
    for tensor in tensors:
        dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        parts += [string(tensor.name), dims, struct.pack("<IQ", tensor.type.id, offset)]
        offset += padded(tensor.n_bytes)
    header = b"".join(parts)
    return header.ljust(padded(len(header)), b"\0")


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
        file.write(bytes(padded(written) - written))
        done += padded(written)
    progress(total, total)
