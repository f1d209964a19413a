"""Fixtures of the fault tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kits.faults import Victim
from kits.mounts import mounted


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
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of its own for a test, with options such as ``size=1m`` or ``ro``."""
    with ExitStack() as stack:
        numbers = itertools.count()
        yield lambda options: stack.enter_context(mounted(tmp_path / f"disk{next(numbers)}", options))
