"""Reads the headers of GGUF files: of any size, in bounded memory, trusting nothing.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. This refuses what
llama.cpp's own reader (ggml/src/gguf.cpp) refuses, so that llama.cpp can open every file that passes.
"""

from __future__ import annotations

import errno
import io
import math
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeAlias

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGUFValueType,
)

from ds4chat.files import NotRegularError, open_regular
from ds4chat.models.errors import ModelFileError
from ds4chat.models.scan import U32, U64, Scan
from ds4chat.text import one_line, shortened

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ELEMENTS = 1 << 30
MAX_STRINGS = 1 << 24
"""Most strings of one array; the largest vocabularies have under 2**19."""
MAX_NAME = 64
"""Bytes of a tensor's name with its closing zero (GGML_MAX_NAME)."""
MAX_DIMS = 4
MAX_PARTS = 1 << 10
_MAX_KEY = 1 << 16
_MAX_TEXT = 1 << 24
_MAX_TEXTS = 1 << 26
"""Most bytes of all single strings together: chat templates, licences."""
_MAX_ARRAY_BYTES = 1 << 28
_CHUNK = 1 << 20

Scalar: TypeAlias = int | float | bool | str

SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: U32,
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: U64,
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
"""How a number of each type is stored."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A ggml type: blocks of ``block`` values in ``bytes`` bytes."""

    id: int
    name: str
    block: int
    bytes: int

    @property
    def bits(self) -> float:
        """Bits a value."""
        return 8 * self.bytes / self.block


