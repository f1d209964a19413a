"""The engine process: commands come in on stdin, events go out on stdout, everything else goes to the log.

Two threads. The reader takes commands as they come: a Cancel or a Retune acts at once, on what waits as on
what runs; Load, Generate and Replay wait in a queue. The main thread works the queue; llama.cpp runs there.

When stdin closes without a Quit, the chat is gone, however it went, and the process leaves at once; after a
Quit, as soon as the conversation's state is kept or the client's time for that is over. No orphan stays.
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
from typing import BinaryIO

from ds4chat.engine.build import tell_of_idle_card
from ds4chat.engine.control import Control
from ds4chat.engine.crowding import Crowding
from ds4chat.engine.events import (
    Cancel,
    Event,
    Generate,
    Load,
    LoadError,
    LoadFailed,
    ProtocolError,
    Quit,
    Replay,
    Retune,
    Tuning,
    decode_command,
    encode,
    read_frame,
    refused,
    uncompared,
)
from ds4chat.engine.sessions import AnySession, open_session
from ds4chat.settings.logfile import LineFormatter
from ds4chat.text import printable_streams

log = logging.getLogger("ds4chat.engine")

IDLE_S = 2.0
"""Without a command for this long, what the next start can use is put on disk."""

KEEP_SHARE = 0.75
"""Of the time that the client waits after a Quit, what keeping the state may take: leaving needs the rest."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A Generate or a Replay on its way, with what changes it from outside."""

    command: Generate | Replay
    control: Control


_Queued = Load | Quit | _Asked


class Engine:
    """Works the commands of one client."""

    def __init__(self, commands: BinaryIO, events: BinaryIO) -> None:
        self._commands = commands
        self._events = events
        self._queue: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._asked: list[_Asked] = []
        """Those that wait and the one that runs."""
        self._lock = threading.Lock()
        """Held by who changes or reads ``_asked``."""
        self._loading = False
        self._keep_until: float | None = None
        """After a Quit: when keeping the conversation's state is given up."""
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
                except LoadError as error:
                    self.emit(LoadFailed(str(error)))
                self._loading = False
            else:
                try:
                    self._answer(command, session)
                finally:
                    with self._lock:
                        self._asked.remove(command)

    def _answer(self, asked: _Asked, session: AnySession | None) -> None:
        command = asked.command
        if isinstance(command, Generate):
            if session is None:
                why = "No model is loaded. Choose one with /model, then send it again."
                self.emit(refused(command.reply, why))
            else:
                session.generate(command, asked.control, self.emit)
        elif session is None:
            self.emit(uncompared(command.reply, "No model is loaded, so there is nothing to check."))
        else:
            session.replay(command.reply, asked.control, self.emit)

    def _next(self, session: AnySession | None) -> _Queued:
        """The next command. While none comes, what drafts cost is measured, and after a while the
        conversation's state is kept."""
        if session:
            if self._queue.empty():
                session.measure(self._interrupted)
            try:
                return self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                session.keep(self._interrupted)
        return self._queue.get()

    def _interrupted(self) -> bool:
        """The client waits for the answer to a command or, after a Quit, has waited for most of its time."""
        if self._keep_until is not None:
            return time.monotonic() > self._keep_until
        return not self._queue.empty()

    def emit(self, event: Event) -> None:
        """Send one event, and what it tells of the processors."""
        notice = self._crowding.notice(event)
        frames = encode(event) + (encode(notice) if notice else b"")
        with self._writing:
            self._events.write(frames)
            self._events.flush()

    def _read(self) -> None:
        quitting, patience = False, 0.0
        try:
            while (payload := read_frame(self._commands)) is not None:
                command = decode_command(payload)
                with self._lock:
                    if isinstance(command, Cancel):
                        for asked in self._asked:
                            if asked.command.reply == command.reply:
                                asked.control.cancel()
                    elif isinstance(command, Retune):
                        for asked in self._asked:
                            asked.control.tuning = command.tuning
                    elif isinstance(command, Quit):
                        # Neither a reply nor a load that still runs is waited for: there is nothing to keep.
                        quitting = not self._asked and not self._loading
                        self._keep_until = time.monotonic() + KEEP_SHARE * command.seconds
                        patience = command.seconds
                        self._queue.put(command)
                    elif isinstance(command, Load):
                        self._queue.put(command)
                    else:
                        tuning = command.tuning if isinstance(command, Generate) else Tuning()
                        asked = _Asked(command, Control(tuning))
                        self._asked.append(asked)
                        self._queue.put(asked)
        except ProtocolError as error:
            log.error("the client sent %s", error)
        if quitting:
            time.sleep(2 * patience)  # the main thread leaves before, unless it hangs and the client is gone
        os._exit(0)


def main() -> None:
    """Entry of the engine process."""
    # Whatever prints to stdout, native code included, must not fall between the frames.
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
        except BaseException:  # noqa: BLE001  whatever it is, the client must see the process end
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)


if __name__ == "__main__":
    main()
