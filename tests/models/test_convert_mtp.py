"""convert-mtp: the same numbers in llama.cpp's layout, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from kits import ds4 as ds4_kit
from kits import gguf as kit
from tiny.raw import run as run_raw

from ds4chat.models.convert import convert_mtp
from ds4chat.models.gguf_file import Header, read_header
from ds4chat.models.pairing import check_pair, check_target


def bytes_of(header: Header, name: str) -> bytes:
    return b"".join(header.tensor_chunks(header.tensors[name]))


# -- the constructed pair: one model's numbers in both layouts


@pytest.mark.parametrize("storage", ["F32", "Q8_0"])
def test_equals_the_file_written_in_llama_cpps_layout(storage: str, tiny_dir: Path, tmp_path: Path) -> None:
    """Every tensor byte for byte; every key but the name and the width that the converter states outright."""
    out = tmp_path / "out.gguf"
    convert_mtp(
        tiny.build("deepseek4", tiny_dir), tiny.build("deepseek4-ds4", tiny_dir, storage=storage), out
    )
    ours = read_header(out)
    theirs = read_header(tiny.build("deepseek4-support", tiny_dir, storage=storage))
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in theirs.tensors.items():
        assert (ours.tensors[name].dims, ours.tensors[name].type) == (tensor.dims, tensor.type), name
        assert bytes_of(ours, name) == bytes_of(theirs, name), name
    assert ours.integer("deepseek4.embedding_length_out") == 4 * 64
    assert ours.text("general.name") == "tiny DeepSeek V4 NextN"
    for key in theirs.metadata.keys() - {"general.name"}:
        left, right = ours.array(key), theirs.array(key)
        assert (left if left is not None else ours.metadata[key]) == (
            right if right is not None else theirs.metadata[key]
        ), key


def test_the_gguf_package_reads_the_result(tiny_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    convert_mtp(tiny.build("deepseek4", tiny_dir), tiny.build("deepseek4-ds4", tiny_dir), out)
    reader = gguf.GGUFReader(out)
    assert {t.name for t in reader.tensors} == set(read_header(out).tensors)
    assert reader.get_field("deepseek4.attention.compress_ratios").contents() == [0, 4, 128, 0]


def test_llama_cpp_runs_the_result(tiny_dir: Path, tmp_path: Path) -> None:
    """Drafts and acceptance are those simulated by hand for a head that errs at every fourth token."""
    target, out = tiny.build("deepseek4", tiny_dir), tmp_path / "out.gguf"
    convert_mtp(target, tiny.build("deepseek4-ds4", tiny_dir), out)
    prompt = tiny.encode(" end now")
    job = {
        "kind": "nextn",
        "target": str(target),
        "support": str(out),
        "prompt": prompt,
        "n_tokens": 40,
        "depth": 3,
    }
    answer, expected = run_raw(job), tiny.simulate(prompt, 40, depth=3)
    assert answer["tokens"] == list(expected.tokens)
    assert (answer["steps"], answer["drafted"], answer["accepted"]) == (
        expected.steps,
        expected.drafted,
        expected.accepted,
    )
    assert expected.accepted > 0


def test_the_result_pairs(tiny_dir: Path, tmp_path: Path) -> None:
    target, out = tiny.build("deepseek4", tiny_dir), tmp_path / "out.gguf"
    convert_mtp(target, tiny.build("deepseek4-ds4", tiny_dir), out)
    assert check_pair(check_target(target), out).kind == "nextn-support"


# -- small files of this module, for all that can differ


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A main model, a support file, and a place for the result."""
    main, support = tmp_path / "main.gguf", tmp_path / "mtp.gguf"
    return ds4_kit.main_model(main), ds4_kit.ds4_support(support), tmp_path / "out.gguf"


def test_names_and_order_of_the_halves(pair: tuple[Path, Path, Path]) -> None:
    """eh_proj's row i is e_proj's, then h_proj's; the head goes to the root; norm is shared_head_norm."""
    main, support, out = pair
    convert_mtp(main, support, out)
    source = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(support).tensors}
    result = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(out).tensors}
    fused = result["blk.3.nextn.eh_proj.weight"]
    assert fused.shape == (32, 64)
    assert np.array_equal(fused[:, :32], source["mtp.0.e_proj.weight"])
    assert np.array_equal(fused[:, 32:], source["mtp.0.h_proj.weight"])
    for old, new in (
        ("enorm.weight", "blk.3.nextn.enorm.weight"),
        ("hnorm.weight", "blk.3.nextn.hnorm.weight"),
        ("norm.weight", "blk.3.nextn.shared_head_norm.weight"),
        ("hc_head_fn.weight", "output_hc_fn.weight"),
        ("hc_head_base.weight", "output_hc_base.weight"),
        ("hc_head_scale.weight", "output_hc_scale.weight"),
        ("attn_sinks.weight", "blk.3.attn_sinks.weight"),
        ("exp_probs_b.bias", "blk.3.exp_probs_b.bias"),
    ):
        assert np.array_equal(result[new], source[f"mtp.0.{old}"]), new
    assert len(result) == len(source) - 1 + 3


def test_metadata(pair: tuple[Path, Path, Path]) -> None:
    """Arrays by layer grow by the last layer's value, ratios by 0; arrays that are not by layer stay."""
    main, support, out = pair
    convert_mtp(main, support, out)
    header = read_header(out)
    assert header.array("deepseek4.attention.compress_ratios") == [0, 4, 128, 0]
    assert header.array("deepseek4.swiglu_clamp_exp") == [7.0, 8.0, 9.0, 9.0]
    assert header.array("deepseek4.rope.dimension_sections") == [1, 2, 3, 4]
    assert (header.own_integer("block_count"), header.own_integer("nextn_predict_layers")) == (4, 1)
    assert header.own_integer("embedding_length_out") == ds4_kit.STREAMS * 32
    assert header.own_integer("mtp_layer_count") is None
    assert header.array("tokenizer.ggml.tokens") == [token.encode() for token in kit.TOKENS]


