"""The branches of one conversation: which path is shown, and where to fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from ds4chat.store import Node, Store, StoreError
from ds4chat.text import one_line
from ds4chat.tui.history import rows as rows
from ds4chat.tui.kit.row_list import RowList
from ds4chat.tui.kit.sheet import Sheet, StyleSheets


class BranchScreen(Sheet[int | None]):
    """Dismisses with the conversation to stand on, which a fork made; None: the one it was opened with."""

    CSS_PATH: ClassVar[StyleSheets] = ["../kit/sheet.tcss", "screen.tcss"]
    TITLE_TEXT = "Branches"
    HINT = "[b]Enter[/b] shows this branch · [b]f[/b] forks here into a new conversation · [b]Esc[/b] closes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="branches.close"),
        Binding("f", "fork", "Fork here", id="branches.fork"),
    ]

    class Grown(Message):
        """The tree was read."""

        def __init__(self, nodes: list[Node], leaf: int | None) -> None:
            super().__init__()
            self.nodes = nodes
            self.leaf = leaf

    class Done(Message):
        """The work is done, and the screen can go; or it could not be done, and the sentence says why."""

        def __init__(self, made: int | None = None, problem: str = "") -> None:
            super().__init__()
            self.made = made
            self.problem = problem

    def __init__(
        self, store: Store, conversation: int, message: int | None = None, *, locked: bool = False
    ) -> None:
        """Stand on ``message``. ``locked``: a reply is being written here, and the path has to stay."""
        super().__init__()
        self._store = store
        self._key = conversation
        self._message = message
        self._locked = locked
        self._branches: list[rows.Branch] = []

    def compose_sheet(self) -> ComposeResult:
        yield RowList(id="history-list")
        yield Static(id="history-state", markup=False)

    def on_mount(self) -> None:
        self._list.focus()
        self._read_tree()

    @property
    def _list(self) -> RowList:
        return self.query_one("#history-list", RowList)

    @work(thread=True, exclusive=True, group="tree", exit_on_error=False)
    def _read_tree(self) -> None:
        try:
            leaf = self._store.conversations.get(self._key).active_leaf
            nodes = self._store.conversations.tree(self._key)
        except StoreError as error:
            self.post_message(self.Done(problem=str(error)))
        else:
            self.post_message(self.Grown(nodes, leaf))

    def on_branch_screen_grown(self, event: Grown) -> None:
        event.stop()
        found = self._branches = rows.branches(event.nodes, event.leaf)
        look = self._list.look
        looks = rows.Looks(look("muted"), look("hit"), look("mark"))
        wanted = self._message if self._message is not None else event.leaf
        last_shown = max((i for i, branch in enumerate(found) if branch.shown), default=0)
        at = next((i for i, branch in enumerate(found) if branch.node.id == wanted), last_shown)
        self._list.show(len(found), lambda i, width: [rows.branch_row(found[i], width, looks)], current=at)
        self._read_current()

    @on(RowList.Moved)
    def _read_current(self) -> None:
        at = self._list.current
        if at is not None and at < len(self._branches):
            self.query_one("#history-state", Static).update(one_line(self._branches[at].node.preview))

    def _node(self) -> int | None:
        at = self._list.current
        return self._branches[at].node.id if at is not None and at < len(self._branches) else None

    @on(RowList.Chosen)
    def show_branch(self) -> None:
        """Show the branch that the message is on."""
        node = self._node()
        if node is None:
            return
        if self._locked:
            self.notify("A reply is being written to this conversation. Stop it first.", severity="warning")
            return

        def do() -> None:
            self._store.conversations.show_branch(node)

        self._work(do)

    def action_fork(self) -> None:
        """Copy everything up to this message into a new conversation."""
        node = self._node()
        if node is not None:
            self._work(lambda: self._store.conversations.fork(node))

    @work(thread=True, group="change", exit_on_error=False)
    def _work(self, do: Callable[[], int | None]) -> None:
        try:
            self.post_message(self.Done(do()))
        except StoreError as error:
            self.post_message(self.Done(problem=str(error)))

    def on_branch_screen_done(self, event: Done) -> None:
        event.stop()
        if event.problem:
            self.notify(event.problem, severity="warning", markup=False)
        else:
            self.dismiss(event.made)
