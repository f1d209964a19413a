"""The writer's thread: one after the other, again until it works, and nobody waits longer than told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from kits.faults import until

from ds4chat.store import StoreError
from ds4chat.store import writer as writers
from ds4chat.store.writer import Writer

PATIENCE = 120.0
"""Seconds to wait for what must come; only a fault makes a test wait that long."""
NEVER = 3600.0


def silent() -> bool:
    """Nothing grows."""
    return False


def noting(into: list[str], name: str) -> Callable[[], None]:
    return lambda: into.append(name)


def test_writes_are_carried_out_in_order_and_in_another_thread() -> None:
    done: list[object] = []
    writer = Writer(silent, NEVER)
    for number in range(200):
        writer.put(lambda number=number: done.append(number))  # type: ignore[misc]
    writer.put(lambda: done.append(threading.current_thread() is threading.main_thread()))
    assert writer.flush(PATIENCE)
    assert done == [*range(200), False]
    assert writer.close(lambda: None, PATIENCE)


def test_a_failed_write_is_repeated_and_later_ones_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "RETRY", 0.01)
    done: list[str] = []
    left = [3]

    def fails_three_times() -> None:
        if left[0]:
            left[0] -= 1
            raise StoreError("The disk is full.", "full")
        done.append("first")

    writer = Writer(silent, NEVER)
    ticket = writer.put(fails_three_times)
    writer.put(noting(done, "second"))
    assert writer.flush(PATIENCE)
    assert done == ["first", "second"]
    assert ticket.over
    writer.close(lambda: None, PATIENCE)
    until(lambda: not writer.trouble, "the end of the trouble")


def test_a_failure_is_reported_until_it_is_over() -> None:
    free = threading.Event()

    def fails() -> None:
        if not free.is_set():
            raise StoreError("The disk is full.", "full")

    writer = Writer(silent, NEVER)
    ticket = writer.put(fails)
    deadline = time.monotonic() + PATIENCE
    while not writer.trouble and time.monotonic() < deadline:
        assert not ticket.wait(0.01)
    assert writer.trouble == "The disk is full."
    assert not writer.flush(0.05)
    free.set()
    # Something new is a reason to try at once.
    assert writer.flush(PATIENCE)
    assert writer.close(lambda: None, PATIENCE)
    until(lambda: not writer.trouble, "the end of the trouble")


def test_a_write_that_can_never_succeed_is_dropped() -> None:
    done: list[str] = []

    def gone() -> None:
        raise StoreError("There is no conversation 7.", "gone")

    writer = Writer(silent, NEVER)
    ticket = writer.put(gone)
    writer.put(noting(done, "next"))
    assert writer.flush(PATIENCE)
    assert (ticket.over, done, writer.trouble) == (True, ["next"], "")
    writer.close(lambda: None, PATIENCE)


def test_the_beat_is_called_while_more_may_come() -> None:
    beats: list[int] = []
    over, more = threading.Event(), threading.Event()

    def beat() -> bool:
        beats.append(len(beats))
        if len(beats) >= 3:
            (over if len(beats) == 3 else more).set()
        return len(beats) < 3

    writer = Writer(beat, 0.01)
    assert not over.wait(0.1), "nothing was written yet, so nothing grows"
    writer.put(lambda: None)
    assert over.wait(PATIENCE)
    assert not more.wait(0.1), "it said that no more comes"
    assert beats == [0, 1, 2]
    writer.close(lambda: None, PATIENCE)


def test_closing_waits_for_the_rest_within_its_time() -> None:
    done: list[str] = []
    held = threading.Event()
    writer = Writer(silent, NEVER)
    writer.put(lambda: held.wait(PATIENCE) and None)
    writer.put(noting(done, "rest"))
    assert not writer.close(noting(done, "last"), 0.05)
    assert done == []
    held.set()
    # Closing again, as leaving by force does, waits for the same.
    assert writer.close(noting(done, "another last"), PATIENCE)
    assert done == ["rest", "last"]


def test_a_fault_in_the_writer_itself_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: seen.set())
    writer = Writer(silent, NEVER)
    writer.put(lambda: {}["x"])
    assert seen.wait(PATIENCE)
    assert writer.trouble.startswith("Nothing can be written any more (KeyError: 'x').")
    assert "/export FILE" in writer.trouble, "what is unsaved must not be lost by starting again"
