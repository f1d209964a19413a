"""Report native crashes, which the crashed process itself cannot.

llama.cpp ends the process on some files and in some states (an assertion, a fault, no memory). Commands that
run it in their own process are therefore forked before anything is loaded: the parent waits, without threads,
and reports how the child ended. That costs a millisecond.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

from ds4chat.commands.running import RUN_ERROR, say

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals that may be sent to the parent only, which passes them on."""
_FROM_KERNEL = 0x80  # SI_KERNEL


def supervised() -> int | None:
    """None in the child, which does the work; in the parent, the exit code, once the child has ended.

    None without a fork where that is unsafe (macOS's frameworks, a process with threads) or unavailable: a
    crash then ends this process.
    """
    if not sys.platform.startswith("linux") or threading.active_count() != 1:
        return None
    sys.stdout.flush()
    sys.stderr.flush()
    ends, alive = os.pipe()
    awaited = {signal.SIGCHLD, *(getattr(signal, name) for name in PASSED_ON)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    # Whoever started this process may have set SIGCHLD to be ignored: then a child's end could not be waited
    # for.
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        worker = os.fork()
    except OSError:  # no memory or too many processes: run unguarded
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
    """The worker's exit status; signals that arrive in the meantime are passed on to it."""
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
    """End this process when its parent is gone."""
    os.read(ends, 1)
    os._exit(RUN_ERROR)


def _tell(number: int) -> int:
    """Report what ended the worker; the exit code."""
    if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        # Requested: end in the same way, so that the sender sees the expected status.
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
            "Try another or a shorter prompt, a lower context length (-c), or free memory. If it happens "
            "with every prompt, download or convert the file again. The log may say more."
        )
    say(f"The engine stopped: {why}. The output above is incomplete. {advice}")
    return RUN_ERROR
