"""The sampling that a model's publisher asks for, from its file."""

from __future__ import annotations

from ds4chat.models.gguf_file import Header

KEYS = {
    "temp": "general.sampling.temp",
    "top-k": "general.sampling.top_k",
    "top-p": "general.sampling.top_p",
    "min-p": "general.sampling.min_p",
    "repeat-penalty": "general.sampling.penalty_repeat",
}
"""Option -> key of the metadata, as in llama.cpp (gguf-py/gguf/constants.py, Keys.General)."""


def sampling_of(header: Header) -> dict[str, float]:
    """Option -> number, for those that the file names; anything but a number is skipped."""
    found = {option: header.metadata.get(key) for option, key in KEYS.items()}
    return {
        option: round(value, 6) if isinstance(value, float) else value  # stored in single precision
        for option, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
