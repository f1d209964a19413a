"""``ds4chat bench``: whether MTP pays on this machine with this model, on which text, and at which depth; or
how fast a server is."""

from __future__ import annotations

from ds4chat.commands.options import BenchOptions
from ds4chat.settings.schema import Settings

__all__ = ["run"]


def run(settings: Settings, options: BenchOptions) -> int:
    """Measure and report; the exit code. Raises UsageError."""
    if settings.server:
        from ds4chat.commands.bench.remote import run as run_remote

        return run_remote(settings, options)
    import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
    from ds4chat.commands.bench.command import run as run_here

    return run_here(settings, options)
