"""What an app leaves behind in a process that goes on without it."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref

from kits.chat import ReplayEngine

from ds4chat.settings.schema import Settings
from ds4chat.tui.app import ChatApp


def test_an_app_that_does_not_own_the_process_leaves_nothing_in_it() -> None:
    """Its memory, its threads and its signal handlers go with it; only ``run`` takes the process over."""
    before = (set(threading.enumerate()), signal.getsignal(signal.SIGTERM), gc.get_freeze_count())

    async def open_and_leave() -> weakref.ref[ChatApp]:
        app = ChatApp(Settings(model="/models/tiny.gguf"), ReplayEngine())  # type: ignore[arg-type]
        async with app.run_test() as pilot:
            await pilot.pause()
        return weakref.ref(app)

    left = asyncio.run(open_and_leave())
    gc.collect()
    assert left() is None
    threads, handler, frozen = before
    assert set(threading.enumerate()) <= threads
    assert signal.getsignal(signal.SIGTERM) == handler
    assert gc.get_freeze_count() == frozen
