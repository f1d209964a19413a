"""Where the engine's process logs to: the log file, or nowhere where that cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

from ds4chat.files import open_to_append
from ds4chat.settings import paths


def usable_log(path: Path) -> tuple[Path, str]:
    """``path`` made ready to be appended to, and nothing to say; else the null device and a sentence why.

    A chat whose log cannot be written is still a chat: its engine must start.
    """
    try:
        paths.made(path.parent)
        os.close(open_to_append(path))
    except (OSError, paths.FolderError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Path(os.devnull), (
            f"No log is kept: {path} cannot be written ({reason.lower().rstrip('.')}). Make its folder "
            "writable, or name another file with log-file."
        )
    return path, ""
