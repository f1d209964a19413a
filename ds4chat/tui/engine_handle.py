"""What the chat asks of the handle of an engine, and how it takes in what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from ds4chat.engine.events import Command, Event

ALONE_SECONDS = 1.0
"""How long a method waits for one that another thread is in: longer only where that one hangs."""

P = ParamSpec("P")
T = TypeVar("T")


class Engine(Protocol):
    """What the chat needs of the engine's handle (ds4chat.engine.client.EngineClient)."""

    @property
    def alive(self) -> bool:
        """The process runs."""

    def start(self) -> None:
        """Start the process, unless it runs. Raises OSError."""

    def send(self, command: Command) -> None:
        """Send one command."""

    def drain(self) -> list[Event]:
        """Every event since the last call."""

    def kill(self) -> None:
        """End the process at once."""

    def close(self) -> None:
        """Have the process leave."""


def alone(method: Callable[P, T]) -> Callable[P, T]:
    """The method, kept from being run by two threads at once on one object, whose ``alone`` is an RLock. The
    way out by force takes in what came while the thread of the screen may be about the same."""

    @wraps(method)
    def in_turn(*args: P.args, **values: P.kwargs) -> T:
        owner: Any = args[0]
        held = owner.alone.acquire(timeout=ALONE_SECONDS)
        try:
            return method(*args, **values)
        finally:
            if held:
                owner.alone.release()

    return in_turn
