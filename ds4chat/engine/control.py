"""What may change while a reply or a check runs. It loads no llama.cpp, since commands may come before the
engine is loaded."""

from __future__ import annotations

import threading

from ds4chat.engine.events import Tuning


class Control:
    """The tuning and the cancel of a reply that waits or runs. Written by any thread, read between
    decodes."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self._cancel = threading.Event()

    def cancel(self) -> None:
        """Ask the reply to stop."""
        self._cancel.set()

    @property
    def cancelled(self) -> bool:
        """The reply was asked to stop."""
        return self._cancel.is_set()
