"""The system's clipboard through its own tool, for terminals that do not support OSC 52."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

SECONDS = 2.0


def clipboard_command(environ: Mapping[str, str], platform: str) -> list[str] | None:
    """The tool that copies its standard input; None if there is none, or over ssh, where the clipboard is on
    another machine."""
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return None
    choices: list[list[str]] = []
    if platform == "darwin":
        choices.append(["pbcopy"])
    if environ.get("WAYLAND_DISPLAY"):
        choices.append(["wl-copy"])
    if environ.get("DISPLAY"):
        choices += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    if environ.get("WSL_DISTRO_NAME"):
        choices.append(["clip.exe"])
    return next((choice for choice in choices if shutil.which(choice[0])), None)


def copy(text: str) -> bool:
    """Copy with the system's tool; False if there is none or it failed. Takes up to SECONDS."""
    command = clipboard_command(os.environ, sys.platform)
    if command is None:
        return False
    try:
        # The tool may keep running to serve the clipboard: do not wait for its output to close.
        subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True
