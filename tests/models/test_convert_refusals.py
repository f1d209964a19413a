"""convert-mtp: what it refuses, what it never overwrites, and what the command prints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from gguf import GGMLQuantizationType
from kits import ds4 as ds4_kit
from kits import gguf as kit
from kits.refusals import reason

from ds4chat.commands import convert as command
from ds4chat.commands import main as cli
from ds4chat.models.convert import convert_mtp, converted_path
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header, TensorInfo, read_header
from ds4chat.models.kinds import kind_of


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A main model, a support file, and a place for the result."""
    return (
        ds4_kit.main_model(tmp_path / "main.gguf"),
        ds4_kit.ds4_support(tmp_path / "mtp.gguf"),
        tmp_path / "out.gguf",
    )


# -- refusals


def refusal(main: Path, support: Path, out: Path) -> str:
    sentence = reason(lambda: convert_mtp(main, support, out))
    assert not out.exists() and not list(out.parent.glob("*.partial"))
    return sentence.replace(str(main), "MAIN").replace(str(support), "SUPPORT")


def changed(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"tensors": {f"mtp.0.{name}": np.zeros(shape, np.float32)}}


SUPPORTS: dict[str, tuple[dict[str, Any], str]] = {
    "width": (
        changed("e_proj.weight", (64, 64)),
        "SUPPORT does not fit MAIN: its tensor mtp.0.e_proj.weight is 64 x 64, the model asks for 32 x 32.",
    ),
    "norm": (
        changed("enorm.weight", (64,)),
        "SUPPORT does not fit MAIN: its tensor mtp.0.enorm.weight is 64, the model asks for 32.",
    ),
    "streams": (
        changed("hc_head_fn.weight", (2, 64)),
        "SUPPORT does not fit MAIN: its tensor mtp.0.hc_head_fn.weight is 64 x 2, "
        "the model asks for 128 x 4.",
    ),
    "rank": (
        changed("attn_q_a.weight", (16, 32)),
        "SUPPORT does not fit MAIN: its tensor mtp.0.attn_q_a.weight is 32 x 16, the model asks for 32 x 8.",
    ),
    "experts": (
        {"keys": {"deepseek4.expert_count": 8}},
        "SUPPORT does not fit MAIN: it routes among 8 experts, the model among 4.",
    ),
    "several blocks": (
        {"keys": {"deepseek4.mtp_layer_count": 3}},
        "SUPPORT has several MTP blocks, and llama.cpp runs one. Give another file.",
    ),
    "missing": (
        {"tensors": {"mtp.0.attn_kv.weight": None}},
        "SUPPORT is incomplete: it lacks the tensor mtp.0.attn_kv.weight. Download it again, or "
        "convert it again.",
    ),
    "unknown": (
        changed("surprise.weight", (4,)),
        "SUPPORT has the tensor mtp.0.surprise.weight, which has no place in llama.cpp's layout.",
    ),
    "dspark": (
        {"tensors": {"mtp.1.attn_norm.weight": np.zeros(32, np.float32)}},
        "SUPPORT is a DSpark drafter, not an MTP support file of ds4. Give that file.",
    ),
    "unlike halves": (
        {"types": {"mtp.0.e_proj.weight": GGMLQuantizationType.Q8_0}},
        "SUPPORT stores e_proj in Q8_0 and h_proj in F32; llama.cpp wants both in one matrix",
    ),
}


@pytest.mark.parametrize("case", SUPPORTS)
def test_support_file_refused(case: str, tmp_path: Path) -> None:
    more, expected = SUPPORTS[case]
    given = {key: dict(value) for key, value in more.items()}
    support = ds4_kit.ds4_support(tmp_path / "mtp.gguf", **given)
    assert refusal(ds4_kit.main_model(tmp_path / "main.gguf"), support, tmp_path / "out.gguf").startswith(
        expected
    )


