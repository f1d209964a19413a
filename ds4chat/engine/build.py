"""How to install llama.cpp: again where it cannot be used, and for a GPU where a card is idle."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from ds4chat.engine.events import Emit, Notice
from ds4chat.errors import UserFacingError
from ds4chat.settings import paths

log = logging.getLogger(__name__)

PACKAGE = "llama-cpp-python"
WITHOUT_GPU = {"CPU", "BLAS", "RPC"}
"""Backends of ggml that use no GPU of this machine."""
TOLD = "nvidia-told"
"""Name of the empty file in the cache folder that says that the advice was given."""


def rebuild(option: str) -> str:
    """The shell command that builds llama.cpp with this CMake option, such as GGML_CUDA.

    pip would use a wheel that it built before, whatever CMAKE_ARGS says: --no-cache-dir and --no-binary make
    it compile.
    """
    from importlib import metadata  # slow to import, and rarely needed

    return (
        f'CMAKE_ARGS="-D{option}=on" {shlex.quote(sys.executable)} -m pip install --no-cache-dir '
        f"--force-reinstall --no-deps --no-binary {PACKAGE} {PACKAGE}=={metadata.version(PACKAGE)}"
    )


def unusable(error: Exception) -> UserFacingError:
    """The error for a llama.cpp that is missing, cannot be loaded, or is of another version and lacks a
    function. ``error``: what the import raised."""
    return UserFacingError(
        f"llama.cpp cannot be loaded: {error}. Install {PACKAGE} again, in the version that ds4chat "
        "requires; docs/gpu.md says how."
    )


def has_nvidia_card(root: Path = Path("/")) -> bool:
    """Whether this machine has an NVIDIA card: by the driver's files, or by nvidia-smi where the driver is
    another system's, as in WSL. ``root``: the folder of /proc and /dev."""
    cards = root / "proc/driver/nvidia/gpus"
    try:
        listed = any(cards.iterdir())
    except OSError:
        listed = False
    return listed or (root / "dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def tell_of_idle_card(backends: Collection[str], emit: Emit) -> None:
    """Say, once for this user, that there is an NVIDIA card and a llama.cpp that can use no GPU.
    ``backends``: names of those that it was built with; empty where that is not known."""
    if not backends or set(backends) - WITHOUT_GPU or not has_nvidia_card():
        return
    try:
        (paths.made_folder("cache") / TOLD).touch(exist_ok=False)
    except FileExistsError:
        return
    except (OSError, paths.FolderError) as error:
        log.warning("the NVIDIA card here is idle; no notice says so, since it would come again (%s)", error)
        return
    emit(
        Notice(
            "info",
            "This machine has an NVIDIA card, and llama.cpp was built here for the CPU alone. With the CUDA "
            f"toolkit installed, this command builds it for the card: {rebuild('GGML_CUDA')}",
        )
    )
