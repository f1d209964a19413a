"""The history: the stored conversations, to search, read, organize and continue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, Static

from ds4chat.files import user_path
from ds4chat.store import Conversation, Hit, Message, Store
from ds4chat.text import counted, one_line
from ds4chat.tui.history import changes, rows
from ds4chat.tui.history.branches import BranchScreen
from ds4chat.tui.history.changes import Change, Chosen
from ds4chat.tui.history.store_sheet import StoreSheet
from ds4chat.tui.kit.row_list import RowList

FIRST_PAGE = 200
"""Conversations that are read first; the others follow."""
WIDE = 100
"""Columns from which the preview is beside the list."""
QUIET_SECONDS = 0.1
"""The search and the preview wait this long for another key."""
HINTS = (
    "[b]Enter[/b] opens · [b]/[/b] search · [b]r[/b] rename · [b]p[/b] pin · [b]d[/b] delete · [b]u[/b] undo"
    " · [b]b[/b] branches\n[b]f[/b] fork · [b]m[/b] model · [b]e[/b] export · [b]i[/b] import · "
    "[b]Esc[/b] closes"
)
ASKED = {
    "rename": "Title",
    "export": "File to write, ending in .md, .json or .jsonl",
    "import": "JSON file to read",
}


class HistoryScreen(StoreSheet[Chosen | None]):
    """Dismissed with the conversation to continue, or None."""

    TITLE_TEXT = "History"
    HINT = HINTS
    FIELD_HINT = "[b]Enter[/b] accepts the text · [b]Esc[/b] goes back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Back, then close", id="history.close"),
        Binding("slash,ctrl+f", "search", "Search", id="history.search"),
        Binding("r,f2", "ask('rename')", "Rename", id="history.rename"),
        Binding("p", "pin", "Pin, or unpin", id="history.pin"),
        Binding("d,delete", "delete", "Delete", id="history.delete"),
        Binding("u,ctrl+z", "undo", "Bring back what was deleted last", id="history.undo"),
        Binding("b", "branches", "Branches", id="history.branches"),
        Binding("f", "fork", "Fork into a new conversation", id="history.fork"),
        Binding("m", "model(1)", "Only the next model's conversations", id="history.model"),
        Binding("M,shift+m", "model(-1)", "Only the previous model's", id="history.previous_model"),
        Binding("e", "ask('export')", "Export", id="history.export"),
        Binding("i", "ask('import')", "Import", id="history.import"),
        Binding("space", "preview_down", "Scroll the preview", id="history.preview_down"),
    ]

    def __init__(self, store: Store, current: int | None = None, writing: int | None = None) -> None:
        """``current`` is the conversation in the chat, ``writing`` the one that a reply is written to."""
        super().__init__(store)
        self._in_chat = current
        self._writing = writing
        self._found: list[Conversation] = []
        self._hits: list[Hit] | None = None
        """What the search found; None while nothing is searched for, and the list is shown."""
        self._models: list[str] = []
        """Names to filter by."""
        self._model = ""
        """The name that is filtered by; empty: all."""
        self._deleted: list[int] = []
        self._question = ""
        """The key in ASKED of what is being asked; empty: nothing."""
        self._select = current
        """The conversation to select when the list is read."""
        self._now_ms = int(time.time() * 1000)

    def compose_sheet(self) -> ComposeResult:
        yield Input(placeholder='search: words, or a "phrase"', id="history-search")
        with Horizontal(id="history-main"):
            yield RowList(id="history-list")
            with VerticalScroll(id="history-preview", can_focus=False):
                yield Static(id="history-text", markup=False)
        yield Input(id="history-ask")
        yield Static(id="history-state", markup=False)

    def on_mount(self) -> None:
        self.query_one("#history-ask").display = False
        self._say("Reading…")
        self._read_list()

    @property
    def _field(self) -> Input:
        return self.query_one("#history-search", Input)

    @property
    def _preview(self) -> VerticalScroll:
        return self.query_one("#history-preview", VerticalScroll)

    @property
    def _text(self) -> Static:
        return self.query_one("#history-text", Static)

    # -- reading

    @work(exclusive=True, group="list", exit_on_error=False)
    async def _read_list(self) -> None:
        for limit in (FIRST_PAGE, -1):
            read = await self.in_store(partial(_listed, model=self._model, limit=limit))
            if read is None:
                return
            stay = self._conversation() if self._select is None else self._select
            self._found, self._models = read
            if self._hits is None:
                ids = [found.id for found in self._found]
                if self._select in ids:
                    self._select = None
                self._show_list(ids.index(stay) if stay in ids else self._list.current or 0)
            if len(self._found) < FIRST_PAGE:
                return

    @work(exclusive=True, group="search", exit_on_error=False)
    async def _search(self, query: str) -> None:
        await asyncio.sleep(QUIET_SECONDS)
        model = self._model
        hits = await self.in_store(lambda store: store.search(query, model=model))
        if hits is not None:
            self._hits = hits
            looks = self._looks
            self._list.show(
                len(hits), lambda i, width: rows.hit_rows(hits[i], width, self._now_ms, looks), lines=2
            )
            self._say_count()

    @on(RowList.Moved)
    @work(exclusive=True, group="preview", exit_on_error=False)
    async def read_current(self) -> None:
        """Show the conversation of the current row."""
        place = self._place()
        if place is None:
            self._text.update("")
            return
        await asyncio.sleep(QUIET_SECONDS)
        read = await self.in_store(lambda store: _read(store, *place))
        if read is not None:
            self._text.update(rows.preview(*read, self._looks, place[1]))
            self._preview.scroll_home(animate=False)

    # -- what is shown

    def _show_list(self, current: int) -> None:
        found, looks = self._found, self._looks
        self._list.show(
            len(found),
            lambda i, width: [
                rows.conversation_row(
                    found[i], width, self._now_ms, looks, shown=found[i].id == self._in_chat
                )
            ],
            current=current,
        )
        self._say_count()

    def _say_count(self) -> None:
        if self._hits is not None:
            what = f"{len(self._hits):,} found"
            if not self._hits:
                what = "Nothing found. All words have to be in one message or title."
        elif self._found:
            what = counted(len(self._found), "conversation")
        else:
            what = "No conversation is stored yet. What you write in the chat will be here."
        self._say(f"{what} · model: {one_line(self._model)}" if self._model else what)

    def _say(self, sentence: str) -> None:
        self.query_one("#history-state", Static).update(sentence)

    def _place(self) -> tuple[int, int | None] | None:
        """The current row's conversation and message."""
        at = self._list.current
        if at is None:
            return None
        if self._hits is not None:
            return self._hits[at].conversation, self._hits[at].message
        return self._found[at].id, None

    def _conversation(self) -> int | None:
        place = self._place()
        return place[0] if place else None

    # -- searching and filtering

    def action_search(self) -> None:
        """Go to the search field."""
        self.set_focus(self._field)

    @on(Input.Changed, "#history-search")
    def search_changed(self, event: Input.Changed) -> None:
        """Search for what was typed so far; nothing shows the list."""
        query = event.value.strip()
        if query:
            self._search(query)
        else:
            self.workers.cancel_group(self, "search")
            if self._hits is not None:
                self._hits = None
                self._show_list(0)

    @on(Input.Submitted, "#history-search")
    def leave_search(self) -> None:
        """Go from the search field to the hits."""
        self._list.focus()

    def action_model(self, by: int) -> None:
        """Show only the conversations of one model, or of all."""
        names = ["", *self._models]
        at = names.index(self._model) if self._model in names else 0
        self._model = names[(at + by) % len(names)]
        self._refresh()

    def _refresh(self) -> None:
        self._read_list()
        query = self._field.value.strip()
        if query:
            self._search(query)

    # -- changes

    @work(group="change", exit_on_error=False)
    async def _change(self, do: Callable[[Store], Change]) -> None:
        """Make a change to the store, and show its outcome."""
        change = await self.in_store(do)
        if change is None:
            return
        if change.opened is not None:
            self.dismiss(change.opened)
            return
        if change.deleted is not None:
            self._deleted.append(change.deleted)
        self._select = change.select
        self._refresh()
        if change.sentence:
            self.notify(change.sentence, markup=False)

    def action_pin(self) -> None:
        """Pin the conversation to the top, or unpin it."""
        key = self._conversation()
        if key is not None:
            self._change(lambda store: changes.pin(store, key))

    def action_delete(self) -> None:
        """Delete the conversation; undo restores it."""
        key = self._conversation()
        if key is not None and key == self._writing:
            self.warn_of_reply()
        elif key is not None:
            self._change(lambda store: changes.delete(store, key))

    def action_undo(self) -> None:
        """Restore the conversation that was deleted last."""
        if self._deleted:
            key = self._deleted.pop()
            self._change(lambda store: changes.restore(store, key))
        else:
            self.notify("Nothing was deleted since the history was opened.")

    def action_fork(self) -> None:
        """Copy the conversation into a new one, up to the message that the search found."""
        place = self._place()
        if place is not None:
            self._change(lambda store: changes.fork(store, *place))

    def action_branches(self) -> None:
        """Show all branches, to switch between them or to fork."""
        place = self._place()
        if place is not None:
            self.app.push_screen(
                BranchScreen(self._store, *place, locked=place[0] == self._writing), self._branched
            )

    def _branched(self, made: int | None) -> None:
        self._select = made
        self._refresh()

    # -- questions

    def action_ask(self, what: str) -> None:
        """Ask for a title or the name of a file."""
        key = self._conversation()
        if key is None and what != "import":
            return
        field = self.query_one("#history-ask", Input)
        self._question = what
        field.placeholder = ASKED[what]
        title = next((found.title for found in self._found if found.id == key), "")
        field.value = title if what == "rename" else ""
        field.display = True
        self.set_focus(field)

    @on(Input.Submitted, "#history-ask")
    def answered(self, event: Input.Submitted) -> None:
        """Rename, export or import, as was asked."""
        value, what, key = event.value.strip(), self._question, self._conversation()
        self._end_question()
        if not value:
            return
        path = user_path(value)
        if what == "import":
            self._change(lambda store: changes.read(store, path))
        elif key is not None and what == "rename":
            self._change(lambda store: changes.rename(store, key, value))
        elif key is not None:
            self._change(lambda store: changes.write(store, key, path))

    def _end_question(self) -> None:
        self._question = ""
        self.query_one("#history-ask").display = False
        self._list.focus()

    # -- opening and leaving

    @on(RowList.Chosen)
    def open_current(self) -> None:
        """Continue the conversation; a search hit at its message and on its branch."""
        place, row = self._place(), self._list.current
        if place is None or row is None:
            return
        key, message = place
        chosen = Chosen(key, message, self._hits[row].at if self._hits is not None else 0)
        if key != self._in_chat and self._writing is not None:
            self.notify("A reply is running. Close the history and stop it with Esc first.")
            return
        if message is None or key == self._writing:
            self.dismiss(chosen)
        else:
            self._change(lambda store: changes.show(store, chosen))

    def action_preview_down(self) -> None:
        """Scroll the preview down, from its end back to its beginning."""
        scroll = self._preview
        if scroll.is_vertical_scroll_end:
            scroll.scroll_home(animate=False)
        else:
            scroll.scroll_page_down(animate=False)

    def action_close(self) -> None:
        """Close a question, then the search, then the history."""
        search = self._field
        if self._question:
            self._end_question()
        elif search.value:
            search.value = ""
            self._list.focus()
        elif search.has_focus:
            self._list.focus()
        else:
            self.dismiss(None)

    def on_key(self, event: events.Key) -> None:
        """Go from the search field into the list with the arrow keys."""
        search = self._field
        if search.has_focus and event.key in ("down", "up", "pagedown", "pageup"):
            self._list.focus()
            event.stop()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= WIDE, "-wide")


def _listed(store: Store, model: str, limit: int) -> tuple[list[Conversation], list[str]]:
    """The first conversations of a model, or of all if it is empty, and the names of all models."""
    names = [found.title for found in store.conversations.models()]
    return store.conversations.listed(model=model, limit=limit), list(dict.fromkeys(names))


def _read(store: Store, key: int, message: int | None) -> tuple[Conversation, list[Message]]:
    """A conversation and its path: the one shown, or that of a message which is not on it."""
    path = store.conversations.path(key)
    if message is not None and all(one.id != message for one in path):
        path = store.conversations.path(key, message)
    return store.conversations.get(key), path
