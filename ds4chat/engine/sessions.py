"""The interface of a session, which answers requests, and the one that a Load opens.

A session is the engine of this machine (engine.session) or a server's (servers.session). Each is only
imported when a Load asks for it, so that a chat over a server needs neither llama.cpp nor a model file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ds4chat.engine.control import Control
from ds4chat.engine.events import Emit, Generate, Load, Loaded


class AnySession(Protocol):
    """Answers one reply at a time."""

    def generate(self, request: Generate, control: Control, emit: Emit) -> None:
        """Answer one request; the events go to ``emit``, an Ended last. Nothing but a bug is raised."""

    def replay(self, reply: int, control: Control, emit: Emit) -> None:
        """Decode the last reply again without drafts and emit a Replayed, which says why not where that was
        not possible."""

    def reset(self) -> None:
        """Forget the conversation."""

    def keep(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Save the conversation's state to disk if that is worthwhile, unless ``interrupted``."""

    def measure(self, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Measure the costs of drafts, where they are not known, unless ``interrupted``. False if they are
        not known afterwards."""

    def close(self) -> None:
        """Free everything; the session cannot be used afterwards."""


def open_session(
    load: Load, emit: Emit, *, forgiving: bool, resuming: bool = False
) -> tuple[AnySession, Loaded]:
    """A ready session for ``load`` and its Loaded event. Raises LoadError, and UserFacingError where
    llama.cpp itself cannot be loaded.

    forgiving: where a support file does not fit, speculation is off, with a reason, instead of an error.
    resuming: conversations go on from states on disk, where ``load`` allows that.
    """
    if load.server is not None:
        from ds4chat.servers.session import open_server

        return open_server(load.server, emit)
    from ds4chat.engine import opening

    return opening.open_session(load, emit, forgiving=forgiving, resuming=resuming)
