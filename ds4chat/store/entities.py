"""The store's values: conversations, messages and models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ds4chat.engine.events import Counters, DrafterInfo, Ended, FinishReason, Large, ModelInfo, limit_words

Role = Literal["system", "user", "assistant"]
State = Literal["complete", "streaming", "stopped", "failed", "crashed"]
"""complete: ended by the model or a limit. stopped: by the user. failed: the engine could not continue.
crashed: the engine or the chat died."""

TITLE_LENGTH = 80
LATEST_MS = 253_402_128_000_000
"""The latest time stored: near the end of the year 9999, and a valid date in every time zone."""

LONGEST_WORD = 4096
"""Characters of a title or of a model's name or path; names come from files of unknown origin."""

Word = Annotated[str, Meta(max_length=LONGEST_WORD)]

END_FIELDS = (
    *("detail", "tail", "prompt_tokens", "reused_tokens", "prefill_ms", "decode_ms", "first_token_ms"),
    *("context_used", "seed"),
)
"""Fields that an Ended, a Message and its row in the database have in common."""


class ModelIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of a model that answered."""

    path: Word
    name: Word = ""
    architecture: Word = ""
    quantisation: Word = ""
    size_bytes: Large = 0
    mtime_ns: Large = 0
    """When the file was last changed, in nanoseconds since 1970; 0 if unknown."""

    @property
    def title(self) -> str:
        """What the model is called."""
        return self.name or Path(self.path).stem

    @classmethod
    def of(cls, info: ModelInfo) -> ModelIdentity:
        """The identity of a loaded target."""
        _, mtime_ns = _file_facts(info.path)
        return cls(info.path, info.name, info.architecture, info.quantisation, info.size_bytes, mtime_ns)

    @classmethod
    def of_support(cls, info: DrafterInfo | None) -> ModelIdentity | None:
        """The identity of a drafter's file; None if it has none."""
        if info is None or not info.path:
            return None
        size, mtime_ns = _file_facts(info.path)
        return cls(info.path, Path(info.path).stem, size_bytes=size, mtime_ns=mtime_ns)


@dataclass(frozen=True, slots=True)
class Message:
    """One message, with the figures of a reply."""

    id: int
    conversation: int
    parent: int | None
    role: Role
    text: str
    """The whole text, with a reply's tail."""
    state: State
    created_ms: int
    updated_ms: int
    model: ModelIdentity | None = None
    support: ModelIdentity | None = None
    drafter: str = ""
    """Kind of the drafter, as in DrafterInfo; empty without one."""
    finish_reason: FinishReason | None = None
    detail: str = ""
    """A sentence that says why the reply is incomplete, if there is one."""
    tail: str = ""
    """The text after the last token's."""
    thinking: str = ""
    """What the model thought. In replies stored by earlier versions it is part of the text instead."""
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    first_token_ms: float = 0.0
    context_used: int = 0
    seed: int = 0
    load_plain_ms: float = 0.0
    """A plain pass when the models that answered were loaded, in milliseconds; 0 if unknown."""
    check_plain_ms: float = 0.0
    """The time of a check's plain decoding of the whole reply, in milliseconds; 0 without one."""

    @property
    def ending(self) -> str:
        """What cut the message short; empty if nothing did."""
        if self.state != "complete":
            return self.state
        return limit_words(self.finish_reason, any_text=bool(self.text))

    def ended(self, reply: int = 0) -> Ended | None:
        """The event that ended the reply, numbered ``reply``; None if none came."""
        if self.finish_reason is None:
            return None
        return Ended(
            reply=reply,
            finish_reason=self.finish_reason,
            counters=Counters(self.drafted, self.accepted) if self.drafted and not self.judged else None,
            **{name: getattr(self, name) for name in END_FIELDS},
        )


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as an entry of a list."""

    id: int
    title: str
    created_ms: int
    updated_ms: int
    pinned: bool
    deleted_ms: int | None
    """When it was deleted; None if it was not."""
    active_leaf: int | None
    """The last message of the path shown."""
    forked_from: int | None
    """The message of another conversation that this one was forked from."""
    messages: int
    """The number of messages on all branches."""
    models: tuple[str, ...]
    """Names of the models that answered, in the order of their first use."""
    preview: str
    """The beginning of the last message of the path shown."""


@dataclass(frozen=True, slots=True)
class Node:
    """A message's place in the tree."""

    id: int
    parent: int | None
    role: Role
    state: State
    created_ms: int
    preview: str


def time_of_day(ms: int) -> int:
    """A stored time, clamped to valid dates."""
    return min(max(ms, 0), LATEST_MS)


def title_of(prompt: str) -> str:
    """A title made from a conversation's first prompt: as many of its words as fit."""
    line = " ".join(prompt.split())
    if len(line) <= TITLE_LENGTH:
        return line
    # Only a single word that is longer than a title is cut.
    return f"{line[:TITLE_LENGTH].rpartition(' ')[0] or line[: TITLE_LENGTH - 1]}…"


def _file_facts(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return 0, 0
    return found.st_size, found.st_mtime_ns