TYPES = {42: TensorType(42, "Q2_0", 64, 18)} | {
    int(kind): TensorType(int(kind), kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()
}
"""Every ggml type by its number; Q2_0 is in ggml but not in every release of the gguf package."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``dims`` in ggml's order (row length first), ``offset`` from the start of its file."""

    name: str
    dims: tuple[int, ...]
    type: TensorType
    offset: int
    part: int = 0

    @property
    def n_elements(self) -> int:
        """Number of values."""
        return math.prod(self.dims)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return (self.dims[0] if self.dims else 1) // self.type.block * self.type.bytes

    @property
    def n_bytes(self) -> int:
        """Bytes in the file, without padding."""
        return self.row_bytes * math.prod(self.dims[1:])


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array in the metadata that is not read yet: its element type, length, and position."""

    type: GGUFValueType
    length: int
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a model; most have just one."""

    path: Path
    size: int
    data_offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """A GGUF's metadata and tensor directory. ``tensors`` and ``parts`` cover all files of a split model,
    the rest is the first file's."""

    path: Path
    metadata: dict[str, Scalar | ArrayInfo]
    tensors: dict[str, TensorInfo]
    parts: tuple[Part, ...]
    spans: dict[str, tuple[int, int]] = field(repr=False)
    """The position of each key-value pair in the first file, for copying it unchanged."""

    @property
    def file_size(self) -> int:
        """Bytes of all parts together."""
        return sum(part.size for part in self.parts)

    @property
    def n_parameters(self) -> int:
        """Number of values in all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors.values())

    @property
    def architecture(self) -> str:
        """``general.architecture``, "" when there is none."""
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """A string of the metadata, "" when it is missing or something else."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def integer(self, key: str) -> int | None:
        """An integer of the metadata, None when it is missing. Raises ModelFileError for any other type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.corrupt(f"its metadata key {shortened(key)} should be a whole number")
        return value

    def flag(self, key: str) -> bool | None:
        """A boolean of the metadata, None when it is missing or something else."""
        value = self.metadata.get(key)
        return value if isinstance(value, bool) else None

    def own(self, key: str) -> str:
        """``key`` with the architecture's prefix: "block_count" -> "llama.block_count"."""
        return f"{self.architecture}.{key}"

    def own_integer(self, key: str) -> int | None:
        """An integer under the architecture's prefix, see ``integer``."""
        return self.integer(self.own(key))

    def own_each(self, key: str, count: int, default: int) -> list[int]:
        """A value for each of ``count`` blocks: one for all, or an array, which may end early."""
        if isinstance(self.metadata.get(self.own(key)), ArrayInfo):
            values = (self.integers(self.own(key)) or [])[:count]
            return values + [default] * (count - len(values))
        value = self.own_integer(key)
        return [default if value is None else value] * count

    def array(self, key: str) -> list[int] | list[float] | list[bytes] | None:
        """The values of one array, strings as bytes, read now; None when the key is missing or no array.

        Raises ModelFileError when the array is absurdly large or the file has changed since.
        """
        info = self.metadata.get(key)
        if not isinstance(info, ArrayInfo):
            return None
        if info.n_bytes > _MAX_ARRAY_BYTES:
            self.corrupt(f"its metadata key {shortened(key)} is larger than that of any model")
        body = b"".join(read_range(self.path, info.offset, info.n_bytes))
        if info.type is not GGUFValueType.STRING:
            return list(struct.unpack(f"<{info.length}{SCALARS[info.type].format[1:]}", body))
        strings, at = [], 0
        for _ in range(info.length):
            (length,) = U64.unpack_from(body, at) if at + 8 <= len(body) else (len(body),)
            at += 8 + length
            if at > len(body):
                raise _changed(self.path)
            strings.append(body[at - length : at])
        return strings

    def integers(self, key: str) -> list[int] | None:
        """The values of an integer array, see ``array``. Raises ModelFileError for any other element type."""
        info = self.metadata.get(key)
        if isinstance(info, ArrayInfo) and info.type in (
            GGUFValueType.STRING,
            GGUFValueType.FLOAT32,
            GGUFValueType.FLOAT64,
        ):
            self.corrupt(f"its metadata key {shortened(key)} should hold whole numbers")
        values = self.array(key)
        return None if values is None else [int(value) for value in values]

    def tensor_chunks(self, tensor: TensorInfo, start: int = 0, n: int | None = None) -> Iterator[bytes]:
        """The bytes of a tensor, or ``n`` of them from ``start``, a mebibyte at a time."""
        n = tensor.n_bytes - start if n is None else n
        yield from read_range(self.parts[tensor.part].path, tensor.offset + start, n)

    def corrupt(self, what: str) -> NoReturn:
        """Raise the ModelFileError for a file that contradicts itself or what llama.cpp asks for."""
        raise ModelFileError(
            f"{one_line(self.path)} is corrupt: {what}. Download it again, or convert it again."
        )

    def incomplete(self, what: str) -> NoReturn:
        """Raise the ModelFileError for a file that lacks something."""
        raise ModelFileError(
            f"{one_line(self.path)} is incomplete: {what}. Download it again, or convert it again."
        )


def read_range(path: Path, offset: int, n: int) -> Iterator[bytes]:
    """``n`` bytes of a file from ``offset`` on, a mebibyte at a time. Raises ModelFileError when they are not
    there (any more)."""
    try:
        with open_regular(path) as file:
            file.seek(offset)
            while n > 0:
                chunk = file.read(min(n, _CHUNK))
                if not chunk:
                    raise _changed(path)
                n -= len(chunk)
                yield chunk
    except OSError as error:
        raise _unreadable(path, error) from None


def read_header(path: str | os.PathLike[str]) -> Header:
    """The header of a GGUF and, for the first file of a split model, the tensors of the other files.

    Raises ModelFileError, with a sentence for the user, for anything that llama.cpp could not open.
    """
    header = _read_file(Path(path))
    count = header.integer("split.count")
    return header if count is None or count <= 1 else _with_other_parts(header, count)


def _read_file(path: Path) -> Header:
    """The header of this one file."""
    try:
        with open_regular(path) as file:
            return parse_header(file, os.fstat(file.fileno()).st_size, path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    """The error for a file that cannot be read."""
    name = one_line(path)
    if isinstance(error, FileNotFoundError):
        return ModelFileError(f"{name} does not exist. Give the path of a .gguf file.")
    if isinstance(error, NotRegularError):
        return ModelFileError(f"{name} is not a regular file. Give a .gguf file.")
    if isinstance(error, IsADirectoryError):
        return ModelFileError(f"{name} is a folder. Give the path of a .gguf file in it.")
    if isinstance(error, PermissionError):
        return ModelFileError(f"{name} may not be read by this user. Change its permissions (chmod +r).")
    if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.EINVAL):
        return ModelFileError(
            f"{shortened(name, 200)} is not the path of a file. Give the path of a .gguf file."
        )
    return ModelFileError(f"{name} cannot be read: {error.strerror}. Check the disk that it is on.")


def _changed(path: Path) -> ModelFileError:
    return ModelFileError(
        f"{one_line(path)} changed while it was read. Wait until nothing writes to it and start again."
    )


def read_leading_keys(data: bytes) -> dict[str, Scalar | ArrayInfo]:
    """The metadata at the beginning of a file, as far as ``data`` goes: architecture and block counts come
    before the tokenizer. Raises ModelFileError for anything but a GGUF."""
    scan = Scan(io.BytesIO(data), len(data), "The file")
    _check_version(scan)
    scan.number(U64)
    metadata: dict[str, Scalar | ArrayInfo] = {}
    with suppress(ModelFileError):  # the end of ``data``
        for _ in range(min(scan.number(U64), MAX_KEYS)):
            key = scan.string(_MAX_KEY, "a key").decode("utf-8", "backslashreplace")
            metadata[key] = _read_value(scan, key)
    return metadata


def parse_header(file: BinaryIO, size: int, path: Path) -> Header:
    """The header of a file of ``size`` bytes, read from its beginning; ``path`` names it in sentences.

    Other parts of a split model are not looked for. Raises ModelFileError.
    """
    scan = Scan(file, size, path)
    _check_version(scan)
    n_tensors, n_keys = scan.number(U64), scan.number(U64)
    # The smallest key takes 13 bytes (a length, a letter, a type), the smallest tensor 25.
    if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
        scan.corrupt(f"its header counts {n_keys:,} metadata keys and {n_tensors:,} tensors")
    if 13 * n_keys + 25 * n_tensors > scan.left:
        scan.truncated()
    metadata, spans = _read_metadata(scan, n_keys)
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 31:
        scan.corrupt("its alignment is not a power of two")
    tensors = _read_tensors(scan, n_tensors, alignment)
    data_offset = padded(scan.pos, alignment)
    located = {name: replace(t, offset=data_offset + t.offset) for name, t in tensors.items()}
    end = max((t.offset + t.n_bytes for t in located.values()), default=0)
    if end > size:
        raise ModelFileError(
            f"{one_line(path)} is truncated: its header promises {end:,} bytes, the file has {size:,}. "
            "Download or copy it again."
        )
    return Header(path, metadata, located, (Part(path, size, data_offset),), spans)


def _check_version(scan: Scan) -> None:
    """Raises ModelFileError for anything but a little-endian GGUF of a known version."""
    name = one_line(scan.path)
    if not scan.left:
        raise ModelFileError(f"{name} is empty. Download or copy it again.")
    magic = scan.read(min(4, scan.left))
    reversed_magic = magic == U32.pack(GGUF_MAGIC)[::-1]
    if magic != U32.pack(GGUF_MAGIC) and not reversed_magic:
        raise ModelFileError(
            f"{name} is not a GGUF file (it starts with {magic!r}). Give the path of a .gguf model."
        )
    version: int = scan.number(U32)
    if reversed_magic or (version and version & 0xFFFF == 0):
        raise ModelFileError(f"{name} is a big-endian GGUF file. Convert it for little-endian machines.")
    if version not in (2, 3):
        raise ModelFileError(
            f"{name} is a GGUF file of version {version}; versions 2 and 3 can be read. "
            "Convert the model again with a current converter."
        )


def _read_metadata(
    scan: Scan, n_keys: int
) -> tuple[dict[str, Scalar | ArrayInfo], dict[str, tuple[int, int]]]:
    """The metadata, with arrays not read yet, and the range of each key with its value."""
    metadata: dict[str, Scalar | ArrayInfo] = {}
    spans: dict[str, tuple[int, int]] = {}
    texts = 0
    for i in range(n_keys):
        start = scan.pos
        raw = scan.string(_MAX_KEY, f"the name of its metadata key {i}")
        key = raw.decode("utf-8", "backslashreplace")
        if not key or key in metadata:
            scan.corrupt(f"its metadata key {i} {'has no name' if not key else f'repeats {shortened(key)}'}")
        value = _read_value(scan, key)
        if isinstance(value, str):
            texts += len(value)
            if texts > _MAX_TEXTS:
                scan.corrupt("its metadata holds more text than any model has")
        metadata[key] = value
        spans[key] = (start, scan.pos)
    return metadata, spans


def _value_type(scan: Scan, key: str) -> GGUFValueType:
    number = scan.number(U32)
    if number > max(GGUFValueType):
        scan.corrupt(f"its metadata key {shortened(key)} has the unknown type {number}")
    return GGUFValueType(number)


def _read_value(scan: Scan, key: str) -> Scalar | ArrayInfo:
    """One value; for an array only its position."""
    kind = _value_type(scan, key)
    if kind is GGUFValueType.STRING:
        return scan.string(_MAX_TEXT, f"its metadata key {shortened(key)}").decode("utf-8", "replace")
    if kind is not GGUFValueType.ARRAY:
        value: Scalar = scan.number(SCALARS[kind])
        return value
    kind = _value_type(scan, key)
    length = scan.number(U64)
    if kind is GGUFValueType.ARRAY:
        scan.corrupt(f"its metadata key {shortened(key)} is an array of arrays")
    if length > (MAX_STRINGS if kind is GGUFValueType.STRING else MAX_ELEMENTS):
        scan.corrupt(f"its metadata key {shortened(key)} counts {length:,} values")
    start = scan.pos
    if kind is GGUFValueType.STRING:
        scan.skip_strings(length)
    else:
        scan.skip(length * SCALARS[kind].size)
    return ArrayInfo(kind, length, start, scan.pos - start)


def _read_tensors(scan: Scan, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    """The tensor directory; offsets are relative to the data's start, and one tensor follows the other."""
    tensors: dict[str, TensorInfo] = {}
    expected = 0
    for i in range(n_tensors):
        name = scan.string(MAX_NAME - 1, f"the name of tensor {i}").decode("utf-8", "backslashreplace")
        if name in tensors:
            scan.corrupt(f"it has two tensors named {shortened(name)}")
        n_dims = scan.number(U32)
        if n_dims > MAX_DIMS:
            scan.corrupt(f"its tensor {shortened(name)} has {n_dims:,} dimensions")
        dims = tuple(scan.number(U64) for _ in range(n_dims))
        number, offset = scan.number(U32), scan.number(U64)
        kind = TYPES.get(number)
        if kind is None:
            raise ModelFileError(
                f"{one_line(scan.path)} stores its tensor {shortened(name)} in the ggml type {number}, which "
                "llama.cpp does not know. Get the model in another quantisation, or download it again."
            )
        if math.prod(dims) >= 1 << 63 or any(d >= 1 << 63 for d in dims):
            scan.corrupt(f"its tensor {shortened(name)} has an impossible shape")
        if (dims[0] if dims else 1) % kind.block:
            scan.corrupt(
                f"the rows of its tensor {shortened(name)} are not a whole number of {kind.name} blocks"
            )
        if offset != expected:
            scan.corrupt(f"its tensor {shortened(name)} does not lie where the one before it ends")
        tensors[name] = TensorInfo(name, dims, kind, offset)
        expected = padded(offset + tensors[name].n_bytes, alignment)
    return tensors


def padded(n_bytes: int, alignment: int = GGUF_DEFAULT_ALIGNMENT) -> int:
    """``n_bytes`` rounded up to a multiple of ``alignment``."""
    return n_bytes + -n_bytes % alignment


def _with_other_parts(header: Header, count: int) -> Header:
    """The header with the tensors of the model's other files, which are in the same folder.

    llama.cpp finds them by their names: model-00001-of-00003.gguf.
    """
    name = one_line(header.path)
    number = header.integer("split.no")
    ending = f"-{(number or 0) + 1:05}-of-{count:05}.gguf"
    if count > MAX_PARTS:
        raise ModelFileError(f"{name} is corrupt: it says it is one of {count:,} parts. Download it again.")
    if not header.path.name.endswith(ending):
        raise ModelFileError(
            f"{name} is part {(number or 0) + 1} of {count} of a model, and its name must end in {ending} "
            "for the other parts to be found. Rename it as it was published."
        )
    stem = header.path.name.removesuffix(ending)
    paths = [header.path.with_name(f"{stem}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    if number:
        raise ModelFileError(f"{name} is part {number + 1} of {count}. Give the first: {one_line(paths[0])}.")
    tensors, parts = dict(header.tensors), list(header.parts)
    for i, path in enumerate(paths[1:], start=1):
        if not path.exists():
            raise ModelFileError(
                f"{name} is part 1 of {count}, and {one_line(path)} is missing. Download it too."
            )
        other = _read_file(path)
        if other.integer("split.no") != i:
            raise ModelFileError(f"{one_line(path)} is not part {i + 1} of {name}. Download it again.")
        for tensor in other.tensors.values():
            if tensor.name in tensors:
                raise ModelFileError(
                    f"{one_line(path)} repeats the tensor {shortened(tensor.name)} of an earlier part. "
                    "Download all parts again."
                )
            tensors[tensor.name] = replace(tensor, part=i)
        parts.append(other.parts[0])
    return replace(header, tensors=tensors, parts=tuple(parts))
