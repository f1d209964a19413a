"""A call on a stack of its own size: for native code that recurses as deep as its input is long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

SMALLEST = 1 << 20
"""Bytes of stack that every thread has left; a call that needs less is made where it is asked for."""

_sizing = threading.Lock()


class NoStackError(Exception):
    """This machine cannot give a stack of that size."""


def call(function: Callable[[], Result], stack: int) -> Result:
    """What ``function`` returns or raises, run with ``stack`` bytes of stack. Raises NoStackError.

    The system maps a stack but gives memory only to what is used of it, so asking for the worst case costs
    address space alone. More than half of the machine's memory is refused: it might really be used.
    """
    if stack <= SMALLEST:
        return function()
    if stack > _memory() // 2:
        raise NoStackError
    came: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            came.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            failed.append(error)

    thread = threading.Thread(target=run, name="large stack", daemon=True)
    with _sizing:
        before = threading.stack_size((stack + SMALLEST + 0xFFFF) & ~0xFFFF)
        try:
            thread.start()
        except RuntimeError:
            raise NoStackError from None
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
    return came[0]


def _memory() -> int:
    """Bytes of memory in this machine; where that cannot be asked, what any machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 4 << 30