@pytest.mark.parametrize("key", ["deepseek4.checkpoint_variant", "general.source.revision"])
def test_other_checkpoint_refused(key: str, tmp_path: Path) -> None:
    main = ds4_kit.main_model(tmp_path / "main.gguf", keys={key: "0731"})
    support = ds4_kit.ds4_support(tmp_path / "mtp.gguf", keys={key: "first"})
    assert "from first, the target from 0731" in refusal(main, support, tmp_path / "out.gguf").replace(
        "the checkpoint ", ""
    ).replace("the revision ", "")


def test_main_model_refused(tmp_path: Path, tiny_dir: Path) -> None:
    support, out = ds4_kit.ds4_support(tmp_path / "mtp.gguf"), tmp_path / "out.gguf"
    llama = kit.whole(tmp_path / "llama.gguf")
    assert "the model's architecture is llama, not deepseek4" in refusal(llama, support, out)
    nextn = tiny.build("deepseek4-nextn", tiny_dir)
    assert refusal(nextn, support, out) == "MAIN has a NextN block inside already. Use --mtp without a file."
    torn = ds4_kit.main_model(tmp_path / "torn.gguf", own={"block_count": 5})
    assert refusal(torn, support, out).startswith("MAIN is incomplete: it lacks blk.3.attn_norm.weight.")
    tied = kit.write(
        tmp_path / "tied.gguf",
        "deepseek4",
        tensors={"token_embd.weight": (32, 8)} | kit.block(0) | kit.block(1),
        own={"attention.compress_ratios": [0, 0], "expert_count": 4, "expert_used_count": 2},
    )
    assert refusal(tied, support, out).startswith("MAIN is incomplete: it lacks output_norm.weight.")
    bare = ds4_kit.main_model(tmp_path / "bare.gguf", own={"attention.compress_ratios": None})
    assert "it lacks deepseek4.attention.compress_ratios" in refusal(bare, support, out)


def test_files_in_each_others_place(pair: tuple[Path, Path, Path]) -> None:
    main, support, out = pair
    assert refusal(support, main, out).startswith("MAIN is an MTP support file in the layout of ds4.")
    assert (
        refusal(main, main, out) == "MAIN is a whole model, not an MTP support file of ds4. Give that file."
    )


def test_support_in_llama_cpps_layout_already(tiny_dir: Path, tmp_path: Path) -> None:
    main, support = tiny.build("deepseek4", tiny_dir), tiny.build("deepseek4-support", tiny_dir)
    assert refusal(main, support, tmp_path / "out.gguf") == (
        "SUPPORT is in llama.cpp's layout already. Give it with --mtp as it is."
    )


# -- the place of the result


def test_existing_file_is_kept_unless_forced(pair: tuple[Path, Path, Path]) -> None:
    main, support, out = pair
    out.write_bytes(b"precious")
    assert reason(lambda: convert_mtp(main, support, out)) == (
        f"{out} exists already. Give another name, or --force to replace it."
    )
    assert out.read_bytes() == b"precious"
    convert_mtp(main, support, out, force=True)
    assert kind_of(read_header(out)).name == "nextn-support"


def test_inputs_are_never_overwritten(pair: tuple[Path, Path, Path]) -> None:
    main, support, _ = pair
    before = main.read_bytes(), support.read_bytes()
    for path in (main, support):
        assert "is one of the files to read. Give another name." in reason(
            lambda path=path: convert_mtp(main, support, path, force=True)
        )
    assert (main.read_bytes(), support.read_bytes()) == before


