"""Leaving the process of the chat in time, even if a thread, a disk or the terminal hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from textual.app import App

from ds4chat.tui.kit.output import drain_after_the_terminal, give_terminal_back

LEAVE_SECONDS = 3.0
"""Seconds that leaving may take."""


class ProcessExit:
    """Ends the process by force if leaving takes too long. The engine leaves by itself when this process is
    gone."""

    def __init__(self, app: App[Any], store: Callable[[], str]) -> None:
        """``store`` stores what is left, and gives a sentence about what could not be stored, or "". Any
        thread may call it."""
        self._app = app
        self._store = store
        self._timer: threading.Timer | None = None
        self._parting: str | None = None
        """What to print last; None until everything is stored and the terminal is restored."""

    def watch(self) -> None:
        """Shut down regularly when the terminal closes or the process gets a signal.

        The handlers are Python's own, not the event loop's: the loop may be waiting for a terminal that is
        gone, and then only a handler of this kind still runs.
        """
        loop = asyncio.get_running_loop()

        def leave(number: int, _frame: object) -> None:
            code = 128 + number
            with suppress(RuntimeError):  # the loop is closed: the chat is leaving already
                loop.call_soon_threadsafe(self._app.exit, code)
            self.begin(code)

        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            signal.signal(number, leave)
        drain_after_the_terminal(self._app._driver)

    def begin(self, code: int, parting: str | None = None) -> None:
        """End the process with this exit code after LEAVE_SECONDS. ``parting`` is what to print, given once
        everything is stored and the terminal is restored."""
        self._parting = parting
        if self._timer is None:
            self._timer = threading.Timer(LEAVE_SECONDS, self._by_force, (code,))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """Leaving took no longer than it may."""
        if self._timer is not None:
            self._timer.cancel()

    def _by_force(self, code: int) -> None:
        if self._parting is not None:
            # Only a thread that nobody needs hangs.
            with suppress(OSError):
                os.write(sys.stderr.fileno(), f"{self._parting}\n".encode() if self._parting else b"")
            os._exit(code)
        # The terminal went away under a write, a disk does not answer or the machine is very busy.
        parting = ""
        try:
            parting = self._store()
        finally:
            give_terminal_back(self._app._driver, parting)
            os._exit(code)
