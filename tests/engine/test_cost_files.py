"""The folder of costs stays small, whatever was loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ds4chat.engine.auto import costs
from ds4chat.engine.auto.costs import CostTable, Tables


def test_only_the_files_used_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five may stay. What a killed process left, the oldest, goes first."""
    monkeypatch.setattr(costs, "MOST_FILES", 5)
    for age, name in enumerate(["new.json", "c.json", "b.json", "a.json", ".z.json.0123abcd.part"]):
        (tmp_path / name).write_bytes(b"{}")
        os.utime(tmp_path / name, (10_000 - age, 10_000 - age))
    used = CostTable([10.0], [0.0], [0.0, 0.0])
    Tables(tmp_path / "a.json").put(0, used)
    assert len(list(tmp_path.iterdir())) == 5
    Tables(tmp_path / "d.json").put(0, used)
    Tables(tmp_path / "e.json").put(0, used)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["a.json", "c.json", "d.json", "e.json", "new.json"]
    assert Tables(tmp_path / "a.json").at(0) == used
