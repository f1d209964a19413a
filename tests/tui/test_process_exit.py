"""Signals to a chat that is leaving already."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest

from ds4chat.tui.kit.resume import redraw_when_continued
from ds4chat.tui.process_exit import ProcessExit


def test_a_signal_after_the_end_of_the_event_loop_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the terminal is closed while the engine is waited for."""
    monkeypatch.setattr("ds4chat.tui.process_exit.drain_after_the_terminal", lambda driver: None)
    driver = SimpleNamespace(_sigcont_application=None, _must_signal_resume=False)
    driver._sigcont_application = lambda *_: pytest.fail("its screen was entered again")
    resumed = SimpleNamespace(subscribe=lambda *_: None)
    app = SimpleNamespace(_driver=driver, exit=None, refresh=None, app_resume_signal=resumed)
    leaving = ProcessExit(app, lambda: "")  # type: ignore[arg-type]
    begun: list[int] = []
    monkeypatch.setattr(leaving, "begin", begun.append)

    async def watch() -> None:
        leaving.watch()
        redraw_when_continued(app)  # type: ignore[arg-type]

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        asyncio.run(watch())
        for number in numbers:
            os.kill(os.getpid(), number)
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)
    assert begun == [128 + signal.SIGTERM, 128 + signal.SIGHUP]
