"""One SQLite database: opening, migrating, and transactions that raise errors as sentences.

Write-ahead logging: readers and one writer do not wait for each other, and a killed process loses only its
open transaction. A power cut loses at most what ``durable=False`` wrote since the last durable transaction,
and never damages the file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from ds4chat.store.errors import DATABASE_ERRORS, StoreError, from_sqlite, from_system
from ds4chat.store.schema import APPLICATION_ID, STEPS, VERSION
from ds4chat.text import one_line

FOLDER_MODE = 0o700
FILE_MODE = 0o600
PATIENCE_MS = 3000
"""How long a transaction waits for another process's."""

_WAL_BYTES = 16 << 20


class Database:
    """A connection that any thread may use, one at a time."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path | None, wall: Callable[[], float] = time.time
    ) -> None:
        self.path = path
        """None: in memory."""
        self._wall = wall
        self._place = path.absolute() if path else None
        self._file = _identity(self._place) if self._place else None
        self._connection = connection
        self._lock = threading.RLock()
        self._inside = False
        """A transaction is open."""
        self._durable: bool | None = None

    def now_ms(self) -> int:
        """The time of day, in milliseconds since 1970."""
        return int(self._wall() * 1000)

    def read(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction that sees the database as it is at the first query. Raises StoreError."""
        return self._transaction("BEGIN", durable=None)

    def write(self, *, durable: bool = True) -> AbstractContextManager[sqlite3.Connection]:
        """An atomic transaction; inside another one it becomes part of that.

        ``durable`` waits for fsync, so that it survives a power cut. Raises StoreError, and then nothing is
        changed.
        """
        return self._transaction("BEGIN IMMEDIATE", durable=durable)

    @contextmanager
    def _transaction(self, begin: str, *, durable: bool | None) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        with self._lock:
            if self._inside:
                yield connection
                return
            if durable is not None:
                self._check_place()
            try:
                if durable is not None and durable != self._durable:
                    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                    self._durable = durable
                connection.execute(begin)
                self._inside = True
                try:
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    self._inside = False
                    # SQLite has already rolled back after some errors, such as a full disk.
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except DATABASE_ERRORS as error:
                raise from_sqlite(error, self.path) from error

    def _check_place(self) -> None:
        """Raise StoreError if another file, or none, has the database's name: SQLite would not notice, and
        would keep writing to a file that nobody can find."""
        if self._place is None or self._file is None:
            return
        try:
            found = _identity(self._place)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError:
            return  # it cannot be asked; what is written says more
        if found != self._file:
            raise StoreError(
                f"The database {one_line(self._place)} was moved, replaced or deleted while ds4chat used "
                "it. Put it back; or write this conversation to another place with /export FILE, then start "
                "ds4chat again.",
                "moved",
            )

    def close(self) -> None:
        """Close the connection; the last one of all processes merges the log into the file."""
        with self._lock:
            self._connection.close()


def _identity(path: Path) -> tuple[int, int]:
    """The identity of the file at a path. Raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino


def in_memory(wall: Callable[[], float] = time.time) -> Database:
    """A database that is lost when it is closed."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database = Database(connection, None, wall)
    _settle(connection)
    _migrate(database)
    return database


def connect(path: Path, *, read_only: bool = False, wall: Callable[[], float] = time.time) -> Database:
    """The database in the file ``path``, which is created, or migrated to the current version.

    ``read_only`` opens an existing file and changes nothing, for a folder that cannot be written. Raises
    StoreError; the file is then as it was.
    """
    if path.is_dir():
        raise StoreError(f"{one_line(path)} is a folder where the database should be. Move it away.")
    if not read_only:
        _make(path)
    with ExitStack() as on_error:
        try:
            connection = _open(path, read_only)
            on_error.callback(connection.close)
            version = _check(connection, path)
            database = Database(connection, path, wall)
            if not read_only:
                _write_ahead(connection)
                _settle(connection)
                if version < VERSION:
                    _migrate(database)
            elif version < VERSION:
                raise StoreError(
                    f"The database {one_line(path)} is from an older version of ds4chat and has to be "
                    "upgraded once, for which its folder must be writable.",
                    "read-only",
                )
        except DATABASE_ERRORS as error:
            raise from_sqlite(error, path) from error
        on_error.pop_all()
        return database


def _make(path: Path) -> None:
    """Create the folder and an empty file, both readable by their owner only."""
    try:
        if not path.parent.is_dir():
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        # SQLite's log and index files get the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), FILE_MODE))
        if os.name == "posix" and path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o077:
            path.chmod(FILE_MODE)
    except OSError as error:
        raise from_system(
            error,
            f"The database {one_line(path)} cannot be opened for writing. Make its folder writable, or set "
            "DS4CHAT_HOME to one that is. The system says",
        ) from error


def _open(path: Path, read_only: bool) -> sqlite3.Connection:
    def opened(options: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?{options}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=PATIENCE_MS / 1000,
        )

    if not read_only:
        return opened("mode=rw")
    try:
        connection = opened("mode=ro")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        log = Path(f"{path}-wal")
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or (
            log.exists() and log.stat().st_size
        ):
            raise
        # A write-ahead database needs an index file even for reading. If none can be created and the log is
        # empty, the file contains the whole database.
        return opened("mode=ro&immutable=1")


def _check(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file's schema. Raises StoreError for one that is not ours to use."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if application != APPLICATION_ID and not (empty and version == 0):
        raise StoreError(
            f"{one_line(path)} is a database of another program. Move it away; ds4chat then creates its own."
        )
    if version > VERSION:
        raise StoreError(
            f"The database {one_line(path)} was written by a newer version of ds4chat (its schema is "
            f"{version}, this one knows {VERSION}). Update ds4chat, or set DS4CHAT_HOME to another folder.",
            "newer",
        )
    return version


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turn on write-ahead logging. A file system that does not support it keeps the rollback journal, which
    is as safe but slower."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait by itself while another process changes the mode.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _settle(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    # Overwrite deleted content, because a deleted conversation must not be readable.
    connection.execute("PRAGMA secure_delete = ON")


def _migrate(database: Database) -> None:
    """Apply the missing steps, all of them or none."""
    with database.write() as connection:
        # Another process may have done it while this one waited for the lock.
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        for step in STEPS[version:]:
            for statement in step:
                if callable(statement):
                    statement(connection)
                else:
                    connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(version, VERSION)}")
