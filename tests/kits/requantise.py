"""The demo model in other quantisations, made by llama.cpp from the one that ships."""

from __future__ import annotations

import os
from pathlib import Path

FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
"""llama.cpp's llama_ftype numbers."""


def requantise(source: Path, path: Path, quantisation: str) -> Path:
    """``path``, holding ``source`` in another quantisation. Raises RuntimeError when llama.cpp refuses."""
    import llama_cpp.llama_cpp as C

    from ds4chat.engine.llama import start

    start()
    params = C.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[quantisation]
    params.allow_requantize = True
    if C.llama_model_quantize(os.fsencode(source), os.fsencode(path), params):
        raise RuntimeError(f"llama.cpp could not requantise {source} to {quantisation}")
    return path
