"""Tasks of the engine other than a reply: a check or a comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from ds4chat.engine.events import Event, Generate, Replay, Replayed


class EngineTask(Protocol):
    """One or more requests, sent one after the other."""

    state: Literal["checking", "comparing"]
    """The chat's state while it runs."""
    number: int
    """Number of the reply that it decodes now."""

    @property
    def over(self) -> bool:
        """There is no further request."""

    def next_command(self, new_number: Callable[[], int]) -> Replay | Generate:
        """The next request."""

    def handle(self, event: Event) -> bool:
        """Process any event; True if it ends the last request."""

    def stop(self) -> None:
        """The user stopped it, or the engine is gone."""


class Check:
    """A finished reply decoded again and compared."""

    state: Literal["checking", "comparing"] = "checking"
    over = True
    """It asks once."""

    def __init__(self, number: int) -> None:
        self.number = number

    def next_command(self, new_number: Callable[[], int]) -> Replay:
        """The reply to decode again."""
        return Replay(self.number)

    def handle(self, event: Event) -> bool:
        """Recognise its end; the conversation keeps the result."""
        return isinstance(event, Replayed) and event.reply == self.number

    def stop(self) -> None:
        """It keeps nothing."""
