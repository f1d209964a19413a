"""Fixtures that every room of the tests may use."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--mtp-verify-depth N``: the draft depth at which tests/verify runs."""
    parser.addoption(
        "--mtp-verify-depth", type=int, default=4, metavar="N", help="draft depth of tests/verify"
    )


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of this session's constructed GGUFs: ``tiny.build(kind, tiny_dir, ...)`` makes each once."""
    return tmp_path_factory.mktemp("tiny")