def test_places_that_cannot_take_it(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    main, support, _ = pair
    assert "does not exist. Make it first." in reason(
        lambda: convert_mtp(main, support, tmp_path / "no" / "out")
    )
    assert "is a folder. Give the name of the file" in reason(lambda: convert_mtp(main, support, tmp_path))


def test_a_device_is_never_replaced(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """As root, the rename of the finished file would take the place of /dev/null itself."""
    main, support, _ = pair
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert reason(lambda: convert_mtp(main, support, pipe, force=True)) == (
        f"{pipe} is not a regular file. Give the name of the file to write."
    )
    assert pipe.is_fifo()


def test_full_disk_is_told_before_a_byte_is_written(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    main, support, out = pair
    usage = shutil.disk_usage(out.parent)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    sentence = refusal(main, support, out)
    assert sentence.startswith(f"{out} needs ") and "its disk has 1 kB free." in sentence


def stopped(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The ninth tensor's bytes do not come."""
    chunks, count = Header.tensor_chunks, 0

    def fail(self: Header, tensor: TensorInfo, start: int = 0, n: int | None = None) -> Iterator[bytes]:
        nonlocal count
        count += 1
        if count == 9:
            raise error
        yield from chunks(self, tensor, start, n)

    monkeypatch.setattr(Header, "tensor_chunks", fail)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()]
)
def test_nothing_is_left_of_a_conversion_that_fails(
    error: BaseException, pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    main, support, out = pair
    out.write_bytes(b"precious")
    stopped(monkeypatch, error)
    with pytest.raises((type(error), ModelFileError)) as raised:
        convert_mtp(main, support, out, force=True)
    if isinstance(error, OSError):
        assert str(raised.value) == (
            f"{out} could not be written: No space left on device. Nothing was left behind. Fix that, or "
            "write it elsewhere."
        )
    assert out.read_bytes() == b"precious"
    assert sorted(p.name for p in out.parent.iterdir()) == ["main.gguf", "mtp.gguf", "out.gguf"]


def test_a_file_that_appears_meanwhile_is_kept(pair: tuple[Path, Path, Path]) -> None:
    main, support, out = pair
    with pytest.raises(ModelFileError, match="exists already"):
        convert_mtp(main, support, out, lambda done, total: out.write_bytes(b"precious"))
    assert out.read_bytes() == b"precious"


# -- the name in the cache, and the command


def test_name_in_the_cache(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The same as long as both files stay what they are, whatever they are called by."""
    main, support, _ = pair
    first = converted_path(main, support, tmp_path / "cache")
    assert first == converted_path(os.path.relpath(main), str(support), tmp_path / "cache")
    assert first.parent == tmp_path / "cache" and first.name.startswith("mtp-") and first.suffix == ".gguf"
    assert first != converted_path(support, main, tmp_path / "cache")
    os.utime(support, ns=(1, 1))
    assert first != converted_path(main, support, tmp_path / "cache")
    with pytest.raises(ModelFileError, match="cannot be read"):
        converted_path(main, tmp_path / "absent.gguf", tmp_path)


def test_command(pair: tuple[Path, Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    main, support, out = pair
    assert command.run(main, support, out) == 0
    captured = capfd.readouterr()
    assert captured.out.endswith(f"Use it with: ds4chat -m {main} --mtp {out}\n")
    assert captured.err == ""
    spaced = out.with_name("a b.gguf")
    assert command.run(main, support, spaced) == 0
    assert capfd.readouterr().out.endswith(f"Use it with: ds4chat -m {main} --mtp '{spaced}'\n")
    assert cli.main(["convert-mtp", str(main), str(support), str(out)]) == 1
    captured = capfd.readouterr()
    assert (
        captured.out == ""
        and captured.err == f"ds4chat: {out} exists already. Give another name, or --force to replace it.\n"
    )
    assert command.run(main, support, out, force=True) == 0


def test_command_interrupted(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    main, support, out = pair
    stopped(monkeypatch, KeyboardInterrupt())
    assert cli.main(["convert-mtp", str(main), str(support), str(out)]) == 130
    assert capfd.readouterr().err == f"ds4chat: Stopped; {out} was not written.\n"
    assert not out.exists()


def test_bar_on_a_terminal(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert command.run(*pair) == 0
    drawn = capsys.readouterr().err
    assert drawn.startswith("\r") and drawn.endswith(" kB\r\x1b[K") and "100 %" in drawn
