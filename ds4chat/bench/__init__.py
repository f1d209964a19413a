"""``ds4chat bench``: whether MTP pays on this machine with this model, on which text, and at which depth."""

from ds4chat.bench.command import run

__all__ = ["run"]
