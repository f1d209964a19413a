"""``ds4chat --version``: the version, and what the llama.cpp that was built here runs on."""

from __future__ import annotations

from ds4chat import __version__
from ds4chat.commands.guard import supervised
from ds4chat.commands.running import RUN_ERROR, say


def show(*, own_process: bool) -> int:
    """Print it; the exit code: 1 where llama.cpp cannot be loaded. ``own_process``: nothing else runs in this
    process, so that what loads llama.cpp may be forked off."""
    print(f"ds4chat {__version__}", flush=True)
    if own_process and (code := supervised()) is not None:
        return code
    try:
        from ds4chat.engine import llama
    except (ImportError, OSError, RuntimeError) as error:  # llama_cpp raises each of them
        say(f"llama.cpp cannot be loaded: {error}. Install llama-cpp-python again; docs/gpu.md says how.")
        return RUN_ERROR
    print(f"llama.cpp {llama.version()}")
    for name, devices in llama.backends():
        print(f"  {name:<8} {', '.join(devices) or 'no device'}")
    return 0
