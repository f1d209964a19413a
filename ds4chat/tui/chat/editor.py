"""The user's own editor for a long prompt."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ds4chat.text import without_controls


class EditorError(Exception):
    """The text could not be edited; a sentence that says why and what to do."""


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """The words that start the user's editor. Raises EditorError."""
    named = environ.get("VISUAL") or environ.get("EDITOR")
    if not named:
        raise EditorError("No editor is named: set EDITOR, as in EDITOR=nano, and start ds4chat again.")
    try:
        words = shlex.split(named)
    except ValueError:
        words = []
    if not words:
        raise EditorError(f"EDITOR is {named}, which is not a program: set it to one, as in EDITOR=nano.")
    return words


def edited(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """``text`` as edited by the user; waits until the editor is closed. Raises EditorError."""
    command = editor_command(environ)
    try:
        with tempfile.TemporaryDirectory(prefix="ds4chat-") as folder:
            file = Path(folder) / "prompt.md"
            file.write_text(text, encoding="utf-8")
            code = subprocess.run([*command, str(file)], check=False).returncode
            if code:
                raise EditorError(f"{command[0]} ended with code {code}, so the prompt was not changed.")
            return without_controls(file.read_text(encoding="utf-8", errors="replace")).rstrip("\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise EditorError(f"{command[0]} cannot edit the prompt: {reason}. Set EDITOR to another.") from None
