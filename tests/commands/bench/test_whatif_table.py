"""The command whose table docs/acceptance.md shows, on constructed models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kits.engine import load_of

ROOT = Path(__file__).resolve().parents[3]


def test_the_whatif_command_prints_a_line_a_rerun_and_saves_record_and_counts(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """The record holds every emitted token once, and each rerun emits the same number."""
    load, path = load_of(tiny_dir, "llama-draft"), tmp_path / "record.json"
    options = ["--mtp", load.support, "--prompts", "1", "--tokens", "24", "-t", "1", "--save", str(path)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "evaluate_support.py"), "whatif", load.model, *options],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    head, _, *lines = done.stdout.splitlines()
    assert head.startswith("| depth | gate | predicted | rerun |")
    record = json.loads(path.read_text(encoding="utf-8"))
    tokens = sum(emitted for steps in record["replies"] for _, _, emitted, _, _ in steps)
    assert len(lines) == len(record["reruns"]) == 9
    for line, rerun in zip(lines, record["reruns"]):
        depth, gate, predicted, real = line.split(" | ")[:4]
        assert (int(depth.strip("| ")), float(gate)) == (rerun["depth"], rerun["gate"])
        assert rerun["tokens"] == tokens
        assert float(real) == round(rerun["accepted"] / rerun["judged"], 3)
        assert 0 <= float(predicted) <= 1
