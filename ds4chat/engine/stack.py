"""A call on a stack of its own size, for native code whose recursion grows with its input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ds4chat.engine import machine

Result = TypeVar("Result")

SMALLEST = 1 << 20
"""Bytes of stack that every thread has left; a call that needs less is made in the caller's thread."""

ANY_MACHINE = 4 << 30
"""Bytes of memory to assume where the system does not say."""

_sizing = threading.Lock()


class NoStackError(Exception):
    """This machine cannot give a stack of that size."""


def call(function: Callable[[], Result], stack: int) -> Result:
    """What ``function`` returns or raises, run with ``stack`` bytes of stack. Raises NoStackError.

    The system gives memory only to the part of a stack that is used, so the worst case costs address space
    alone. More than half of the machine's memory is refused: it might be used.
    """
    if stack <= SMALLEST:
        return function()
    if stack > (machine.memory() or ANY_MACHINE) // 2:
        raise NoStackError
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

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
    if errors:
        raise errors[0]
    return results[0]
