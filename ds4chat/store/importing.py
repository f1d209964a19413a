"""Import of conversations from untrusted JSON, which is checked completely before anything is stored."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec

from ds4chat.engine.events import Step
from ds4chat.files import NotRegularError, read_regular
from ds4chat.store.conversations import model_id
from ds4chat.store.document import (
    FORMAT,
    MOST_BYTES,
    SHARED_FIELDS,
    VERSION,
    ConversationDocument,
    Header,
    MessageDocument,
)
from ds4chat.store.errors import StoreError, from_system
from ds4chat.store.rows import insert, update
from ds4chat.store.steps import insert_steps, texts_of
from ds4chat.store.store import Store
from ds4chat.text import one_line, shortened

_GIVE = "Give a file that ds4chat exported as json."


def import_file(store: Store, path: Path) -> int:
    """Import the conversation in a JSON file as a new one; returns it. Raises StoreError, and then nothing is
    changed."""
    try:
        data = read_regular(path, MOST_BYTES)
    except (NotRegularError, IsADirectoryError):
        raise StoreError(f"{one_line(path)} is not a file that can be imported. {_GIVE}", "input") from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _too_large(one_line(path)) from None
        raise from_system(error, f"{one_line(path)} cannot be read. {_GIVE} The system says") from error
    return import_json(store, data, name=one_line(path))


def import_json(store: Store, data: bytes, *, name: str = "The JSON") -> int:
    """Import a conversation from its JSON form as a new one; returns it. Raises StoreError with a sentence
    that begins with ``name``, and then nothing is changed."""
    if len(data) > MOST_BYTES:
        raise _too_large(name)
    with _sentences(name):
        header = msgspec.json.decode(data, type=Header)
        if header.format != FORMAT:
            raise StoreError(
                f"{name} is not a conversation that ds4chat exported: its format field does not say "
                f"so. {_GIVE}",
                "input",
            )
        if header.version > VERSION:
            raise StoreError(
                f"{name} was exported by a newer version of ds4chat. Update ds4chat, then import it.", "newer"
            )
        document = msgspec.json.decode(data, type=ConversationDocument)
        _check_tree(document)
        with store.database.write() as connection:
            return _insert(connection, document)


def _too_large(name: str) -> StoreError:
    return StoreError(f"{name} is larger than {MOST_BYTES >> 20} MiB, the most that is imported.", "input")


@contextmanager
def _sentences(name: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # msgspec's message names the field; its quotes from the file are short and printable.
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StoreError(f"{name} cannot be imported: {one_line(why[:300])}. {_GIVE}", "input") from None
    except _Refused as refused:
        raise StoreError(f"{name} cannot be imported: {refused}. {_GIVE}", "input") from None


class _Refused(Exception):
    """What is wrong with the document, as part of a sentence."""


def _check_tree(document: ConversationDocument) -> None:
    """Check that the messages form a tree, and that every number in the document exists."""
    seen: set[int] = set()
    for message in document.messages:
        if message.id in seen:
            raise _Refused(f"two messages have the number {message.id}")
        if message.parent is not None and message.parent not in seen:
            raise _Refused(f"message {message.id} comes before its parent {message.parent}, or has none")
        seen.add(message.id)
        for model in (message.model, message.support):
            if model is not None and model >= len(document.models):
                raise _Refused(f"message {message.id} names model {model}, which is not there")
    if document.active is not None and document.active not in seen:
        raise _Refused(f"the active message {document.active} is not there")


def _insert(connection: sqlite3.Connection, document: ConversationDocument) -> int:
    conversation = insert(
        connection,
        "conversations",
        title=document.title,
        created_ms=document.created_ms,
        updated_ms=document.updated_ms,
        pinned=document.pinned,
    )
    models = [model_id(connection, model) for model in document.models]
    numbers: dict[int, int] = {}
    for message in document.messages:
        parent = None if message.parent is None else numbers[message.parent]
        numbers[message.id] = _insert_message(connection, conversation, parent, message, models)
    if document.active is not None:
        update(connection, "conversations", conversation, active_leaf=numbers[document.active])
    return conversation


def _insert_message(
    connection: sqlite3.Connection,
    conversation: int,
    parent: int | None,
    message: MessageDocument,
    models: list[int | None],
) -> int:
    try:
        steps = msgspec.json.decode(message.steps, type=list[Step])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # Within the transaction the second would be reported as an error of the database.
        why = shortened(error, 200)
        raise _Refused(f"the steps of message {message.id} cannot be read ({why})") from None
    _check_steps(message, steps)
    number = insert(
        connection,
        "messages",
        conversation=conversation,
        parent=parent,
        model=None if message.model is None else models[message.model],
        support=None if message.support is None else models[message.support],
        **{name: getattr(message, name) for name in SHARED_FIELDS},
    )
    insert_steps(connection, number, steps)
    update(connection, "messages", number, context_used=message.context_used)
    return number


def _check_steps(message: MessageDocument, steps: list[Step]) -> None:
    """Check that a reply's steps are in order and make up its text and its thinking."""
    if message.role != "assistant" and (steps or message.thinking):
        what = "steps" if steps else "thinking"
        raise _Refused(f"message {message.id} has {what} but is not a reply")
    if not steps:
        return
    text, thinking = texts_of(steps)
    if not message.thinking:
        # In the first version the thinking is part of the text.
        text, thinking = "".join(token.text for step in steps for token in step.tokens), ""
    if text + message.tail != message.text:
        raise _Refused(f"the tokens of message {message.id} do not make up its text")
    if not message.thinking.startswith(thinking):
        raise _Refused(f"the tokens of message {message.id} do not make up its thinking")
    for before, step in pairwise(steps):
        if step.index <= before.index:
            raise _Refused(f"step {step.index} of message {message.id} comes after step {before.index}")
