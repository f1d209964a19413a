"""The machine that this process runs on: its processor and its memory."""

from __future__ import annotations

import ipaddress
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def cores() -> int:
    """Processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def is_this_machine(host: str) -> bool:
    """Whether the name or address of a host means this machine, by its form: nothing is looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().removesuffix(".").rpartition(".")[2] == "localhost"
    return address.is_loopback or address.is_unspecified


def system() -> str:
    """The operating system and the kind of processor, as in ``Linux x86_64``."""
    return f"{platform.system()} {platform.machine()}"


def processor() -> str:
    """The processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(asked, capture_output=True, text=True, timeout=2, check=True).stdout.strip()
    return platform.processor() or platform.machine()


def memory() -> int:
    """Bytes of memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
