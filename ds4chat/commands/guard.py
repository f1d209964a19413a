"""A sentence for the native crash that no Python code of the crashed process can say.

llama.cpp ends the process on some files and in some states (an assertion, a fault, no memory). Commands that
run it in their own process are therefore forked before anything is loaded: what was started stays behind,
asleep and without threads, and only tells how the other ended. That costs a good file a millisecond.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

RUN_ERROR = 1
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals that may be sent to one process, here to the one that only waits."""
_FROM_KERNEL = 0x80  # SI_KERNEL


def supervised() -> int | None:
    """None in the process that is to do the work; in the one that waits, the exit code, when that is over.

    Where a fork is not safe (macOS's frameworks, a process with threads) or not known, None alone: a crash
    then ends the process as the system does it.
    """
    if not sys.platform.startswith("linux") or threading.active_count() != 1:
        return None
    sys.stdout.flush()
    sys.stderr.flush()
    ends, alive = os.pipe()
    awaited = {signal.SIGCHLD, *(getattr(signal, name) for name in PASSED_ON)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    # Who started this process may have it ignore its children's ends: then nothing would ever tell of one.
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        worker = os.fork()
    except OSError:  # no memory or no room for processes: then without
        os.close(ends)
        os.close(alive)
        signal.signal(signal.SIGCHLD, children)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    if worker == 0:
        os.close(alive)
        signal.signal(signal.SIGCHLD, children)
        threading.Thread(target=_leave_with, args=(ends,), name="guard", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    os.close(ends)
    code = os.waitstatus_to_exitcode(_wait(worker, awaited))
    os.close(alive)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return code if code >= 0 else _tell(-code)


def _wait(worker: int, awaited: set[signal.Signals]) -> int:
    """The status with which the worker ends; signals that come meanwhile are passed on to it."""
    while True:
        came = signal.sigwaitinfo(awaited)
        if came.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(worker, os.WNOHANG)
            if ended:
                return status
        elif came.si_signo != signal.SIGINT or came.si_code != _FROM_KERNEL:
            # Ctrl-C comes from the terminal, which sends it to the worker too.
            with suppress(ProcessLookupError):
                os.kill(worker, came.si_signo)


def _leave_with(ends: int) -> None:
    """End this process when the one that waits for it is gone, however it went."""
    os.read(ends, 1)
    os._exit(RUN_ERROR)


def _tell(number: int) -> int:
    """Say what ended the worker; the exit code."""
    if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        # Asked for: whoever did so sees this process end as if it had been alone.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    why = {
        "SIGABRT": "llama.cpp aborted (SIGABRT)",
        "SIGKILL": "it was killed (SIGKILL), most often because memory ran out",
    }.get(name, f"it was ended by {name}")
    advice = "Run the command again."
    if name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL"):
        advice = (
            "Try another or a shorter prompt, a lower context length (-c), or free memory. Where it happens "
            "with every prompt, download or convert the file again. The log may say more."
        )
    print(f"ds4chat: The engine stopped: {why}. What came before is all there is. {advice}", file=sys.stderr)
    return RUN_ERROR
