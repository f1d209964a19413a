"""``ds4chat bench``: whether MTP pays on this machine with this model, on which text, and at which depth."""

import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
from ds4chat.commands.bench.command import run

__all__ = ["run"]
