"""Which process writes a reply, and whether it is still alive.

A starting ds4chat uses this to tell abandoned replies from those that another one is writing.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

STALE_MS = 10 * 60 * 1000
"""A reply that was not written to for this long is abandoned, if the process cannot be queried. A writer
touches its reply far more often than that."""


def this_process() -> str:
    """What identifies this process: host, boot, process namespace, process id and start time."""
    pid = os.getpid()
    return "|".join((platform.node().replace("|", ""), _boot(), _namespace(), str(pid), _started(pid)))


def lives(owner: str | None, updated_ms: int, now_ms: int) -> bool:
    """Whether the process that ``owner`` identifies may still write its reply, last touched at
    ``updated_ms``."""
    fresh = now_ms - updated_ms < STALE_MS
    parts = (owner or "").split("|")
    if len(parts) != 5:
        return False
    host, boot, namespace, pid, started = parts
    if host != platform.node().replace("|", "") or namespace != _namespace() or not pid.isdigit():
        return fresh
    if boot != _boot():
        return False
    if os.name != "posix":
        # Asking with signal 0 would end the process there.
        return fresh
    if not _exists(int(pid)):
        return False
    # Process ids are reused; with the start time they are unique.
    return started == _started(int(pid)) if started else fresh


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Clock ticks from boot to the process's start; empty if the system does not report it."""
    # The command's name, in parentheses, may contain blanks and parentheses.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
