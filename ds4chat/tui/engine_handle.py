"""What the chat asks of the handle of an engine."""

from __future__ import annotations

from typing import Protocol

from ds4chat.engine.events import Command, Event


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
