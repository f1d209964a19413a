"""One door to all constructed files."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny import deepseek4, gemma4, llama, mamba, mimo2, qwen3next, qwen35

KINDS: dict[str, Callable[..., None]] = {
    "deepseek4": deepseek4.write_target,
    "deepseek4-nextn": deepseek4.write_nextn,
    "deepseek4-support": deepseek4.write_support,
    "deepseek4-ds4": deepseek4.write_ds4_support,
    "deepseek4-random": deepseek4.write_random,
    "qwen35-nextn": qwen35.write_nextn,
    "qwen35-random": qwen35.write_random,
    "qwen3next-nextn": qwen3next.write_nextn,
    "mamba-random": mamba.write_random,
    "mimo2-nextn": mimo2.write_nextn,
    "mimo2-random": mimo2.write_random,
    "gemma4": gemma4.write_target,
    "gemma4-assistant": gemma4.write_assistant,
    "llama": llama.write_target,
    "llama-speaker": llama.write_speaker,
    "llama-draft": llama.write_draft,
    "llama-random": llama.write_random,
    "eagle3": llama.write_eagle3,
}
"""Kind -> its writer, whose keyword arguments are the parameters of the kind."""


def build(kind: str, folder: Path, **parameters: Any) -> Path:
    """Path of the constructed GGUF in ``folder``, made on the first call with these parameters.

    The parameters are those of the kind's writer (see KINDS); they stand in the file's name. Raises KeyError
    for an unknown kind and TypeError for an unknown parameter.
    """
    writer = KINDS[kind]
    bound = inspect.signature(writer).bind(folder, **parameters).arguments
    bound.pop("path")
    label = "-".join(f"{name}={value}" for name, value in sorted(bound.items()))
    if not all(c.isalnum() or c in "-_=." for c in label):
        label = hashlib.sha256(label.encode()).hexdigest()[:12]
    path = folder / f"{kind}{'-' if label else ''}{label}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        writer(partial, **parameters)
        partial.replace(path)
    return path
