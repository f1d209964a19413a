"""The branches of one conversation: which path is shown, and where to fork."""

from __future__ import annotations

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from ds4chat.store import Store
from ds4chat.text import one_line
from ds4chat.tui.history import rows
from ds4chat.tui.history.store_sheet import StoreSheet
from ds4chat.tui.kit.row_list import RowList


class BranchScreen(StoreSheet[int | None]):
    """Dismissed with the conversation that a fork made, or None."""

    TITLE_TEXT = "Branches"
    HINT = "[b]Enter[/b] shows this branch · [b]f[/b] forks here into a new conversation · [b]Esc[/b] closes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="branches.close"),
        Binding("f", "fork", "Fork here", id="branches.fork"),
    ]

    def __init__(
        self, store: Store, conversation: int, message: int | None = None, *, locked: bool = False
    ) -> None:
        """``message`` is the current row at first; None: the end of the path shown. ``locked``: a reply is
        being written to the conversation, so the path cannot change."""
        super().__init__(store)
        self._key = conversation
        self._message = message
        self._locked = locked
        self._branches: list[rows.Branch] = []

    def compose_sheet(self) -> ComposeResult:
        yield RowList(id="history-list")
        yield Static(id="history-state", markup=False)

    def on_mount(self) -> None:
        self._read_tree()

    @work(exit_on_error=False)
    async def _read_tree(self) -> None:
        read = await self.in_store(
            lambda store: (
                store.conversations.get(self._key).active_leaf,
                store.conversations.tree(self._key),
            )
        )
        if read is None:
            return
        leaf, nodes = read
        found = self._branches = rows.branches(nodes, leaf)
        looks = self._looks
        wanted = leaf if self._message is None else self._message
        last_shown = max((i for i, branch in enumerate(found) if branch.shown), default=0)
        at = next((i for i, branch in enumerate(found) if branch.node.id == wanted), last_shown)
        self._list.show(len(found), lambda i, width: [rows.branch_row(found[i], width, looks)], current=at)

    @on(RowList.Moved)
    def show_preview(self) -> None:
        """Show how the current message begins."""
        if self._branches and self._list.current is not None:
            preview = self._branches[self._list.current].node.preview
            self.query_one("#history-state", Static).update(one_line(preview))

    @on(RowList.Chosen)
    @work(exit_on_error=False)
    async def show_branch(self) -> None:
        """Show the branch that the message is on."""
        node = self._node
        if self._locked:
            self.warn_of_reply()
        elif await self.in_store(lambda store: store.conversations.show_branch(node)) is not None:
            self.dismiss(None)

    @work(exit_on_error=False)
    async def action_fork(self) -> None:
        """Copy everything up to this message into a new conversation."""
        if self._branches:
            node = self._node
            made = await self.in_store(lambda store: store.conversations.fork(node))
            if made is not None:
                self.dismiss(made)

    @property
    def _node(self) -> int:
        """The current message."""
        return self._branches[self._list.current or 0].node.id
