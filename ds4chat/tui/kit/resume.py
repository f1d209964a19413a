"""Continuing a chat that was stopped, with the terminal in order."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Any

from textual.app import App


def redraw_when_continued(app: App[Any]) -> None:
    """Draw everything again when the process is continued, because others may have written to the terminal.

    Textual enters its screen again at every SIGCONT, which is right only after a SIGTSTP, for which it left
    it. After a SIGSTOP, or without any stop, it would read keys and write in two threads each.
    """
    driver, loop = app._driver, asyncio.get_running_loop()
    enter_again = getattr(driver, "_sigcont_application", None)
    if enter_again is None:  # a driver without job control
        return

    def continued(number: int, frame: object) -> None:
        if driver._must_signal_resume:  # type: ignore[union-attr]
            enter_again(number, frame)
        else:
            with suppress(RuntimeError):  # the loop is closed: the chat is leaving
                loop.call_soon_threadsafe(lambda: app.refresh(layout=True))

    signal.signal(signal.SIGCONT, continued)
    app.app_resume_signal.subscribe(app, lambda _: app.refresh(layout=True))
