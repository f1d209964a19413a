"""Keeps a chat whose terminal was closed from waiting for it for ever."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

LOOK_SECONDS = 0.2


def drain_after_the_terminal(driver: Any) -> None:
    """Throw away what is written once the terminal is gone.

    Textual's writer thread ends at its first failed write, and its queue is short: the next writes would
    block the event loop, and with it the way out, where the reply is still to be stored. The thread
    started here waits for the writer's end and then empties its queue in its place.
    """
    threading.Thread(target=_drain, args=(driver,), name="output-drain", daemon=True).start()


def _drain(driver: Any) -> None:
    while True:
        writer = getattr(driver, "_writer_thread", None)
        if writer is None:  # not started yet, or given back while the chat is suspended
            time.sleep(LOOK_SECONDS)
            continue
        writer.join()
        try:
            writer._queue.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            continue
