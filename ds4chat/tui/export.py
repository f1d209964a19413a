"""The conversation on the screen as a file: Markdown to read, or its judged drafts as JSON lines."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ds4chat.tui.conversation import Conversation, Reply, UserTurn

FORMATS = (".md", ".jsonl", ".json")


class ExportError(Exception):
    """The file cannot be written; the text is a sentence for the user."""


def export(conversation: Conversation, name: str) -> Path:
    """Write the conversation to a file that does not exist yet, in the format of its suffix. Raises
    ExportError."""
    path = Path(name).expanduser()
    if path.suffix not in FORMATS:
        raise ExportError(f"{name} ends in none of {', '.join(FORMATS)}. The ending decides the format.")
    if path.exists():
        raise ExportError(f"{path} exists already. Give another name.")
    if path.suffix == ".md":
        text = as_markdown(conversation)
    elif path.suffix == ".json":
        text = as_json(conversation)
    else:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in judged_rows(conversation))
    try:
        _write(path, text)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def as_markdown(conversation: Conversation) -> str:
    """Front matter, then a heading for each turn."""
    replies = [turn for turn in conversation.turns if isinstance(turn, Reply)]
    models = list(dict.fromkeys(reply.model for reply in replies if reply.model))
    parts = [f"---\nmodels: {json.dumps(models, ensure_ascii=False)}\nreplies: {len(replies)}\n---\n"]
    if conversation.system.strip():
        parts.append(f"## System\n\n{conversation.system.strip()}\n")
    for turn in conversation.turns:
        if isinstance(turn, UserTurn):
            parts.append(f"## User\n\n{turn.text.strip()}\n")
        else:
            label = " (approximate)" if turn.lossy else ""
            parts.append(f"## {turn.model or 'Assistant'}{label}\n\n{turn.answer.strip()}\n")
    return "\n".join(parts)


def as_json(conversation: Conversation) -> str:
    """Every turn, the replies with their tokens, steps and counters."""
    turns: list[dict[str, object]] = []
    for turn in conversation.turns:
        if isinstance(turn, UserTurn):
            turns.append({"role": "user", "content": turn.text})
        else:
            turns.append(
                {
                    "role": "assistant",
                    "model": turn.model,
                    "content": turn.text,
                    "state": turn.state,
                    "steps": [msgspec.to_builtins(step) for step in turn.steps],
                    "stats": turn.stats.as_json(),
                }
            )
    document = {"system": conversation.system, "turns": turns}
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def judged_rows(conversation: Conversation) -> Iterator[dict[str, object]]:
    """One object for each judged draft, with its reply and step."""
    for turn in conversation.turns:
        if isinstance(turn, Reply):
            for step in turn.steps:
                for row in step.judged:
                    yield {"reply": turn.number, "step": step.index, **msgspec.to_builtins(row)}


def _write(path: Path, text: str) -> None:
    """Write a new file as a whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
