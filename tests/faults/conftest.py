"""Fixtures of the fault tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.faults import Victim


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the chat keeps its files."""
    return tmp_path / "home"


@pytest.fixture
def victim(tiny_dir: Path) -> Iterator[Callable[..., Victim]]:
    """Starts chats, and ends what is left of them."""
    started: list[Victim] = []

    def start(home: Path, *more: str | Path, **how: Any) -> Victim:
        started.append(Victim(tiny_dir, home, *more, **how))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of its own for a test, with options such as ``size=1m`` or ``ro``."""
    folders: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(folders)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a file system of a size of its own can be mounted by root alone")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "-l", str(folder)], check=False)
