"""What the history does with the store, each change a function of the store that says what came of it.

All of them raise StoreError, and then nothing is changed. They are made for threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ds4chat.settings.paths import FolderError, state_file
from ds4chat.store import Store, StoreError
from ds4chat.store.database import connect
from ds4chat.store.errors import from_system
from ds4chat.text import one_line

UNTITLED = "Untitled"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is to be shown in the chat."""

    conversation: int
    message: int | None = None
    """The message to be shown in it; None: the end."""
    at: int = 0
    """The character of its text that was found."""


@dataclass(frozen=True, slots=True)
class Change:
    """What came of a change."""

    sentence: str = ""
    """For the user; empty where the list shows it."""
    select: int | None = None
    """The conversation to stand on afterwards; None: what is in the same place."""
    deleted: int | None = None
    """The conversation that can be brought back."""
    opened: Chosen | None = None
    """What to go on with."""


@contextmanager
def apart(store: Store) -> Iterator[Store]:
    """The same conversations over a connection of their own, for what takes long beside a running reply; the
    store itself where it is in memory. Raises StoreError."""
    if store.path is None:
        yield store
        return
    other = Store(connect(store.path))
    try:
        yield other
    finally:
        other.close()


def title(store: Store, key: int) -> str:
    """A conversation's title, fit for a sentence."""
    return one_line(store.conversations.get(key).title) or UNTITLED


def pin(store: Store, key: int) -> Change:
    """Keep a conversation at the top, or no longer."""
    store.conversations.pin(key, not store.conversations.get(key).pinned)
    return Change(select=key)


def rename(store: Store, key: int, name: str) -> Change:
    """Give it another title."""
    store.conversations.rename(key, name)
    return Change(select=key)


def delete(store: Store, key: int) -> Change:
    """Take it out of the list. The state that an engine saved of it goes too."""
    # Before, so that a chat that dies in between leaves no text of a conversation that is deleted.
    _delete_state(store, key)
    store.conversations.delete(key)
    return Change(f"Deleted “{title(store, key)}”. u brings it back.", deleted=key)


def _delete_state(store: Store, key: int) -> None:
    """Unlink the state of a conversation; one of a store in memory has none."""
    if store.path is None:
        return
    try:
        state_file(key).unlink(missing_ok=True)
    except FolderError:
        return  # without a cache folder no state was ever saved
    except OSError as error:
        raise from_system(error, f"The saved state {one_line(state_file(key))} cannot be deleted") from None


def restore(store: Store, key: int) -> Change:
    """Bring it back."""
    store.conversations.restore(key)
    return Change(f"“{title(store, key)}” is back.", select=key)


def fork(store: Store, key: int, message: int | None) -> Change:
    """Copy it, up to ``message`` or to the end of the path shown, into a new one."""
    at = message if message is not None else store.conversations.get(key).active_leaf
    if at is None:
        raise StoreError("There is nothing to fork: the conversation is empty.", "gone")
    made = store.conversations.fork(at)
    return Change(f"Forked into “{title(store, made)}”.", select=made)


def show(store: Store, chosen: Chosen) -> Change:
    """Go on with a conversation on the branch that holds the message."""
    message = chosen.message
    if message is not None and all(m.id != message for m in store.conversations.path(chosen.conversation)):
        store.conversations.show_branch(message)
    return Change(opened=chosen)


def write(store: Store, key: int, path: Path) -> Change:
    """Export it to a new file in the form of its ending."""
    from ds4chat.store.export import export

    export(store, key, path)
    return Change(f"Written to {one_line(path)}.", select=key)


def read(store: Store, path: Path) -> Change:
    """Import an exported JSON file as a new conversation."""
    from ds4chat.store.importing import import_file

    made = import_file(store, path)
    return Change(f"Imported “{title(store, made)}”.", select=made)
