"""The engine process: commands come in on stdin, events go out on stdout, everything else goes to the log.

Two threads. The reader takes commands as they come: a Cancel or a Retune acts at once, Load and Generate
wait in a queue. The main thread works the queue; llama.cpp runs there.

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
from typing import BinaryIO

from ds4chat.engine.events import (
    Cancel,
    Command,
    Event,
    Generate,
    Load,
    LoadFailed,
    Notice,
    ProtocolError,
    Quit,
    Replay,
    Retune,
    Tuning,
    decode_command,
    encode,
    read_frame,
    refused,
)
from ds4chat.engine.sessions import AnySession, Control, LoadError, open_session

log = logging.getLogger("ds4chat.engine")

IDLE_S = 2.0
"""Without a command for this long, what the next start can use is put on disk."""

KEEP_SHARE = 0.75
"""Of the time that the client waits after a Quit, what keeping the state may take: leaving needs the rest."""


class Engine:
    """Works the commands of one client."""

    def __init__(self, commands: BinaryIO, events: BinaryIO) -> None:
        self._commands = commands
        self._events = events
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: tuple[int, Control] | None = None
        self._loading = False
        self._cancelled: set[int] = set()
        self._keep_until: float | None = None
        """After a Quit: when keeping the conversation's state is given up."""
        self._writing = threading.Lock()

    def run(self) -> None:
        """Work until Quit."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        session: AnySession | None = None
        while True:
            command = self._next(session)
            if isinstance(command, Quit):
                if session:
                    session.keep(self._hurried)
                return
            if isinstance(command, Load):
                if session:
                    session.keep(self._hurried)
                    session.close()
                    session = None
                self._loading = True
                try:
                    session, loaded = open_session(command, self.emit, forgiving=True, resuming=True)
                    self.emit(loaded)
                except LoadError as error:
                    self.emit(LoadFailed(str(error)))
                self._loading = False
            elif isinstance(command, Generate):
                if session is None:
                    self.emit(
                        refused(
                            command.reply, "No model is loaded. Choose one with /model, then send it again."
                        )
                    )
                    continue
                control = Control(command.tuning)
                with self._lock:
                    self._running = (command.reply, control)
                    if command.reply in self._cancelled:
                        control.cancel()
                session.generate(command, control, self.emit)
                with self._lock:
                    self._running = None
                    self._cancelled.discard(command.reply)
            elif isinstance(command, Replay):
                if session is None:
                    self.emit(Notice("warning", "No model is loaded, so there is nothing to check."))
                else:
                    control = Control(Tuning())
                    with self._lock:
                        self._running = (command.reply, control)
                    session.replay(command.reply, control, self.emit)
                    with self._lock:
                        self._running = None

    def _next(self, session: AnySession | None) -> Command:
        """The next command. When none has come for a while, the conversation's state is kept."""
        if session:
            try:
                return self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                session.keep(self._hurried)
        return self._queue.get()

    def _hurried(self) -> bool:
        """The client waits for the answer to a command or, after a Quit, has waited for most of its time."""
        if self._keep_until is not None:
            return time.monotonic() > self._keep_until
        return not self._queue.empty()

    def emit(self, event: Event) -> None:
        """Send one event."""
        frame = encode(event)
        with self._writing:
            self._events.write(frame)
            self._events.flush()

    def _read(self) -> None:
        quitting, patience = False, 0.0
        try:
            while (payload := read_frame(self._commands)) is not None:
                command = decode_command(payload)
                with self._lock:
                    running = self._running
                    if isinstance(command, Cancel):
                        if running and running[0] == command.reply:
                            running[1].cancel()
                        else:
                            self._cancelled.add(command.reply)
                        continue
                    if isinstance(command, Quit):
                        # Neither a reply nor a load that still runs is waited for: there is nothing to keep.
                        quitting = running is None and not self._loading
                        self._keep_until = time.monotonic() + KEEP_SHARE * command.seconds
                        patience = command.seconds
                    if isinstance(command, Retune):
                        if running:
                            running[1].tuning = command.tuning
                        continue
                self._queue.put(command)
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
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
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
