"""Fixtures that every room of the tests may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of this session's constructed GGUFs: ``tiny.build(kind, tiny_dir, ...)`` makes each once."""
    return tmp_path_factory.mktemp("tiny")
