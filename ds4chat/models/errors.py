"""The error for unusable model files, and the format of sizes in its sentences."""

from __future__ import annotations

from ds4chat.errors import UserFacingError


class ModelFileError(UserFacingError):
    """A model file, or a pair of them, cannot be used."""


def shown_size(n_bytes: int) -> str:
    """A size in decimal units: "3.81 GB"."""
    for exponent, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if n_bytes >= 10**exponent:
            return f"{n_bytes / 10**exponent:.3g} {unit}"
    return f"{n_bytes} bytes"
