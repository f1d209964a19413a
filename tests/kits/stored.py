"""Conversations in a store, for the tests of what shows them."""

from __future__ import annotations

from collections.abc import Sequence

from kits.chat import PIECES, ended, steps_of

from ds4chat.store import ModelIdentity, Store
from ds4chat.store.recording import Request

TEXT = "".join(text for text, _ in PIECES)
TINY = ModelIdentity("/models/tiny.gguf", "Tiny Chat", "llama", "Q4_1", 90)
OTHER = ModelIdentity("/models/other.gguf", "Other", "qwen35", "Q8_0", 900)


def converse(
    store: Store,
    *prompts: str,
    model: ModelIdentity = TINY,
    pieces: Sequence[tuple[str, object]] = PIECES,
    conversation: int | None = None,
    parent: int | None = None,
) -> int:
    """A conversation in which every prompt was answered with the pieces; its number."""
    for prompt in prompts:
        recorder = store.record(Request(prompt, conversation, parent, model=model, drafter="eagle3"))
        for step in steps_of(1, pieces):  # type: ignore[arg-type]
            recorder.append(step)
        recorder.append(ended(1))
        recorder.flush()
        conversation, parent = recorder.conversation, recorder.message
    assert conversation is not None
    return conversation
