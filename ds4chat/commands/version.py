"""``ds4chat --version``: the version, and what the llama.cpp that was built here runs on."""

from __future__ import annotations

from ds4chat import __version__
from ds4chat.commands.guard import supervised


def show(*, own_process: bool) -> int:
    """Print it; the exit code. Raises UserFacingError where llama.cpp cannot be loaded. ``own_process``:
    nothing else runs in this process, so that what loads llama.cpp may be forked off."""
    print(f"ds4chat {__version__}", flush=True)
    if own_process and (code := supervised()) is not None:
        return code
    from ds4chat.engine import llama

    print(f"llama.cpp {llama.version()}")
    for name, devices in llama.backends():
        print(f"  {name:<8} {', '.join(devices) or 'no device'}")
    return 0
