"""Fixtures of the engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and states that always pay: constructed models are faster than a disk."""
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("ds4chat.engine.saved_state.WORTH", 0.0)
    return tmp_path / "home"
