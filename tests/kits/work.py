"""How much work something is, as counts that no load, core or clock changes."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import pytest


def calls(look: Callable[[], object]) -> int:
    """Calls of Python and C functions that ``look`` makes in this thread."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        look()
    finally:
        sys.setprofile(before)
    return count


def database_steps(connection: sqlite3.Connection, look: Callable[[], object]) -> int:
    """Steps of SQLite's virtual machine on this connection, those of its full-text search included."""
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(counted, 1)
    try:
        look()
    finally:
        connection.set_progress_handler(None, 1)
    return count


class Clock:
    """A clock that stands still unless it is moved; ``seconds`` is what it shows."""

    def __init__(self) -> None:
        self.seconds = 1.0

    def perf_counter(self) -> float:
        """In the place of ``time.perf_counter``."""
        return self.seconds

    def slow_down(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, seconds: Callable[..., float]
    ) -> None:
        """Have ``owner.name`` take this long; ``seconds`` is asked with what it is given."""
        real, of_class = getattr(owner, name), isinstance(owner, type)

        def slow(*given: Any, **more: Any) -> Any:
            self.seconds += seconds(*(given[1:] if of_class else given), **more)
            return real(*given, **more)

        patch.setattr(owner, name, slow)
