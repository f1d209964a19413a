"""Export of a stored conversation: Markdown to read, JSON to import again, JSON lines of judged drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

import msgspec

from ds4chat.files import write_whole
from ds4chat.store.document import FORMAT, SHARED_FIELDS, VERSION, MessageDocument
from ds4chat.store.entities import Message, ModelIdentity
from ds4chat.store.errors import StoreError, from_system
from ds4chat.store.steps import texts_of
from ds4chat.store.store import Store
from ds4chat.text import json_printable, json_text, one_line

Format = Literal["md", "json", "jsonl"]
FORMATS: tuple[Format, ...] = get_args(Format)


def export(
    store: Store, conversation: int, path: Path, *, form: Format | None = None, overwrite: bool = False
) -> None:
    """Write a conversation to ``path``, in ``form`` or else the form of the path's ending. Raises StoreError;
    an existing file is replaced only with ``overwrite``."""
    form = form or form_of(path)
    if form is None:
        raise StoreError(
            f"{one_line(path)} does not end in .md, .json or .jsonl, which chooses the form.",
            "input",
        )
    if path.is_dir():
        raise StoreError(f"{one_line(path)} is a folder. Give the name of a file in it.", "input")
    encoded = (chunk.encode("utf-8", "replace") for chunk in chunks(store, conversation, form))
    try:
        write_whole(path, encoded, overwrite=overwrite)
    except FileExistsError:
        raise StoreError(f"{one_line(path)} exists already. Give another name.", "exists") from None
    except OSError as error:
        raise from_system(
            error, f"{one_line(path)} cannot be written. Choose another place. The system says"
        ) from error


def form_of(path: Path) -> Format | None:
    """The form for a file's ending."""
    return next((form for form in FORMATS if path.suffix.lower() == f".{form}"), None)


def chunks(store: Store, conversation: int, form: Format) -> Iterator[str]:
    """The conversation in that form, piece by piece. Raises StoreError."""
    # Look it up first, so that a missing conversation raises before anything is written.
    store.conversations.get(conversation)
    writers = {"md": markdown, "json": document, "jsonl": judged_lines}
    return writers[form](store, conversation)


def iso(ms: int) -> str:
    """A time of day as ISO 8601, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# ---------------------------------------------------------------------------------------- Markdown


def markdown(store: Store, conversation: int) -> Iterator[str]:
    """Front matter, then a heading for each message of the path shown."""
    facts = store.conversations.get(conversation)
    path = store.conversations.path(conversation)
    judged, accepted = sum(m.judged for m in path), sum(m.accepted for m in path)
    front: dict[str, object] = {
        "title": facts.title,
        "conversation": facts.id,
        "created": iso(facts.created_ms),
        "updated": iso(facts.updated_ms),
        "models": list(facts.models),
        "messages": len(path),
        "tokens": sum(m.tokens for m in path),
        "drafts_judged": judged,
        "drafts_accepted": accepted,
    }
    # JSON strings and lists are valid YAML.
    yield "---\n"
    for name, value in front.items():
        yield f"{name}: {json_text(value)}\n"
    yield "---\n"
    for message in path:
        yield from _markdown_message(store, message)


def _markdown_message(store: Store, message: Message) -> Iterator[str]:
    names = {"system": "System", "user": "User", "assistant": "Assistant"}
    model = message.model.title if message.model else ""
    heading = f"{names[message.role]} ({' '.join(model.split())})" if model else names[message.role]
    steps = store.steps(message.id) if message.steps else []
    # Lossy text is labelled wherever it shows.
    lossy = ", approximate" if any(step.tuning.mode == "approximate" for step in steps) else ""
    yield f"\n## {heading}{lossy}\n\n"
    text, thinking = message.text, message.thinking
    if not thinking:
        # Earlier versions stored the thinking as part of the text.
        answer, thinking = texts_of(steps)
        text = answer + message.tail if thinking else text
    if thinking.strip():
        yield f"<details><summary>Thinking</summary>\n\n{thinking.strip()}\n\n</details>\n\n"
    if text.strip():
        yield f"{text.strip()}\n"
    if message.ending:
        why = f": {message.detail}" if message.detail else ""
        yield f"\n*({message.ending}{why})*\n"


# ---------------------------------------------------------------------------------------- JSON


def document(store: Store, conversation: int) -> Iterator[str]:
    """The complete conversation, with all branches, as ds4chat.store.document describes it."""
    facts = store.conversations.get(conversation)
    messages = store.conversations.messages(conversation)
    models = list(dict.fromkeys(model for m in messages for model in (m.model, m.support) if model))
    number = {model: index for index, model in enumerate(models)}
    head: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "title": facts.title,
        "created_ms": facts.created_ms,
        "updated_ms": facts.updated_ms,
        "pinned": facts.pinned,
        "active": facts.active_leaf,
        "models": models,
    }
    yield json_printable(_encoded(head)).removesuffix("}") + ',"messages":['
    for index, message in enumerate(messages):
        document = json_printable(_encoded(_message_document(store, message, number)))
        yield f"{',' if index else ''}\n{document}"
    yield "\n]}\n"


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _message_document(store: Store, message: Message, number: dict[ModelIdentity, int]) -> MessageDocument:
    steps = store.steps(message.id) if message.steps else []
    shared = {name: getattr(message, name) for name in SHARED_FIELDS}
    if message.state == "streaming":
        shared["state"] = "stopped"
        # The text may have grown since the message was read.
        shared["text"], shared["thinking"] = texts_of(steps)
    return MessageDocument(
        id=message.id,
        parent=message.parent,
        model=number[message.model] if message.model else None,
        support=number[message.support] if message.support else None,
        steps=msgspec.Raw(msgspec.json.encode(steps)),
        **shared,
    )


# ---------------------------------------------------------------------------------------- judged drafts


def judged_lines(store: Store, conversation: int) -> Iterator[str]:
    """One JSON object per judged draft of every branch, with the figures of its step."""
    # Imported here, because only this export needs numpy.
    from ds4chat.analysis.export import records

    for values in records(store.judged_rows(conversation)):
        message = {"conversation": conversation, "message": values.pop("reply")}
        yield json.dumps(message | values, allow_nan=False) + "\n"
