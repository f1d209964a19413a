"""What the engine does besides answering: a check or a comparison, as the controller sees either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from ds4chat.engine.events import Event, Generate, Replay, Replayed


class Aside(Protocol):
    """One or more requests, asked one after the other."""

    state: Literal["checking", "comparing"]
    """The chat's while it runs."""
    number: int
    """Of the reply that it has decoded now."""

    @property
    def over(self) -> bool:
        """Nothing more is to be asked."""

    def next_command(self, new_number: Callable[[], int]) -> Replay | Generate:
        """What to ask the engine next."""

    def handle(self, event: Event) -> bool:
        """Take in an event, whosever it is; True where it ends what was asked last."""

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
        """Its end; what it found is the conversation's."""
        return isinstance(event, Replayed) and event.reply == self.number

    def stop(self) -> None:
        """It keeps nothing."""
