"""Export of a conversation that is not stored, as the same document that the store would write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ds4chat.engine.events import Ended, EngineDied, FinishReason, ModelInfo
from ds4chat.store import ModelIdentity, Store
from ds4chat.store.recording import Request
from ds4chat.tui.conversation import Conversation, Reply, ReplyState

_REASONS: dict[ReplyState, FinishReason] = {"stopped": "cancelled", "failed": "error", "crashed": "error"}


def export_unsaved(conversation: Conversation, path: Path, targets: Mapping[str, ModelInfo]) -> None:
    """Write the conversation to a new file, in the form of its ending. ``targets`` are models by the names
    that replies give. Raises StoreError."""
    from ds4chat.store.export import export

    store = Store.in_memory()
    try:
        export(store, _kept(store, conversation, targets), path)
    finally:
        store.close()


def _kept(store: Store, conversation: Conversation, targets: Mapping[str, ModelInfo]) -> int:
    """Put the conversation into the store turn by turn; its number there."""
    key = store.conversations.create(conversation.title)
    at = store.conversations.under_system(key, None, conversation.system)
    # A copy, because turns and steps of a running reply may be added in the meantime.
    for turn in list(conversation.turns):
        if isinstance(turn, Reply):
            at = _keep_reply(store, turn, Request(None, key, at, conversation.system), targets)
        else:
            at = store.conversations.add(key, at, "user", turn.text)
    return key


def _keep_reply(store: Store, reply: Reply, request: Request, targets: Mapping[str, ModelInfo]) -> int | None:
    """The number of a reply that answers what the request names."""
    target = targets.get(reply.model)
    model = ModelIdentity.of(target) if target else ModelIdentity("", reply.model)
    drafter = next((step.drafter for step in reversed(reply.steps) if step.drafter), "")
    plain = reply.stats.plain
    recorder = store.record(
        replace(
            request,
            model=model if reply.model else None,
            drafter=drafter,
            load_plain_ms=plain.load_ms,
            check_plain_ms=plain.checked_ms,
        )
    )
    recorder.append(*reply.steps)
    if not reply.running:
        recorder.append(_end(reply))
    recorder.flush()
    return recorder.message


def _end(reply: Reply) -> Ended | EngineDied:
    if reply.ended is not None:
        return reply.ended
    if reply.state == "crashed" and not reply.tail:
        return EngineDied(reply.number, None, "", reply.trouble, ())
    return reply.own_end(_REASONS.get(reply.state, "stop"), reply.trouble)
