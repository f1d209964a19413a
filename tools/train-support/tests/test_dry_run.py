"""The whole training on the CPU, a few steps long, on a small random target; and the GGUF that it makes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import gguf
import pytest
import tiny
from tiny import vocab

torch = pytest.importorskip("torch", reason="the training needs PyTorch: pip install torch==2.13.0")

from eagle3_training import cli, data, export  # noqa: E402
from eagle3_training.errors import TrainingError  # noqa: E402
from eagle3_training.prompts import Prompts  # noqa: E402
from eagle3_training.target import Target  # noqa: E402
from train_llama import llama_drafts, torch_drafts  # noqa: E402
from train_target import write_target  # noqa: E402

FORMAT = {
    "start": vocab.CONTROL[vocab.BOS],
    "system_open": "",
    "system_close": "",
    "user_open": vocab.CONTROL[vocab.USER],
    "user_close": vocab.CONTROL[vocab.ASSISTANT] + vocab.CONTROL[vocab.END_THINK],
    "assistant_close": vocab.CONTROL[vocab.EOS],
    "between": "",
    "stops": [vocab.CONTROL[i] for i in (vocab.EOS, vocab.USER, vocab.ASSISTANT)],
}


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf")


@pytest.fixture(scope="module")
def work(target_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder after the dry run: prompts, data, a trained head, and its GGUF."""
    folder = tmp_path_factory.mktemp("training")
    form = folder / "format.json"
    form.write_text(json.dumps(FORMAT), "utf-8")
    options = ["--target", str(target_path), "--work", str(folder), "--chat-format", str(form)]
    assert cli.main(["dry-run", *options]) == 0
    return folder


def test_the_loss_is_finite_and_falls(work: Path) -> None:
    history = json.loads((work / "run" / "history.json").read_text("utf-8"))
    assert [p["step"] for p in history] == [1, 2, 3, 4, 5]
    losses = [sum(p["loss"]) for p in history]
    assert all(math.isfinite(x) for x in losses)
    assert losses[-1] < losses[0]


def test_the_gguf_has_what_llama_cpp_reads(work: Path, target_path: Path) -> None:
    """Keys and tensors of llama.cpp's eagle3 loader, for a target of width 64, 6 layers, 4 heads of 16, 2 of
    them for keys and values."""
    reader = gguf.GGUFReader(work / "head.gguf")

    def value(key: str) -> object:
        return reader.get_field(key).contents()

    assert value("general.architecture") == "eagle3"
    assert {k: value(f"eagle3.{k}") for k in ("block_count", "embedding_length", "feed_forward_length")} == {
        "block_count": 1,
        "embedding_length": 64,
        "feed_forward_length": 96,
    }
    assert value("eagle3.attention.head_count") == 4
    assert value("eagle3.attention.head_count_kv") == 2
    assert value("eagle3.rope.dimension_count") == 16
    assert value("eagle3.rope.freq_base") == 10000.0
    assert value("eagle3.target_layers") == [3, 4, 5]  # 6 // 2, 6 * 7 // 10, 6 - 1
    assert value("eagle3.target_hidden_size") == 64
    assert value("eagle3.norm_before_residual") is True
    assert value("eagle3.norm_before_fc") is False
    shapes = {t.name: [int(n) for n in t.shape] for t in reader.tensors}
    assert shapes == {
        "fc.weight": [3 * 64, 64],
        "output_norm.weight": [64],
        "output.weight": [64, vocab.N_VOCAB],
        "blk.0.attn_norm.weight": [64],
        "blk.0.attn_norm_2.weight": [64],
        "blk.0.ffn_norm.weight": [64],
        "blk.0.attn_q.weight": [128, 64],
        "blk.0.attn_k.weight": [128, 32],
        "blk.0.attn_v.weight": [128, 32],
        "blk.0.attn_output.weight": [64, 64],
        "blk.0.ffn_gate.weight": [64, 96],
        "blk.0.ffn_up.weight": [64, 96],
        "blk.0.ffn_down.weight": [96, 64],
        "d2t": [vocab.N_VOCAB],
    }
    d2t = next(t for t in reader.tensors if t.name == "d2t")
    assert d2t.tensor_type == gguf.GGMLQuantizationType.I64
    original = gguf.GGUFReader(target_path)
    for key, field in original.fields.items():
        if key.startswith("tokenizer."):
            assert value(key) == field.contents(), key


