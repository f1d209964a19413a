"""The JSON form of a conversation: complete, so that importing it restores the conversation.

One object. ``messages`` has every message of every branch, parents before children; ``steps`` of a reply
are the engine's steps (ds4chat.engine.events.Step), tokens and judged drafts included. Times of day are
milliseconds since 1970.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ds4chat.engine.events import Count, FinishReason, Large
from ds4chat.store.entities import LATEST_MS, ModelIdentity, Role, Word

FORMAT = "ds4chat-conversation"
VERSION = 2
"""In 2 a reply's thinking is separate from its text, in 1 part of it."""

MOST_BYTES = 256 << 20
MOST_MESSAGES = 100_000
MOST_MODELS = 10_000

Millis = Annotated[int, Meta(ge=0, le=LATEST_MS)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=64 << 20)]


class Header(msgspec.Struct):
    """The fields that say whether the rest can be read."""

    format: str = ""
    version: int = 0


class MessageDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Like Message; ``id``, ``parent`` and the models are numbers within the document."""

    id: Number
    role: Role
    state: Literal["complete", "stopped", "failed", "crashed"]
    text: Text
    created_ms: Millis
    updated_ms: Millis
    parent: Number | None = None
    model: Count | None = None
    support: Count | None = None
    drafter: Word = ""
    finish_reason: FinishReason | None = None
    detail: Text = ""
    tail: Text = ""
    thinking: Text = ""
    prompt_tokens: Count = 0
    reused_tokens: Count = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    first_token_ms: float = 0.0
    context_used: Count = 0
    seed: Large = 0
    load_plain_ms: float = 0.0
    check_plain_ms: float = 0.0
    steps: msgspec.Raw = msgspec.Raw(b"[]")
    """Decoded one reply at a time: a long conversation's steps are many times the size of its text."""


SHARED_FIELDS = tuple(
    name
    for name in MessageDocument.__struct_fields__
    if name not in ("id", "parent", "model", "support", "steps")
)
"""Fields that a MessageDocument, a Message and its row in the database have in common."""


class ConversationDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A whole conversation."""

    format: Literal["ds4chat-conversation"]
    version: Literal[1, 2]
    title: Word
    created_ms: Millis
    updated_ms: Millis
    messages: Annotated[list[MessageDocument], Meta(max_length=MOST_MESSAGES)]
    pinned: bool = False
    active: Number | None = None
    """The last message of the path shown."""
    models: Annotated[list[ModelIdentity], Meta(max_length=MOST_MODELS)] = []
