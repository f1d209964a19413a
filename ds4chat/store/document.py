"""The JSON form of a conversation: complete, so that importing it restores the conversation.

One object. ``messages`` has every message of every branch, parents before children; ``steps`` of a reply
are the engine's steps (ds4chat.engine.events.Step), tokens and judged drafts included. Times of day are
milliseconds since 1970.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ds4chat.engine.events import FinishReason
from ds4chat.store.conversations import LONGEST_WORD
from ds4chat.store.entities import LATEST_MS, Role

FORMAT = "ds4chat-conversation"
VERSION = 2
"""In 2 a reply's thinking is separate from its text, in 1 part of it."""

MOST_BYTES = 256 << 20
MOST_MESSAGES = 100_000
MOST_MODELS = 10_000

Millis = Annotated[int, Meta(ge=0, le=LATEST_MS)]
Count = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Large = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=64 << 20)]
Word = Annotated[str, Meta(max_length=LONGEST_WORD)]


class Header(msgspec.Struct):
    """The fields that say whether the rest can be read."""

    format: str = ""
    version: int = 0


class ModelDocument(msgspec.Struct, forbid_unknown_fields=True):
    """As ModelIdentity."""

    path: Word
    name: Word = ""
    architecture: Word = ""
    quantisation: Word = ""
    size_bytes: Large = 0
    mtime_ns: Large = 0


class MessageDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Like Message; ``id``, ``parent`` and the models are numbers within the document."""

    id: Number
    role: Role
    text: Text
    created_ms: Millis
    updated_ms: Millis
    parent: Number | None = None
    state: Literal["complete", "stopped", "failed", "crashed"] = "complete"
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
    """Read one reply at a time: a long conversation's steps are many times the size of its text."""


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
    models: Annotated[list[ModelDocument], Meta(max_length=MOST_MODELS)] = []
