"""What an app leaves behind in a process that goes on without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, gc, signal, threading, time, weakref
from kits.chat import ReplayEngine
from ds4chat.settings.schema import Settings
from ds4chat.tui.app import ChatApp

async def open_and_leave():
    app = ChatApp(Settings(model="/models/tiny.gguf"), ReplayEngine())
    async with app.run_test() as pilot:
        await pilot.pause()
    return weakref.ref(app)

before = signal.getsignal(signal.SIGTERM)
left = asyncio.run(open_and_leave())
# Its threads have been told to end, and one that is over may still hold what it ran: on a busy machine that
# takes a moment.
end = time.monotonic() + 120
while (left() is not None or threading.active_count() > 1) and time.monotonic() < end:
    time.sleep(0.01)
    gc.collect()
assert left() is None, "its memory"
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
assert signal.getsignal(signal.SIGTERM) == before, "its signal handlers"
assert gc.get_freeze_count() == 0, "what garbage collection passes over"
"""


def test_an_app_that_does_not_own_the_process_leaves_nothing_in_it() -> None:
    """Its memory, its threads and its signal handlers go with it; only ``run`` takes the process over. In a
    process of its own, in which no other test has left anything."""
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
