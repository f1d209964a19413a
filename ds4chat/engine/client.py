"""A UI's handle on the engine process: start it, send commands, drain events.

The process is a new interpreter, never a fork: a native abort, an out-of-memory kill or a hang in it costs
the reply in flight and nothing else. Its stderr, to which llama.cpp and ggml print, goes to the log file;
where that cannot be written, the engine runs without one.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, TypeVar

from ds4chat.engine.events import Command, Ended, EngineDied, Event, Generate, Load, LoadFailed, Notice, Quit
from ds4chat.engine.rpc import lost
from ds4chat.engine.wire import ProtocolError, decode_event, encode, read_frames
from ds4chat.files import open_to_append

Kind = TypeVar("Kind", bound=Event)

LOG_TAIL = 20
"""Lines of the log that come with an EngineDied."""

CLOSE_S = 2.0
"""Seconds that close() waits for the process to leave before it is killed: the user waits, too."""

GATHER_S = 0.05
"""Seconds that events gather before they are read: as long as the shortest frame of a UI. Where the engine's
threads use every core, a reader that wakes up for each step interrupts them."""


class EngineClient:
    """One engine process. All methods may be called from any thread; drain() from one at a time."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self._events: deque[Event] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Frames for the process, and None for the end of its commands."""
        self._reply: int | None = None
        self._rpc: tuple[str, ...] = ()
        """RPC servers of the load that was sent last."""
        self._closing = False
        self._log_start: int | None = None
        """Where this process's lines begin in the log; None while it runs without a log."""
        self._said_no_log = False

    @property
    def alive(self) -> bool:
        """The process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id; None when it was never started."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process, unless it runs. Raises OSError when it cannot be started."""
        if self.alive:
            return
        self._closing = False
        self._reply = None
        log = self._open_log()
        try:
            process = subprocess.Popen(
                # -P: a module of the same name in the working directory must not be run instead.
                [sys.executable, "-P", "-m", "ds4chat.engine.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if log is None else log,
                # The terminal's signals are the chat's to handle.
                start_new_session=True,
            )
        finally:
            if log is not None:
                log.close()
        self._process = process
        self._outbox.put(None)  # ends the writer of a process that died
        self._outbox = queue.SimpleQueue()
        assert process.stdin is not None and isinstance(process.stdout, BufferedReader)
        threading.Thread(
            target=_write, args=(process.stdin, self._outbox), name="commands", daemon=True
        ).start()
        threading.Thread(
            target=self._read, args=(process, process.stdout), name="events", daemon=True
        ).start()

    def send(self, command: Command) -> None:
        """Send one command, without waiting for an engine that does not read. A process that is gone does not
        get it; its EngineDied says so."""
        if isinstance(command, Generate):
            self._reply = command.reply
        if isinstance(command, Load):
            self._rpc = command.rpc
        if self._process is not None:
            self._outbox.put(encode(command))

    def drain(self) -> list[Event]:
        """Every event since the last call, in order; never waits."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def wait_for(self, kind: type[Kind], seconds: float) -> tuple[Kind | None, list[Event]]:
        """The next event of a kind, and all events up to it; later ones stay for the next call.

        None when time runs out, or when the engine died or a load failed instead.
        """
        seen: list[Event] = []
        deadline = time.monotonic() + seconds
        while True:
            if self._events:
                event = self._events.popleft()
                seen.append(event)
                if isinstance(event, kind):
                    return event, seen
                if isinstance(event, EngineDied | LoadFailed):
                    return None, seen
            elif time.monotonic() > deadline:
                return None, seen
            else:
                time.sleep(0.005)

    def kill(self) -> None:
        """End the process at once, without asking; an EngineDied follows."""
        if self.alive and self._process:
            self._process.kill()

    def close(self, seconds: float = CLOSE_S) -> None:
        """Have the process leave; kill it where it does not within ``seconds``. It keeps the conversation's
        state if there is time. No EngineDied follows."""
        self._closing = True
        process = self._process
        if process is None:
            return
        self.send(Quit(seconds))
        self._outbox.put(None)  # the child leaves at the end of its commands, whatever it does
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            # A process that waits for a disk is only killed when the disk answers: not waited for.
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)

    def _read(self, process: subprocess.Popen[bytes], stream: BufferedReader) -> None:
        broken = ""
        try:
            for payload in read_frames(stream, GATHER_S):
                event = decode_event(payload)
                if isinstance(event, Ended) and event.reply == self._reply:
                    self._reply = None
                self._events.append(event)
        except ProtocolError as error:
            broken = str(error)
            process.kill()
        except (OSError, ValueError):
            pass
        code = process.wait()
        if not self._closing and process is self._process:
            self._events.append(self._death(code, broken))

    def _open_log(self) -> IO[bytes] | None:
        """The log, open for the process to append to. None where it cannot be written, with a Notice the
        first time until it can be written again."""
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = open_to_append(self.log_path)
        except OSError as error:
            self._log_start = None
            if not self._said_no_log:
                self._said_no_log = True
                reason = error.strerror or str(error)
                self._events.append(
                    Notice(
                        "warning",
                        f"The log {self.log_path} cannot be written ({reason}), so the engine runs without "
                        "one. Make room or give write permission, or name another file with --log-file.",
                    )
                )
            return None
        self._said_no_log = False
        log = os.fdopen(descriptor, "ab")
        self._log_start = log.tell()
        return log

    def _death(self, code: int, broken: str) -> EngineDied:
        name = ""
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
        if broken:
            why = f"it sent something that is no event ({broken})"
        elif name == "SIGKILL":
            why = "it was killed (SIGKILL), most often because memory ran out"
        elif name == "SIGABRT" and (gone := lost(self._rpc)):
            servers = " and ".join(gone)
            why = f"the RPC server {servers} was lost, and llama.cpp cannot go on without it (SIGABRT)"
        elif name == "SIGABRT":
            why = "llama.cpp aborted it (SIGABRT)"
        elif name:
            why = f"it was ended by {name}"
        else:
            why = f"it left with exit code {code}"
        unasked = "" if self._reply is None else ", and this turn is not sent again unless you /retry it"
        last_words = "" if self._log_start is None else "; the log has llama.cpp's last words"
        return EngineDied(
            reply=self._reply,
            exit_code=None if name else code,
            signal=name,
            message=(
                f"The engine stopped: {why}. Everything that came so far is kept{unasked}. Load the model "
                f"again to go on{last_words}."
            ),
            log_tail=tuple(self._tail()),
        )

    def _tail(self) -> list[str]:
        """The last lines of this process in the log."""
        if self._log_start is None:
            return []
        try:
            with self.log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - 8192))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-LOG_TAIL:]


def _write(stream: IO[bytes], outbox: queue.SimpleQueue[bytes | None]) -> None:
    """Send frames as they come, and close the stream after the last. Where the process is gone, the reader of
    its events makes the EngineDied."""
    with suppress(OSError, ValueError):
        while (frame := outbox.get()) is not None:
            stream.write(frame)
            stream.flush()
    with suppress(OSError):
        stream.close()
