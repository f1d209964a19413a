"""Handling of terminals that are closed or do not accept output: the chat waits for neither."""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from contextlib import suppress
from typing import Any

from ds4chat.text import printable

LOOK_SECONDS = 0.2
TAKE_SECONDS = 5.0
"""How long a terminal may need to accept a few bytes behind pending output."""
FIRST_STATE = (
    # No marks around pastes, wrapped lines, no reports of its size, of the mouse or of the focus, keys as
    # ever; the first screen and the cursor.
    b"\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l\x1b[<u"
    b"\x1b[?1049l\x1b[?25h"
)
"""What Textual's Linux driver writes when it stops normally."""


def drain_after_the_terminal(driver: Any) -> None:
    """Discard output once the terminal is gone.

    Textual's writer thread ends at its first failed write, and its queue is short: the next writes would
    block the event loop, and with it the shutdown, which still has to store the reply. The thread started
    here waits for the writer's end and then empties its queue.
    """
    threading.Thread(target=_drain, args=(driver,), name="output-drain", daemon=True).start()


def _drain(driver: Any) -> None:
    while True:
        writer = getattr(driver, "_writer_thread", None)
        if writer is None:  # not started yet, or released while the chat is suspended
            time.sleep(LOOK_SECONDS)
            continue
        writer.join()
        try:
            writer._queue.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            continue


def give_terminal_back(driver: Any, parting: str) -> None:
    """Restore the terminal's state from before the chat, and print ``parting`` if it is not empty. It
    bypasses the driver, which would wait for the event loop and its own threads. Call it just before the
    process is ended by force. Raises nothing."""
    attributes = getattr(driver, "attrs_before", None)
    if attributes is None:  # it is not in use, or has no state to restore
        return
    import termios

    with suppress(OSError, ValueError, termios.error):
        termios.tcsetattr(driver.fileno, termios.TCSANOW, attributes)
    with suppress(OSError, ValueError):
        output = driver._file.fileno()
        _, ready, _ = select.select([], [output], [], TAKE_SECONDS)
        if ready:
            said = f"{printable(parting)}\n" if parting else ""
            os.write(output, FIRST_STATE + said.encode(errors="replace"))
