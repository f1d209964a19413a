"""read_header: what it reads, and one clear sentence for each file that it cannot."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny
from gguf import GGUFValueType as T
from kits import gguf as kit
from kits.work import calls

from ds4chat.models.demo import demo_model
from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.gguf_file import MAX_TENSORS, ArrayInfo, read_header


def refusal(path: Path) -> str:
    """The sentence with which a file is refused, without its path."""
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    return str(caught.value).replace(str(path), "FILE")


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return refusal(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


# -- reading


@pytest.mark.parametrize("kind", ["deepseek4-nextn", "llama", "eagle3", "deepseek4-ds4"])
def test_says_what_the_gguf_package_says(kind: str, tiny_dir: Path) -> None:
    """Metadata, arrays and every tensor's place and bytes equal those of gguf.GGUFReader."""
    path = tiny.build(kind, tiny_dir)
    header, reader = read_header(path), gguf.GGUFReader(path)
    fields = {name: f for name, f in reader.fields.items() if not name.startswith("GGUF.")}
    assert header.metadata.keys() == fields.keys()
    for name, field in fields.items():
        value = header.metadata[name]
        if isinstance(value, ArrayInfo):
            ours = [v.decode() if isinstance(v, bytes) else v for v in header.array(name) or ()]
            assert ours == field.contents(), name
        else:
            assert value == field.contents(), name
    assert list(header.tensors) == [t.name for t in reader.tensors]
    for theirs in reader.tensors:
        ours = header.tensors[theirs.name]
        assert ours.dims == tuple(int(d) for d in theirs.shape)
        assert (ours.type.id, ours.offset, ours.n_bytes) == (
            theirs.tensor_type,
            theirs.data_offset,
            theirs.n_bytes,
        )
        assert b"".join(header.tensor_chunks(ours)) == theirs.data.tobytes()


def test_every_scalar_type(file: Path) -> None:
    bodies = {
        "u8": (T.UINT8, struct.pack("<B", 200), 200),
        "i8": (T.INT8, struct.pack("<b", -3), -3),
        "u16": (T.UINT16, struct.pack("<H", 60000), 60000),
        "i16": (T.INT16, struct.pack("<h", -300), -300),
        "u32": (T.UINT32, struct.pack("<I", 1 << 31), 1 << 31),
        "i32": (T.INT32, struct.pack("<i", -5), -5),
        "f32": (T.FLOAT32, struct.pack("<f", 0.5), 0.5),
        "bool": (T.BOOL, b"\x01", True),
        "text": (T.STRING, kit.text("é"), "é"),
        "u64": (T.UINT64, struct.pack("<Q", 1 << 63), 1 << 63),
        "i64": (T.INT64, struct.pack("<q", -1), -1),
        "f64": (T.FLOAT64, struct.pack("<d", 0.25), 0.25),
    }
    file.write_bytes(kit.raw([kit.pair(key, kind, body) for key, (kind, body, _) in bodies.items()]))
    assert read_header(file).metadata == {key: value for key, (_, _, value) in bodies.items()}


def test_arrays_stay_unread_until_asked_for(file: Path) -> None:
    strings = kit.array(T.STRING, 3, kit.text("a") + kit.text("") + kit.text(b"\xff"))
    numbers = kit.array(T.INT16, 3, struct.pack("<3h", 1, -2, 3))
    file.write_bytes(kit.raw([kit.pair("s", T.ARRAY, strings), kit.pair("n", T.ARRAY, numbers)]))
    header = read_header(file)
    assert isinstance(header.metadata["s"], ArrayInfo)
    assert (header.array("s"), header.array("n"), header.array("absent")) == (
        [b"a", b"", b"\xff"],
        [1, -2, 3],
        None,
    )
    assert header.integers("n") == [1, -2, 3]
    with pytest.raises(ModelFileError, match="should hold whole numbers"):
        header.integers("s")


def test_strings_longer_than_the_window(file: Path) -> None:
    """Lengths that fall on every side of the reader's window of 2**18 bytes."""
    lengths = [0, (1 << 18) - 9, 1, 1 << 18, 3, (1 << 20) + 5, 7]
    body = b"".join(kit.text(bytes([65 + i]) * n) for i, n in enumerate(lengths))
    after = kit.string_pair("after", "here")
    file.write_bytes(kit.raw([kit.pair("s", T.ARRAY, kit.array(T.STRING, len(lengths), body)), after]))
    header = read_header(file)
    assert [len(s) for s in header.array("s") or ()] == lengths
    assert header.text("after") == "here"


