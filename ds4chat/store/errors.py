"""The store's error, and sentences for SQLite's and the system's errors."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from pathlib import Path
from typing import Literal

from ds4chat.errors import UserFacingError
from ds4chat.text import one_line

Trouble = Literal[
    "newer", "read-only", "full", "locked", "corrupt", "moved", "gone", "exists", "input", "other"
]
"""newer: written by a later ds4chat. moved: the file is no longer in its place. gone: no such conversation or
message. exists: there is a file of that name. input: a file to import, or a place to export to, cannot be
used."""

_ROOM = 64 << 10
"""Bytes that the smallest write may need, including log and index files."""


class StoreError(UserFacingError):
    """Something could not be stored, found, read or written."""

    def __init__(self, sentence: str, kind: Trouble = "other") -> None:
        super().__init__(sentence)
        self.kind: Trouble = kind


DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What Python's sqlite3 raises. The second is due to a damaged schema: SQLite quotes it in its message, which
then is not UTF-8."""


def from_sqlite(error: sqlite3.Error | UnicodeDecodeError, path: Path | None) -> StoreError:
    """The sentence for an error of SQLite."""
    # The low byte of an extended code is the primary one.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    place = f"The database {one_line(path)}" if path else "The conversations kept in memory"
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_room(path)):
        return StoreError(
            f"{place} cannot grow: the disk is full. Free some space.",
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
        code, why = sqlite3.SQLITE_CORRUPT, "it has text that is not UTF-8"
    else:
        why = str(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "decode to UTF-8" in why:
        return StoreError(
            f"{place} is damaged ({why}). It was not changed: restore a backup, or move it away to start a "
            'new one. The program sqlite3 can save what is readable with its command ".recover".',
            "corrupt",
        )
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError("The conversation or message was deleted in the meantime.", "gone")
    return StoreError(f"{place} cannot be used: {error}. Check the disk, then start ds4chat again.")


def no_conversation(number: int) -> StoreError:
    """The error for a number that no conversation has."""
    return StoreError(
        f'There is no conversation {number}. "ds4chat logs list" lists them; in the chat, Ctrl+B does.',
        "gone",
    )


def _has_no_room(path: Path | None) -> bool:
    """If its index file does not fit, SQLite reports an input/output error instead of a full disk."""
    try:
        return path is not None and shutil.disk_usage(path.parent).free < _ROOM
    except OSError:
        return False


def from_system(error: OSError, doing: str) -> StoreError:
    """The sentence for an error of the system, which begins with ``doing``, such as "The file x cannot
    be written"."""
    reason = (error.strerror or str(error)).lower()
    kind: Trouble = "other"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = "full"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        kind = "read-only"
    return StoreError(f"{doing}: {reason}.", kind)
