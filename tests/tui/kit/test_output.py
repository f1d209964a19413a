"""A writer that died must not block those who write."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread

from ds4chat.tui.kit.output import drain_after_the_terminal


class Closed:
    """A terminal that is gone."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        raise OSError(5, "Input/output error")

    def fileno(self) -> int:
        return 2


def test_writes_and_the_stop_go_on_after_the_terminal_closed(monkeypatch: Any) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    writer = WriterThread(Closed())  # type: ignore[arg-type]
    writer.start()
    drain_after_the_terminal(SimpleNamespace(_writer_thread=writer))

    def write_on() -> None:
        for _ in range(3 * MAX_QUEUED_WRITES):
            writer.write("frame")
        writer.stop()

    writing = threading.Thread(target=write_on, daemon=True)
    writing.start()
    writing.join(120)
    assert not writing.is_alive(), "the event loop would hang here"