def test_alignment_and_sizes_of_quantised_tensors(file: Path) -> None:
    """64 values of Q4_0 are two blocks of 18 bytes; with an alignment of 64 the next tensor starts at 64."""
    align = kit.pair("general.alignment", T.UINT32, struct.pack("<I", 64))
    head = kit.raw([align], [kit.tensor("a", (64,), 2), kit.tensor("b", (2, 3), 0, 64)])
    file.write_bytes(head[: len(head) // 64 * 64] + bytes(64 + 64 + 24))
    header = read_header(file)
    a, b = header.tensors["a"], header.tensors["b"]
    assert (a.n_bytes, a.type.bits, b.n_bytes, b.n_elements) == (36, 4.5, 24, 6)
    assert b.offset - a.offset == 64
    assert header.n_parameters == 70


def test_integer_keys_are_integers(file: Path) -> None:
    file.write_bytes(
        kit.raw([kit.string_pair("general.architecture", "x"), kit.string_pair("x.block_count", "two")])
    )
    with pytest.raises(ModelFileError, match=r"x\.block_count should be a whole number"):
        read_header(file).own_integer("block_count")


# -- cost


def test_an_item_of_an_array_costs_hardly_more_than_a_call() -> None:
    """The header of a model with 49,152 tokens and 48,900 merges; the gguf package makes 66 calls an item."""
    assert calls(lambda: read_header(demo_model())) < 1.5 * (49_152 + 48_900)


def test_memory_stays_bounded() -> None:
    """A window of the file and the metadata's own values: the arrays of 1.7 MB are not held."""
    read_header(demo_model())
    with kit.peak_memory() as peak:
        read_header(demo_model())
    assert 0 < peak() < 1_200_000


def test_a_terabyte_of_tensors_is_not_read(file: Path) -> None:
    """A sparse file of a tebibyte: only the header is touched."""
    n = 1 << 38
    head = kit.raw([], [kit.tensor("huge", (n,))])
    with file.open("wb") as out:
        out.write(head)
        try:
            out.truncate(len(head) + 4 * n)
        except OSError:
            pytest.skip("this file system holds no sparse file of a tebibyte")
    assert read_header(file).tensors["huge"].n_bytes == 4 * n


# -- refusals: the path


def test_missing(file: Path) -> None:
    assert refusal(file) == "FILE does not exist. Give the path of a .gguf file."


def test_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "FILE is a folder. Give the path of a .gguf file in it."


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_unreadable(file: Path) -> None:
    file.write_bytes(b"GGUF")
    file.chmod(0)
    assert refusal(file) == "FILE may not be read by this user. Change its permissions (chmod +r)."


def test_no_permission_by_any_user(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sentence where the system refuses, also when the tests run as root."""
    file.write_bytes(b"GGUF")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert refusal(file) == "FILE may not be read by this user. Change its permissions (chmod +r)."


def test_failing_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"GGUF")

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", fail)
    assert refusal(file) == "FILE cannot be read: Input/output error. Check the disk that it is on."


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_does_not_hang(file: Path) -> None:
    os.mkfifo(file)
    assert stat.S_ISFIFO(file.stat().st_mode)
    assert refusal(file) == "FILE is not a regular file. Give a .gguf file."


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\ud800"])
def test_paths_that_no_system_takes(name: str) -> None:
    with pytest.raises(ModelFileError, match=r"(is not the path of a file|does not exist)\. Give the path"):
        read_header(name)


# -- refusals: the beginning


def test_empty(file: Path) -> None:
    assert refused(file, b"") == "FILE is empty. Download or copy it again."


def test_not_gguf(file: Path) -> None:
    assert refused(file, b"PK\x03\x04 and more of a zip") == (
        "FILE is not a GGUF file (it starts with b'PK\\x03\\x04'). Give the path of a .gguf model."
    )


def test_shorter_than_the_magic(file: Path) -> None:
    assert "is not a GGUF file (it starts with b'GG')" in refused(file, b"GG")


@pytest.mark.parametrize(
    "content", [b"FUGG\x00\x00\x00\x03" + bytes(16), b"GGUF\x00\x00\x00\x03" + bytes(16)]
)
def test_big_endian(file: Path, content: bytes) -> None:
    assert refused(file, content) == (
        "FILE is a big-endian GGUF file. Convert it for little-endian machines."
    )


@pytest.mark.parametrize("version", [0, 1, 4, 77])
def test_other_versions(file: Path, version: int) -> None:
    assert refused(file, kit.raw(version=version)) == (
        f"FILE is a GGUF file of version {version}; versions 2 and 3 can be read. "
        "Convert the model again with a current converter."
    )


def test_version_2_is_read(file: Path) -> None:
    file.write_bytes(kit.raw([kit.string_pair("k", "v")], version=2))
    assert read_header(file).text("k") == "v"


# -- refusals: truncation


def test_truncated_anywhere_in_the_header(tiny_dir: Path, file: Path) -> None:
    """Cut at 200 places of the header: always the sentence, never another error."""
    content = tiny.build("llama", tiny_dir).read_bytes()
    header = read_header(tiny.build("llama", tiny_dir))
    for cut in np.linspace(5, header.parts[0].data_offset - 40, 200, dtype=int):
        sentence = refused(file, content[:cut])
        assert sentence == "FILE is truncated: it ends inside its header. Download or copy it again."


@pytest.mark.parametrize("missing", [1, 64, 5000])
def test_truncated_tensor_data(tiny_dir: Path, file: Path, missing: int) -> None:
    content = tiny.build("llama", tiny_dir).read_bytes()
    end = max(t.offset + t.n_bytes for t in read_header(tiny.build("llama", tiny_dir)).tensors.values())
    assert refused(file, content[: end - missing]) == (
        f"FILE is truncated: its header promises {end:,} bytes, the file has {end - missing:,}. "
        "Download or copy it again."
    )


def test_file_that_shrinks_while_it_is_read(file: Path) -> None:
    body = kit.array(T.INT32, 1000, bytes(4000))
    file.write_bytes(kit.raw([kit.pair("n", T.ARRAY, body)]))
    header = read_header(file)
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"changed while it was read\. Wait until nothing writes to it"):
        header.array("n")


# -- refusals: contradictions

CORRUPT = {
    "counts": (kit.raw(n_pairs=1 << 40), "its header counts 1,099,511,627,776 metadata keys and 0 tensors"),
    "tensor count": (
        kit.raw(n_tensors=MAX_TENSORS + 1),
        f"its header counts 0 metadata keys and {MAX_TENSORS + 1:,} tensors",
    ),
    "no key name": (kit.raw([kit.pair("", T.BOOL, b"\0")]), "its metadata key 0 has no name"),
    "duplicate key": (
        kit.raw([kit.string_pair("a", ""), kit.string_pair("a", "")]),
        "its metadata key 1 repeats a",
    ),
    "key length": (
        kit.raw([struct.pack("<Q", 1 << 62) + bytes(8)]),
        "the name of its metadata key 0 says it is 4,611,686,018,427,387,904 bytes long",
    ),
    "string length": (
        kit.raw([kit.pair("a", T.STRING, struct.pack("<Q", 1 << 40))]),
        "its metadata key a says it is 1,099,511,627,776 bytes long",
    ),
    "value type": (kit.raw([kit.pair("a", 99, bytes(8))]), "its metadata key a has the unknown type 99"),
    "element type": (
        kit.raw([kit.pair("a", T.ARRAY, kit.array(77, 1))]),
        "its metadata key a has the unknown type 77",
    ),
    "nested array": (
        kit.raw([kit.pair("a", T.ARRAY, kit.array(T.ARRAY, 1, bytes(12)))]),
        "its metadata key a is an array of arrays",
    ),
    "array length": (
        kit.raw([kit.pair("a", T.ARRAY, kit.array(T.UINT8, 1 << 60))]),
        "its metadata key a counts 1,152,921,504,606,846,976 values",
    ),
    "string array length": (
        kit.raw([kit.pair("a", T.ARRAY, kit.array(T.STRING, 1 << 25))]),
        "its metadata key a counts 33,554,432 values",
    ),
    "alignment": (
        kit.raw([kit.pair("general.alignment", T.UINT32, struct.pack("<I", 33))]),
        "its alignment is not a power of two",
    ),
    "alignment 0": (
        kit.raw([kit.pair("general.alignment", T.UINT32, bytes(4))]),
        "its alignment is not a power of two",
    ),
    "alignment type": (
        kit.raw([kit.string_pair("general.alignment", "32")]),
        "its alignment is not a power of two",
    ),
    "tensor name": (
        kit.raw([], [kit.tensor("n" * 64, (1,))], bytes(32)),
        "the name of tensor 0 says it is 64 bytes long",
    ),
    "duplicate tensor": (
        kit.raw([], [kit.tensor("t", (8,)), kit.tensor("t", (8,), 0, 32)], bytes(64)),
        "it has two tensors named t",
    ),
    "dimensions": (kit.raw([], [kit.tensor("t", (1,) * 5)], bytes(32)), "its tensor t has 5 dimensions"),
    "shape": (
        kit.raw([], [kit.tensor("t", (1 << 33, 1 << 33))], bytes(32)),
        "its tensor t has an impossible shape",
    ),
    "negative shape": (
        kit.raw([], [kit.tensor("t", (0, (1 << 64) - 1))], bytes(32)),
        "its tensor t has an impossible shape",
    ),
    "rows": (
        kit.raw([], [kit.tensor("t", (33,), 8)], bytes(64)),
        "the rows of its tensor t are not a whole number of Q8_0 blocks",
    ),
    "overlap": (
        kit.raw([], [kit.tensor("t", (8,)), kit.tensor("u", (8,), 0, 0)], bytes(64)),
        "its tensor u does not lie where the one before it ends",
    ),
    "gap": (
        kit.raw([], [kit.tensor("t", (8,), 0, 32)], bytes(64)),
        "its tensor t does not lie where the one before it ends",
    ),
}


@pytest.mark.parametrize("case", CORRUPT)
def test_corrupt(case: str, file: Path) -> None:
    content, what = CORRUPT[case]
    assert refused(file, content) == f"FILE is corrupt: {what}. Download or copy it again."


@pytest.mark.parametrize("kind", [4, 31, 43, 4096])
def test_unknown_tensor_type(kind: int, file: Path) -> None:
    assert refused(file, kit.raw([], [kit.tensor("t", (8,), kind)], bytes(32))) == (
        f"FILE stores its tensor t in the ggml type {kind}, which llama.cpp does not know. "
        "Get the model in another quantisation, or download it again."
    )


def test_too_much_text(file: Path) -> None:
    """Five strings of 16 MiB each: more than the 64 MiB that all texts together may take."""
    text = struct.pack("<Q", 1 << 24) + bytes(1 << 24)
    file.write_bytes(kit.raw([kit.pair(str(i), T.STRING, text) for i in range(5)]))
    assert "its metadata holds more text than any model has" in refusal(file)


# -- split models


def split(folder: Path, n: int) -> list[Path]:
    """A model of ``n`` parts with one tensor each."""
    paths = []
    for i in range(n):
        path = folder / f"big-{i + 1:05}-of-{n:05}.gguf"
        pairs = [
            kit.pair("split.no", T.UINT16, struct.pack("<H", i)),
            kit.pair("split.count", T.UINT16, struct.pack("<H", n)),
        ]
        content = kit.raw(pairs, [kit.tensor(f"t{i}", (8,))], np.full(8, i, np.float32).tobytes())
        path.write_bytes(content)
        paths.append(path)
    return paths


def test_split_model(tmp_path: Path) -> None:
    """The first part stands for all: its tensors, their bytes, and the size of the whole."""
    paths = split(tmp_path, 3)
    header = read_header(paths[0])
    assert list(header.tensors) == ["t0", "t1", "t2"]
    assert [t.part for t in header.tensors.values()] == [0, 1, 2]
    assert header.file_size == sum(p.stat().st_size for p in paths)
    assert b"".join(header.tensor_chunks(header.tensors["t2"])) == np.full(8, 2, np.float32).tobytes()


def test_split_model_by_another_part(tmp_path: Path) -> None:
    paths = split(tmp_path, 3)
    assert refusal(paths[1]) == f"FILE is part 2 of 3. Give the first: {paths[0]}."


def test_split_model_with_a_part_missing(tmp_path: Path) -> None:
    paths = split(tmp_path, 3)
    paths[2].unlink()
    assert refusal(paths[0]) == f"FILE is part 1 of 3, and {paths[2]} is missing. Download it too."


def test_split_model_renamed(tmp_path: Path) -> None:
    path = split(tmp_path, 2)[0].rename(tmp_path / "renamed.gguf")
    assert refusal(path) == (
        "FILE is part 1 of 2 of a model, and its name must end in -00001-of-00002.gguf for the other parts "
        "to be found. Rename it as it was published."
    )


def test_split_model_with_a_foreign_part(tmp_path: Path) -> None:
    paths = split(tmp_path, 3)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(ModelFileError, match=r"is not part 3 of .*Download it again\."):
        read_header(paths[0])


def test_split_model_with_a_truncated_part(tmp_path: Path) -> None:
    paths = split(tmp_path, 2)
    paths[1].write_bytes(paths[1].read_bytes()[:-8])
    with pytest.raises(ModelFileError, match=r"00002-of-00002.gguf is truncated"):
        read_header(paths[0])


# -- what a sentence shows


def test_names_from_files_cannot_steer_the_terminal(file: Path) -> None:
    content = kit.raw([], [kit.tensor("\x1b]0;owned\x07", (8,), 4)], bytes(32))
    sentence = refused(file, content)
    assert "\x1b" not in sentence and "\x07" not in sentence
    assert r"\x1b]0;owned\x07" in sentence


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (3_807_602_400, "3.81 GB"), (2 * 10**12, "2 TB")],
)
def test_sizes(n: int, text: str) -> None:
    assert shown_size(n) == text
