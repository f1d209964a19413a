"""The log file: where llama.cpp's lines and ours go, so that they reach neither the screen nor stdout."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from pathlib import Path

from ds4chat.files import open_to_append, user_path
from ds4chat.settings import paths
from ds4chat.settings.schema import Settings
from ds4chat.text import one_line, printable

LOG_NAME = "ds4chat.log"
MAX_BYTES = 4 << 20


class LineFormatter(logging.Formatter):
    """A record on one line with its traceback below it, all printable: logged text comes from files, servers
    and llama.cpp, and may neither forge a line nor control the terminal that shows the log."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_path(settings: Settings) -> Path:
    """The log file of these settings. Creates nothing."""
    return user_path(settings.log_file) if settings.log_file else paths.folder("log") / LOG_NAME


def usable_log(path: Path) -> tuple[Path, str]:
    """``path``, ready to be appended to, and an empty sentence; or the null device and the reason.

    A log that cannot be written must not keep the engine from starting.
    """
    try:
        paths.made(path.parent)
        os.close(open_to_append(path))
    except (OSError, paths.FolderError) as error:
        why = str(error)
        if isinstance(error, OSError):
            why = f"{path} cannot be written: {error.strerror or error}. Make it writable."
        return Path(os.devnull), f"No log is kept. {why} Or name another file with log-file."
    return path, ""


def log_to_file(settings: Settings) -> None:
    """Send all logging of this process to the log file. If it cannot be written, say so once and drop the
    log."""
    path, problem = usable_log(log_path(settings))
    handler: logging.Handler
    if problem:
        print(f"ds4chat: {problem}", file=sys.stderr)
        handler = logging.NullHandler()
    else:
        handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8"
        )
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers.clear()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
