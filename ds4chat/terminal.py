"""What the terminal at the other end of a stream can do. It stands on nothing of ours."""

from __future__ import annotations

import os
from typing import TextIO

_WITHOUT = ("dumb", "unknown")
"""Values of TERM for a terminal that only writes one line after another."""


def takes_escapes(stream: TextIO) -> bool:
    """The stream is a terminal that knows escape sequences: the cursor can be moved and text be bold."""
    try:
        return stream.isatty() and os.environ.get("TERM", "").lower() not in _WITHOUT
    except (AttributeError, ValueError):  # not a stream, or closed
        return False
