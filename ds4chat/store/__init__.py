"""Conversations on disk, stored as they happen, searched and exported.

``open_store`` and ``Store`` are the entry points. Every error is a StoreError, whose text is a sentence for
the user.
"""

from __future__ import annotations

from ds4chat.store.entities import Conversation, Message, ModelIdentity, Node
from ds4chat.store.errors import StoreError
from ds4chat.store.search import Hit
from ds4chat.store.store import FILE_NAME, Store, open_or_in_memory, open_store

__all__ = [
    "FILE_NAME",
    "Conversation",
    "Hit",
    "Message",
    "ModelIdentity",
    "Node",
    "Store",
    "StoreError",
    "open_or_in_memory",
    "open_store",
]