def test_arrays_that_are_long_enough_already(tmp_path: Path) -> None:
    """DeepSeek's own converter writes a ratio for the block that the file does not hold."""
    own = {"attention.compress_ratios": [0, 4, 128, 4, 4], "block_count": 4, "nextn_predict_layers": 1}
    main = ds4_kit.main_model(tmp_path / "main.gguf", own=own)
    convert_mtp(main, ds4_kit.ds4_support(tmp_path / "s.gguf"), tmp_path / "out.gguf")
    header = read_header(tmp_path / "out.gguf")
    assert header.array("deepseek4.attention.compress_ratios") == [0, 4, 128, 0]
    assert header.own_integer("block_count") == 4


def test_keys_that_are_true_of_the_whole_model_only_are_left_out(tmp_path: Path) -> None:
    keys = {
        "general.file_type": 2,
        "general.size_label": "284B",
        "quantize.imatrix.file": "x.dat",
        "general.license": "mit",
    }
    main = ds4_kit.main_model(tmp_path / "main.gguf", keys=keys)
    convert_mtp(main, ds4_kit.ds4_support(tmp_path / "s.gguf"), tmp_path / "out.gguf")
    header = read_header(tmp_path / "out.gguf")
    assert header.metadata.keys() & keys.keys() == {"general.license"}


def test_checkpoint_goes_along(tmp_path: Path) -> None:
    support = ds4_kit.ds4_support(tmp_path / "s.gguf", keys={"deepseek4.checkpoint_variant": "first"})
    convert_mtp(ds4_kit.main_model(tmp_path / "main.gguf"), support, tmp_path / "out.gguf")
    assert read_header(tmp_path / "out.gguf").text("deepseek4.checkpoint_variant") == "first"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
def test_quantised_projections_are_not_requantised(kind: str, tmp_path: Path) -> None:
    """The bytes of each quantised row follow each other: 32 values a block, one block a row."""
    quantised = GGMLQuantizationType[kind]
    rng = np.random.default_rng(2)
    halves = [quantize(rng.standard_normal((32, 32), np.float32), quantised) for _ in range(2)]
    writer_tensors = ds4_kit.ds4_tensors(rng)
    path = tmp_path / "s.gguf"
    writer = gguf.GGUFWriter(path, "deepseek4_mtp_support")
    for name, values in writer_tensors.items():
        if "_proj" not in name:
            writer.add_tensor(name, values)
    writer.add_tensor("mtp.0.e_proj.weight", halves[0], raw_dtype=quantised)
    writer.add_tensor("mtp.0.h_proj.weight", halves[1], raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert_mtp(ds4_kit.main_model(tmp_path / "main.gguf"), path, tmp_path / "out.gguf")
    header = read_header(tmp_path / "out.gguf")
    tensor = header.tensors["blk.3.nextn.eh_proj.weight"]
    assert (tensor.type.name, tensor.dims) == (kind, (64, 32))
    rows = np.frombuffer(bytes_of(header, tensor.name), np.uint8).reshape(32, -1)
    assert np.array_equal(rows, np.hstack(halves))


def test_split_main_model(tmp_path: Path) -> None:
    """Embeddings in the second file of the main model are found there."""
    whole = read_header(ds4_kit.main_model(tmp_path / "main.gguf"))
    tensors = list(whole.tensors.values())
    paths = [tmp_path / f"part-{i + 1:05}-of-00002.gguf" for i in range(2)]
    keys = {key: value for key, value in whole.metadata.items() if isinstance(value, int | str)}
    for i, (path, held) in enumerate(zip(paths, (tensors[3:], tensors[:3]), strict=True)):
        writer = gguf.GGUFWriter(path, "deepseek4")
        for key, value in keys.items():
            if key != "general.architecture":
                kit.add_value(writer, key, value)
        writer.add_array("tokenizer.ggml.tokens", kit.TOKENS)
        writer.add_array("deepseek4.attention.compress_ratios", [0, 4, 128])
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", 2)
        for tensor in held:
            values = np.full(
                tensor.dims[::-1], 5.0 if tensor.name == "token_embd.weight" else 0.0, np.float32
            )
            writer.add_tensor(tensor.name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    convert_mtp(paths[0], ds4_kit.ds4_support(tmp_path / "s.gguf"), tmp_path / "out.gguf")
    header = read_header(tmp_path / "out.gguf")
    assert "split.count" not in header.metadata
    assert set(np.frombuffer(bytes_of(header, "token_embd.weight"), np.float32)) == {5.0}


def test_progress_ends_at_the_size_of_the_file(pair: tuple[Path, Path, Path]) -> None:
    main, support, out = pair
    seen: list[tuple[int, int]] = []
    convert_mtp(main, support, out, lambda done, total: seen.append((done, total)))
    size = out.stat().st_size
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_memory_stays_far_below_the_file(tmp_path: Path) -> None:
    """Experts of 64 MB: the conversion holds a few pieces of one mebibyte."""
    big = np.zeros((4, 4096, 32 * 32), np.float32)
    main = ds4_kit.main_model(tmp_path / "main.gguf", tensors={"blk.2.ffn_up_exps.weight": big})
    support = ds4_kit.ds4_support(tmp_path / "mtp.gguf", tensors={"mtp.0.ffn_up_exps.weight": big})
    del big
    with kit.peak_memory() as peak:
        convert_mtp(main, support, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").stat().st_size > 60_000_000
    assert peak() < 8_000_000
