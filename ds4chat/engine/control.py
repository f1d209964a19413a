"""What may change while a reply or a check runs. It loads no llama.cpp, so that the reader of commands can
make one before the engine is up."""

from __future__ import annotations

import threading

from ds4chat.engine.events import Tuning


class Control:
    """What others may change while a reply waits or runs. Written by any thread, read between two decodes."""

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
