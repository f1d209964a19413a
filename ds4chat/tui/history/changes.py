"""The changes that the history makes to the store, for threads. A change that raises StoreError has done
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds4chat.settings.paths import FolderError, state_file
from ds4chat.store import Store, StoreError
from ds4chat.store.errors import from_system
from ds4chat.text import one_line

UNTITLED = "Untitled"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the chat goes on with."""

    conversation: int
    message: int | None = None
    """The message to show; None: the end."""
    at: int = 0
    """The character of its text at which the search found something."""


@dataclass(frozen=True, slots=True)
class Change:
    """The outcome of a change."""

    sentence: str = ""
    """For the user; empty if the list shows it."""
    select: int | None = None
    """The conversation to select afterwards; None: the one in the same row."""
    deleted: int | None = None
    """A conversation that can be restored."""
    opened: Chosen | None = None


def title(store: Store, key: int) -> str:
    """A conversation's title as a sentence names it."""
    return one_line(store.conversations.get(key).title) or UNTITLED


def pin(store: Store, key: int) -> Change:
    """Pin a conversation to the top of the list, or unpin it."""
    store.conversations.pin(key, not store.conversations.get(key).pinned)
    return Change(select=key)


def rename(store: Store, key: int, name: str) -> Change:
    """Give a conversation another title."""
    store.conversations.rename(key, name)
    return Change(select=key)


def delete(store: Store, key: int) -> Change:
    """Delete a conversation, and the state that an engine saved of it."""
    # First, so that a crash in between leaves no text of a deleted conversation behind.
    _delete_state(store, key)
    store.conversations.delete(key)
    return Change(f"Deleted “{title(store, key)}”. u brings it back.", deleted=key)


def _delete_state(store: Store, key: int) -> None:
    if store.path is None:
        return  # a store in memory has none
    try:
        state_file(key).unlink(missing_ok=True)
    except FolderError:
        return  # without a cache folder no state was ever saved
    except OSError as error:
        raise from_system(error, f"The saved state {one_line(state_file(key))} cannot be deleted") from None


def restore(store: Store, key: int) -> Change:
    """Restore a deleted conversation."""
    store.conversations.restore(key)
    return Change(f"“{title(store, key)}” is back.", select=key)


def fork(store: Store, key: int, message: int | None) -> Change:
    """Copy a conversation, up to ``message`` or to the end of the path shown, into a new one."""
    at = message if message is not None else store.conversations.get(key).active_leaf
    if at is None:
        raise StoreError("There is nothing to fork: the conversation is empty.", "gone")
    made = store.conversations.fork(at)
    return Change(f"Forked into “{title(store, made)}”.", select=made)


def show(store: Store, chosen: Chosen) -> Change:
    """Open a conversation on the branch that holds the message."""
    message = chosen.message
    if message is not None and all(m.id != message for m in store.conversations.path(chosen.conversation)):
        store.conversations.show_branch(message)
    return Change(opened=chosen)


def write(store: Store, key: int, path: Path) -> Change:
    """Export a conversation to a new file, in the format of its ending."""
    from ds4chat.store.export import export

    export(store, key, path)
    return Change(f"Written to {one_line(path)}.", select=key)


def read(store: Store, path: Path) -> Change:
    """Import an exported JSON file as a new conversation."""
    from ds4chat.store.importing import import_file

    made = import_file(store, path)
    return Change(f"Imported “{title(store, made)}”.", select=made)
