"""What the screens over the store share: a list of rows, and reading and changing the store in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, TypeVar

from ds4chat.store import Store, StoreError
from ds4chat.store.database import connect
from ds4chat.tui.history.rows import Looks
from ds4chat.tui.kit.row_list import RowList
from ds4chat.tui.kit.sheet import Result, Sheet, StyleSheets

T = TypeVar("T")


class StoreSheet(Sheet[Result]):
    """A sheet with a RowList ``history-list`` over a store."""

    AUTO_FOCUS = "#history-list"
    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    @property
    def _list(self) -> RowList:
        return self.query_one("#history-list", RowList)

    @property
    def _looks(self) -> Looks:
        look = self._list.look
        return Looks(look("muted"), look("hit"), look("mark"))

    async def in_store(self, do: Callable[[Store], T]) -> T | None:
        """The result of ``do``, called in a thread; None after a notice if it raised StoreError."""
        try:
            return await asyncio.to_thread(_with_own_connection, self._store, do)
        except StoreError as error:
            self.notify(str(error), severity="warning", markup=False)
            return None

    def warn_of_reply(self) -> None:
        """Say that the conversation cannot be changed while a reply is written to it."""
        self.notify("A reply is being written to this conversation. Stop it first.", severity="warning")


def _with_own_connection(store: Store, do: Callable[[Store], T]) -> T:
    """``do(store)`` over another connection to its file, beside which a running reply can be written."""
    if store.path is None:
        return do(store)
    other = Store(connect(store.path))
    try:
        return do(other)
    finally:
        other.close()
