"""The one error of the store, and what SQLite's and the system's errors mean for the user."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from pathlib import Path
from typing import Literal

from ds4chat.text import one_line

Trouble = Literal[
    "newer", "read-only", "full", "locked", "corrupt", "moved", "gone", "exists", "input", "other"
]
"""newer: written by a later ds4chat. moved: the file is no longer in its place. gone: what was asked for does
not exist. exists: a file of that name is there. input: a file to be imported, or a place to export to, is not
usable."""

_ROOM = 64 << 10
"""Bytes that the smallest write may need, log and index files included."""


class StoreError(Exception):
    """Something could not be kept, found, read or written. The text is a sentence for the user: what happened
    and what to do."""

    def __init__(self, sentence: str, kind: Trouble = "other") -> None:
        super().__init__(sentence)
        self.kind: Trouble = kind


DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What Python's sqlite3 raises. The second comes of a damaged schema: SQLite quotes it in its message, which
is then no UTF-8."""


def from_sqlite(error: sqlite3.Error | UnicodeDecodeError, path: Path | None) -> StoreError:
    """What an error of SQLite means, as a sentence."""
    # Extended codes hold the primary one in their low byte.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    place = f"The database {one_line(path)}" if path else "The conversations kept in memory"
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_room(path)):
        return StoreError(
            f"{place} cannot grow: the disk is full. Free some space; what is not written yet stays in "
            "memory and is written then.",
            "full",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{place} is locked by another program. Close it there, or wait until it has finished.", "locked"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(
            f"{place} cannot be written. Make the file and its folder writable, or set DS4CHAT_HOME to a "
            "folder that is.",
            "read-only",
        )
    if isinstance(error, UnicodeDecodeError):
        code, why = sqlite3.SQLITE_CORRUPT, "text in it is no UTF-8"
    else:
        why = str(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "decode to UTF-8" in why:
        return StoreError(
            f"{place} is damaged ({why}). It was left as it is: put a backup in its place, or move it away "
            'to begin a new one. The program sqlite3 can save what is readable with its command ".recover".',
            "corrupt",
        )
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError("The conversation or message was deleted meanwhile.", "gone")
    return StoreError(f"{place} cannot be used: {error}. Check the disk, then start ds4chat again.")


def damaged_value() -> StoreError:
    """What a value of a kind that was never written means."""
    return StoreError(
        "The database is damaged: it holds a value that ds4chat never wrote there. It was left as it is: put "
        'a backup in its place. The program sqlite3 can save what is readable with its command ".recover".',
        "corrupt",
    )


def no_conversation(number: int) -> StoreError:
    """What is said of a number that no conversation has."""
    return StoreError(
        f'There is no conversation {number}. "ds4chat logs list" shows those there are; in the chat, '
        "Ctrl+B does.",
        "gone",
    )


def _has_no_room(path: Path | None) -> bool:
    """Where its index file does not fit, SQLite reports an input/output error instead of a full disk."""
    try:
        return path is not None and shutil.disk_usage(path.parent).free < _ROOM
    except OSError:
        return False


def from_system(error: OSError, doing: str) -> StoreError:
    """What an error of the system means, as a sentence that begins with ``doing``, such as "The file x cannot
    be written"."""
    reason = (error.strerror or str(error)).lower()
    kind: Trouble = "other"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = "full"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        kind = "read-only"
    return StoreError(f"{doing}: {reason}.", kind)