def test_llama_cpp_drafts_what_the_trained_head_drafts(work: Path, target_path: Path, tmp_path: Path) -> None:
    """Exported without quantisation, the logits of three recursive drafts agree to a thousandth of their
    spread: behind every position for the first draft, behind the last one for the others. A feature that is
    one position too early shows as a difference hundreds of times larger."""
    weights = export.load_weights(work / "run" / "head.npz")
    head_path = tmp_path / "head.gguf"
    export.write_gguf(weights, target_path, head_path, quantisation="F32", name="test")
    target = Target.load(target_path, dtype=torch.float32)
    head = export.read_head(head_path, target)
    ids = [(7 + 31 * i) % vocab.N_VOCAB for i in range(40)]
    theirs = llama_drafts(target_path, head_path, ids, 3)
    ours = torch_drafts(head, target, ids, theirs.tokens)
    spread = theirs.first.std()
    assert ours.tokens == theirs.tokens
    assert abs(ours.first - theirs.first).max() < 1e-3 * spread
    for mine, other in zip(ours.later, theirs.later, strict=True):
        assert abs(mine - other).max() < 1e-3 * spread
    shifted = llama_drafts(target_path, head_path, ids, 1, feature_shift=1)
    assert abs(ours.first - shifted.first).max() > 0.1 * spread


def test_every_quantisation_loads_back_near_the_original(
    work: Path, target_path: Path, tmp_path: Path
) -> None:
    """Relative error of the projections: F16 below 1e-3, Q8_0 below 1e-2, Q4_0 and Q4_1 below 0.15."""
    weights = export.load_weights(work / "run" / "head.npz")
    target = Target.load(target_path, dtype=torch.float32)
    for quantisation, bound in (("F16", 1e-3), ("Q8_0", 1e-2), ("Q4_0", 0.15), ("Q4_1", 0.15)):
        path = tmp_path / f"{quantisation}.gguf"
        export.write_gguf(weights, target_path, path, quantisation=quantisation, name="test")
        head = export.read_head(path, target)
        for key in ("qkv", "gate_up", "down", "attn_output", "output"):
            want = torch.from_numpy(weights[key])
            error = (getattr(head, key) - want).norm() / want.norm()
            assert 0 < error < bound, (quantisation, key)


def test_a_wave_on_disk_is_kept_and_the_same_seed_gives_the_same_wave(
    work: Path, target_path: Path, tmp_path: Path
) -> None:
    target = Target.load(target_path, dtype=torch.float32)
    prompts = Prompts.load(work / "prompts.json")
    sizes = {"rows": 24, "length": 96}  # those of the dry run
    said: list[str] = []
    data.generate(target, prompts, tmp_path, **sizes, waves=1, log=said.append)
    first = tmp_path / "wave-000.npz"
    assert first.read_bytes() == (work / "data" / "wave-000.npz").read_bytes()
    written = first.stat().st_mtime_ns
    data.generate(target, prompts, tmp_path, **sizes, waves=2, log=said.append)
    assert first.stat().st_mtime_ns == written
    assert "kept" in said[1]
    assert (tmp_path / "wave-001.npz").read_bytes() != first.read_bytes()
    assert data.load_waves(tmp_path).ids.shape == (48, 96)
    assert data.load_waves(tmp_path, 30).ids.shape == (30, 96)


def test_states_computed_anew_train_like_states_that_were_kept(work: Path, target_path: Path) -> None:
    base = ["train", "--target", str(target_path), "--work", str(work), "--device", "cpu"]
    short = ["--steps", "3", "--batch", "8", "--warmup", "2", "--peak-rate", "3e-4", "--vocabulary", "100"]
    assert cli.main([*base, *short, "--name", "kept"]) == 0
    assert cli.main([*base, *short, "--name", "anew", "--no-keep-states"]) == 0
    kept, anew = (export.load_weights(work / name / "head.npz") for name in ("kept", "anew"))
    assert set(kept["vocabulary"]) == set(anew["vocabulary"])
    assert len(kept["vocabulary"]) == 100
    for key, value in kept.items():
        assert abs(value - anew[key]).max() < 1e-4, key


def test_what_the_user_gets_wrong_is_a_sentence(
    target_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = ["--target", str(target_path), "--work", str(tmp_path)]
    assert cli.main(["prompts", *work]) == 1  # ChatML on a target that has another template
    assert "--chat-format" in capsys.readouterr().err
    assert cli.main(["train", *work]) == 1
    assert "Run the step 'prompts' first" in capsys.readouterr().err
    missing = ["--target", str(tmp_path / "none.gguf"), "--work", str(tmp_path)]
    assert cli.main(["prompts", *missing]) == 1
    assert "There is no file" in capsys.readouterr().err
    assert cli.main(["export", *work, "--out", str(tmp_path / "x.gguf")]) == 1
    assert "Run the step 'train' first" in capsys.readouterr().err


def test_a_target_of_another_architecture_is_refused(tiny_dir: Path) -> None:
    with pytest.raises(TrainingError, match="'qwen35'"):
        Target.load(tiny.build("qwen35-nextn", tiny_dir), dtype=torch.float32)
