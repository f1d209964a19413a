"""inspect: what it reports of files and pairs, for people and for programs, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import tiny
from kits import gguf as kit

from ds4chat.commands.inspect import inspect_files, render
from ds4chat.commands.main import main
from ds4chat.models.demo import demo_model, demo_support


def test_report_of_the_demo_model() -> None:
    """All figures are the model's published ones: 30 layers of 576, 49,152 tokens, 134.5 M parameters."""
    report = inspect_files(demo_model()).model
    assert (report.kind, report.architecture, report.quantisation) == ("target", "llama", "Q4_1")
    assert (report.layers, report.width, report.vocabulary) == (30, 576, 49152)
    assert (report.context_length, report.parameters) == (8192, 134_515_008)
    assert report.size_bytes == demo_model().stat().st_size
    assert (report.nextn_blocks, report.chat_template, report.rollback) == (0, True, "kv")
    assert (report.tokenizer, report.problem) == ("gpt2 (smollm)", "")


def test_rendered_lines_are_aligned(tiny_dir: Path) -> None:
    path = tiny.build("deepseek4-nextn", tiny_dir)
    first, *lines = render(inspect_files(path)).splitlines()
    assert first == str(path)
    assert lines[0] == "  kind           nextn-embedded: a whole model with a NextN block inside"
    assert lines[6] == "  blocks         3 layers, 1 NextN block"
    assert all(line.startswith("  ") and line[2:17].rstrip() and line[17] != " " for line in lines)


def test_quantisation_that_differs_from_most_bytes(tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "f.gguf", keys={"general.file_type": 15})
    assert "  quantisation   Q4_K_M (mostly F32)\n" in render(inspect_files(path))


def test_pair_that_fits(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, support = (str(tiny.build(kind, tiny_dir)) for kind in ("deepseek4", "deepseek4-support"))
    assert main(["inspect", model, support]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("\n\nThey pair: nextn-support.\n")
    assert "  blocks         1 NextN block\n" in shown


def test_pair_that_does_not_fit(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, support = (str(tiny.build(kind, tiny_dir)) for kind in ("llama", "deepseek4-support"))
    assert main(["inspect", model, support]) == 1
    captured = capsys.readouterr()
    assert (
        f"They do not pair. {support} does not fit {model}: it was made for the architecture" in captured.out
    )
    assert captured.err == ""


def test_pair_that_stays_off(tmp_path: Path) -> None:
    model = kit.whole(tmp_path / "m.gguf", "mamba")
    draft = kit.whole(tmp_path / "d.gguf", n_layer=1)
    report = inspect_files(model, draft)
    assert report.pair is not None and report.pair.fits and report.pair.kind == "draft-model"
    assert "Speculation stays off anyway: mamba models keep a recurrent state" in render(report)


def test_embedded_block(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny.build("deepseek4-nextn", tiny_dir)), "embedded"]) == 0
    assert capsys.readouterr().out.endswith("They pair: nextn-embedded.\n")


def test_support_file_alone_is_described(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Readable, so no error: the kind says what it is for."""
    path = tiny.build("deepseek4-ds4", tiny_dir)
    assert main(["inspect", str(path)]) == 0
    assert "ds4-support: an MTP support file in the layout of ds4" in capsys.readouterr().out


def test_demo_names_both_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--demo"]) == 0
    shown = capsys.readouterr().out
    assert str(demo_model()) in shown and str(demo_support()) in shown
    assert shown.endswith("They pair: eagle3.\n")


def test_json_has_every_field(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, support = (str(tiny.build(kind, tiny_dir)) for kind in ("llama", "eagle3"))
    assert main(["inspect", model, "--json", support]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(asdict(inspect_files(model, support))))
    assert printed["pair"] == {"fits": True, "kind": "eagle3", "reason": "", "notes": []}
    assert printed["model"]["path"] == model and printed["support"]["kind"] == "eagle3"
    assert main(["inspect", model, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (alone["support"], alone["pair"]) == (None, None)
    assert alone["model"] == printed["model"]


def test_unreadable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent.gguf"
    assert main(["inspect", str(path), "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"ds4chat: {path} does not exist. Give the path of a .gguf file.\n"


def test_file_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "f.gguf", own={"block_count": 100_000})
    report = inspect_files(path)
    assert report.model.problem.startswith(f"{path} is corrupt: it counts 100,000 blocks")
    assert f"  problem        {report.model.problem}" in render(report)


def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    path = kit.whole(tmp_path / "f.gguf", keys={"general.name": "\x1b[2Jgone"})
    assert "\x1b" not in render(inspect_files(path))


def test_inspection_loads_no_engine() -> None:
    """Neither llama.cpp nor the chat: the command is quick and safe on any file."""
    code = (
        "import sys; from ds4chat.commands import inspect; from ds4chat.models import convert; "
        "assert not {'llama_cpp', 'textual', 'ds4chat.engine'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
