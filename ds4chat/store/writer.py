"""A queue of writes and the thread that does them in order, so that nobody else waits for the disk.

A write that fails stays at the head of the queue and is repeated until it succeeds, because later ones may
depend on it. Only a write that can never succeed, because the conversation is gone, is dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ds4chat.store.errors import StoreError

RETRY = 2.0
"""Seconds from a failure to the next attempt, unless another write is queued before."""


class Ticket:
    """One queued write."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._over = threading.Event()

    def carry_out(self) -> None:
        """Write it. Raises StoreError if it has to be repeated."""
        try:
            self._write()
        except StoreError as error:
            if error.kind != "gone":
                raise
        self._over.set()

    @property
    def over(self) -> bool:
        """It was written, or dropped."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is over, at most this long. Returns whether it is."""
        return self._over.wait(seconds)


class Writer:
    """The queue and its thread. ``put`` never waits; ``flush`` and ``close`` wait no longer than told.

    ``beat`` writes what grows by itself: after a write, the thread calls it every ``interval`` seconds for as
    long as it returns that more may come. It may raise StoreError like a write.
    """

    def __init__(self, beat: Callable[[], bool], interval: float) -> None:
        self.trouble = ""
        """A sentence on why nothing can be written at present; empty while it can."""
        self.broken = False
        """The thread ended by an error: nothing is tried again."""
        self._beat = beat
        self._interval = interval
        self._next_beat: float | None = None
        """None: nothing grows."""
        self._queue: deque[Ticket] = deque()
        self._news = threading.Condition()
        self._asked = False
        """Something was queued since the thread last looked."""
        self._last: Ticket | None = None
        self._given_up = False
        threading.Thread(target=self._run, name="ds4chat-writer", daemon=True).start()

    def put(self, write: Callable[[], None]) -> Ticket:
        """Queue a write. ``write`` raises StoreError if it fails; it is then called again, from its
        beginning."""
        ticket = Ticket(write)
        with self._news:
            self._queue.append(ticket)
            self._asked = True
            self._news.notify()
        return ticket

    def flush(self, seconds: float) -> bool:
        """Wait until everything queued so far is written, at most this long. Returns whether it is."""
        return self.put(lambda: None).wait(seconds)

    def close(self, last: Callable[[], None], seconds: float) -> bool:
        """Write what is left, do ``last``, and end the thread. Returns whether that was done in time; if not,
        the thread ends after the current attempt. Any thread may call it, more than once."""
        if self._last is None:
            self._last = self.put(last)
        done = self._last.wait(seconds)
        with self._news:
            self._given_up = True
            self._news.notify()
        return done

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._given_up:
                with self._news:
                    if not (self._asked or self._given_up):
                        self._news.wait(self._pause())
                    self._asked = False
                self._work()
        except BaseException as error:
            # From now on nothing is written, and nobody must believe that it is.
            self.broken = True
            self.trouble = (
                f"Nothing can be written any more ({type(error).__name__}: {error}). Write this conversation "
                "to a file with /export FILE, then start ds4chat again."
            )
            raise

    def _pause(self) -> float | None:
        if self.trouble:
            return RETRY
        return None if self._next_beat is None else max(0.0, self._next_beat - time.monotonic())

    def _work(self) -> None:
        try:
            while self._queue:
                self._queue[0].carry_out()
                self._queue.popleft()
            now = time.monotonic()
            if self._next_beat is None:
                self._next_beat = now + self._interval
            elif now >= self._next_beat or self.trouble:
                self._next_beat = now + self._interval if self._beat() else None
        except StoreError as error:
            self.trouble = str(error)
        else:
            self.trouble = ""
