"""The one error of this room, and how text that came out of a file is shown in a sentence."""

from __future__ import annotations

import os

_SHOWN = 60


class ModelFileError(Exception):
    """A model file, or a pair of them, cannot be used. The text is a sentence for the user: what is wrong
    and what to do."""


def shown(text: object, limit: int = _SHOWN) -> str:
    """``text`` fit for a terminal: control characters and undecodable bytes escaped, at most ``limit`` long.

    Names and metadata come out of files that anyone may have made; printed raw they could move the cursor
    or set the window's title.
    """
    if isinstance(text, os.PathLike):
        text = os.fspath(text)
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    plain = str(text).encode("utf-8", "backslashreplace").decode("utf-8")
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in plain)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def shown_path(path: object) -> str:
    """A path fit for a terminal, whole."""
    return shown(path, limit=4096)


def shown_size(n_bytes: int) -> str:
    """A size in decimal units: "3.81 GB"."""
    for exponent, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if n_bytes >= 10**exponent:
            return f"{n_bytes / 10**exponent:.3g} {unit}"
    return f"{n_bytes} bytes"
