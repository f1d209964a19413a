"""Rows of the database: written with columns by name, read with the types that were written."""

from __future__ import annotations

import sqlite3
from typing import TypeVar

import msgspec

from ds4chat.store.errors import StoreError
from ds4chat.text import encodable

T = TypeVar("T")


def insert(connection: sqlite3.Connection, table: str, **values: object) -> int:
    """Insert a row with these values by column, text made encodable. Returns its number."""
    columns, places = ", ".join(values), ", ".join("?" * len(values))
    made = connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", _stored(values))
    return int(made.lastrowid or 0)


def update(connection: sqlite3.Connection, table: str, number: int | None, **values: object) -> bool:
    """Set these values in the row of that number, text made encodable. Returns whether the row exists."""
    columns = ", ".join(f"{name} = ?" for name in values)
    made = connection.execute(f"UPDATE {table} SET {columns} WHERE id = ?", (*_stored(values), number))
    return made.rowcount > 0


def _stored(values: dict[str, object]) -> tuple[object, ...]:
    return tuple(encodable(value) if isinstance(value, str) else value for value in values.values())


def typed(value: object, kind: type[T]) -> T:
    """A value read from the database, as the type that was written. Raises StoreError if it has another one:
    in a damaged file, text may be bytes and a number text."""
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,))
    except msgspec.ValidationError:
        raise StoreError(
            "The database is damaged: it has a value that ds4chat never wrote there. It was not changed: "
            'restore a backup. The program sqlite3 can save what is readable with its command ".recover".',
            "corrupt",
        ) from None
