"""Where the explorer's rows come from: the chat, a stored conversation, or a log file.

Reading a long record can take seconds: the screen does it in a thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ds4chat.analysis.log_parser import parse_log
from ds4chat.analysis.rows import rows_from_steps
from ds4chat.analysis.times import StepTimes
from ds4chat.errors import UserFacingError
from ds4chat.files import is_regular, open_regular, user_path
from ds4chat.settings.schema import TUNING, Option
from ds4chat.store import Store, StoreError
from ds4chat.tui.conversation import Reply
from ds4chat.tui.explorer.listing import Listing
from ds4chat.tui.explorer.replies import ReplyRow, reply_rows
from ds4chat.tui.recorder import read_reply

if TYPE_CHECKING:
    from ds4chat.tui.controller import Chat

LOG_OPTIONS = tuple(option for option in TUNING if option.tuning in ("margin", "gate"))
"""The settings that a log has. Its depth is what was asked for in each step, not the setting."""


class SourceError(UserFacingError):
    """There are no rows to show."""


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of a record, with what every view of them needs."""

    title: str
    listing: Listing
    times: StepTimes
    replies: tuple[ReplyRow, ...] = ()
    options: Sequence[Option] = TUNING
    """The settings that the record has."""
    in_chat: bool = False
    """The rows' tokens are in the transcript."""
    numbers: Sequence[int] = ()
    """In the chat: the number of each reply in its events, where the rows have its place, from 1."""
    note: str = ""
    """A sentence about what is missing; empty if nothing is."""

    @classmethod
    def of(
        cls,
        title: str,
        replies: Sequence[Reply],
        *,
        options: Sequence[Option] = TUNING,
        in_chat: bool = False,
        note: str = "",
    ) -> Source:
        """The source of these replies' steps. ``in_chat``: they are all replies of the conversation, and the
        rows number them from 1, as other parts of the chat do."""
        # The steps are copied: a reply that is still running adds to its list.
        steps = [list(reply.steps) for reply in replies]
        rows = rows_from_steps([step for some in steps for step in some])
        times = StepTimes(rows, [reply.stats.plain for reply in replies if reply.steps])
        listed = reply_rows(replies, options)
        numbers: tuple[int, ...] = ()
        if in_chat:
            numbers = tuple(reply.number for reply in replies)
            places = np.arange(1, len(replies) + 1)
            rows = replace(rows, step_reply=np.repeat(places, [len(some) for some in steps]))
            place = {number: at for at, number in enumerate(numbers, 1)}
            listed = tuple(replace(row, number=place[row.number]) for row in listed)
        return cls(title, Listing(rows), times, listed, options, in_chat, numbers, note)


def conversation_source(replies: Sequence[Reply]) -> Source:
    """The rows of the conversation in the chat. Raises SourceError."""
    if not any(step.judged for reply in replies for step in list(reply.steps)):
        raise SourceError(
            "No draft was judged in this conversation yet. Ask something with speculation on, then F5 here."
        )
    return Source.of("this conversation", replies, in_chat=True, note=_unread(replies))


def log_source(name: str) -> Source:
    """The rows of a log file. Raises SourceError."""
    path = user_path(name)
    try:
        with open_regular(path) as file:
            log = parse_log(io.TextIOWrapper(file, encoding="utf-8", errors="replace"))
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}. Give a log file.") from None
    if not any(step.judged for step in log.steps):
        raise SourceError(
            f"{path} has no judged drafts. ds4chat writes them to stderr with --mtp-conf-log; --mtp-timing "
            "adds the times."
        )
    replies: dict[int, Reply] = {}
    for step in log.steps:
        replies.setdefault(step.reply, Reply(step.reply, "")).add_step(step)
    broken = "line is" if log.broken == 1 else "lines are"
    note = f"{log.broken} {broken} incomplete." if log.broken else ""
    return Source.of(path.name, list(replies.values()), options=LOG_OPTIONS, note=note)


def stored_source(store: Store, conversation: int) -> Source:
    """The rows of every reply of a stored conversation, all branches; a reply's number is its message's.
    Raises SourceError."""
    try:
        messages = store.conversations.messages(conversation)
    except StoreError as error:
        raise SourceError(str(error)) from None
    replies = [read_reply(store, message, message.id) for message in messages if message.role == "assistant"]
    if not any(step.judged for reply in replies for step in reply.steps):
        why = next((reply.trouble for reply in replies if not reply.steps and reply.trouble), "")
        raise SourceError(
            why or f"The stored conversation {conversation} does not exist, or has no judged drafts."
        )
    return Source.of(f"conversation {conversation}", replies, note=_unread(replies))


def _unread(replies: Sequence[Reply]) -> str:
    unread = sum(bool(reply.text) and not reply.steps for reply in replies)
    return f"{unread} {'reply has' if unread == 1 else 'replies have'} no steps on record." if unread else ""


def opener(chat: Chat, name: str) -> Callable[[], Source]:
    """A function that reads the source with this name: the conversation in the chat if it is empty, a stored
    one for a number, else a log file. It may be called in any thread, and again to read what was added."""
    store = getattr(chat.recorder, "store", None)

    def read() -> Source:
        if not name:
            return conversation_source(
                [turn for turn in list(chat.conversation.turns) if isinstance(turn, Reply)]
            )
        if name.isdecimal() and store is not None and not is_regular(name):
            return stored_source(store, int(name))
        return log_source(name)

    return read
