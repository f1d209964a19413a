"""The engine process: commands come in on stdin, events go out on stdout, everything else goes to the log.

Two threads. The reader handles a Cancel or a Retune at once, for the commands that wait and the one that
runs; it puts Load, Generate and Replay into a queue. The main thread works through the queue; llama.cpp runs
there.

When stdin closes without a Quit, the chat is gone, and the process leaves at once; after a Quit, when the
conversation's state is kept or the client's time for that is over. No process is orphaned.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from io import BufferedIOBase
from typing import BinaryIO

from ds4chat.engine.build import tell_of_idle_card
from ds4chat.engine.control import Control
from ds4chat.engine.crowding import Crowding
from ds4chat.engine.events import (
    Cancel,
    Event,
    Generate,
    Load,
    LoadFailed,
    Quit,
    Replay,
    Retune,
    Tuning,
    refused,
    uncompared,
)
from ds4chat.engine.sessions import AnySession, open_session
from ds4chat.engine.wire import ProtocolError, decode_command, encode, read_frames
from ds4chat.errors import UserFacingError
from ds4chat.settings.logfile import LineFormatter
from ds4chat.text import printable_streams

log = logging.getLogger("ds4chat.engine")

IDLE_S = 2.0
"""Seconds without a command after which the conversation's state is kept."""

KEEP_SHARE = 0.75
"""Share of the client's time after a Quit that keeping the state may take; leaving needs the rest."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A Generate or a Replay that waits or runs, with its control."""

    command: Generate | Replay
    control: Control


_Queued = Load | Quit | _Job


class Engine:
    """Works through the commands of one client."""

    def __init__(self, commands: BufferedIOBase, events: BinaryIO) -> None:
        self._commands = commands
        self._events = events
        self._queue: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._jobs: list[_Job] = []
        """Those that wait and the one that runs."""
        self._lock = threading.Lock()
        """Guards ``_jobs``."""
        self._loading = False
        self._keep_until: float | None = None
        """After a Quit: the time at which keeping the conversation's state is given up."""
        self._writing = threading.Lock()
        self._crowding = Crowding()

    def run(self) -> None:
        """Work until Quit."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        session: AnySession | None = None
        while True:
            command = self._next(session)
            if isinstance(command, Quit):
                if session:
                    session.keep(self._interrupted)
                return
            if isinstance(command, Load):
                if session:
                    session.keep(self._interrupted)
                    session.close()
                    session = None
                self._loading = True
                try:
                    session, loaded = open_session(command, self.emit, forgiving=True, resuming=True)
                    self.emit(loaded)
                    if command.server is None and command.gpu_layers:
                        from ds4chat.engine.llama import backends

                        tell_of_idle_card([name for name, _ in backends()], self.emit)
                except UserFacingError as error:
                    self.emit(LoadFailed(str(error)))
                self._loading = False
            else:
                try:
                    self._answer(command, session)
                finally:
                    with self._lock:
                        self._jobs.remove(command)

    def _answer(self, job: _Job, session: AnySession | None) -> None:
        command = job.command
        if isinstance(command, Generate):
            if session is None:
                why = "No model is loaded. Choose one with /model, then send it again."
                self.emit(refused(command.reply, why))
            else:
                session.generate(command, job.control, self.emit)
        elif session is None:
            self.emit(uncompared(command.reply, "No model is loaded, so there is nothing to check."))
        else:
            session.replay(command.reply, job.control, self.emit)

    def _next(self, session: AnySession | None) -> _Queued:
        """The next command. Until one comes, the costs of drafts are measured, and after a while the
        conversation's state is kept."""
        if session:
            if self._queue.empty():
                session.measure(lambda: not self._queue.empty())
            try:
                return self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                session.keep(self._interrupted)
        return self._queue.get()

    def _interrupted(self) -> bool:
        """The client waits for an answer or, after a Quit, most of its time for that is over."""
        if self._keep_until is not None:
            return time.monotonic() > self._keep_until
        return not self._queue.empty()

    def emit(self, event: Event) -> None:
        """Send one event, and a notice where it shows that the processors are crowded."""
        notice = self._crowding.notice(event)
        frames = encode(event) + (encode(notice) if notice else b"")
        with self._writing:
            self._events.write(frames)
            self._events.flush()

    def _read(self) -> None:
        quitting, patience = False, 0.0
        try:
            for payload in read_frames(self._commands):
                command = decode_command(payload)
                with self._lock:
                    if isinstance(command, Cancel):
                        for job in self._jobs:
                            if job.command.reply == command.reply:
                                job.control.cancel()
                    elif isinstance(command, Retune):
                        for job in self._jobs:
                            job.control.tuning = command.tuning
                    elif isinstance(command, Quit):
                        # A reply or a load that still runs leaves nothing to keep, and is not waited for.
                        quitting = not self._jobs and not self._loading
                        self._keep_until = time.monotonic() + KEEP_SHARE * command.seconds
                        patience = command.seconds
                        self._queue.put(command)
                    elif isinstance(command, Load):
                        self._queue.put(command)
                    else:
                        tuning = command.tuning if isinstance(command, Generate) else Tuning()
                        job = _Job(command, Control(tuning))
                        self._jobs.append(job)
                        self._queue.put(job)
        except ProtocolError as error:
            log.error("the client sent %s", error)
        if quitting:
            time.sleep(2 * patience)  # the main thread leaves first, unless it hangs and the client is gone
        os._exit(0)


def main() -> None:
    """Entry of the engine process."""
    # What prints to stdout, such as native code, must not get between the frames.
    commands = os.fdopen(os.dup(0), "rb")
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    with printable_streams():
        try:
            Engine(commands, events).run()
        except BrokenPipeError:
            os._exit(0)
        except BaseException:  # noqa: BLE001  the client must see the process end
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)


if __name__ == "__main__":
    main()
