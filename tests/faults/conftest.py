"""Fixtures of the fault tests."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kits.faults import Victim
from kits.mounts import mounted


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, whatever the system's folder for temporary files is called: the name stands
    in sentences that are read off a screen."""
    with tempfile.TemporaryDirectory(prefix="ds4-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def home(folder: Path) -> Path:
    """Where the chat keeps its files."""
    return folder / "home"


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
def mount(folder: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of its own for a test, with options such as ``size=1m`` or ``ro``."""
    with ExitStack() as stack:
        numbers = itertools.count()
        yield lambda options: stack.enter_context(mounted(folder / f"disk{next(numbers)}", options))
