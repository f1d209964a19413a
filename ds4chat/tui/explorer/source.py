"""Where the explorer's rows come from: steps of the chat, a stored conversation, or a log file.

Reading can take seconds for a long record: the screen calls it in a thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4chat.analysis.filters import Texts
from ds4chat.analysis.log_parser import parse_log
from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.analysis.times import StepTimes, plain_times
from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Step
from ds4chat.files import is_regular, open_regular, user_path
from ds4chat.tui.conversation import Reply

if TYPE_CHECKING:
    from ds4chat.store import Store
    from ds4chat.tui.controller import Chat


class SourceError(Exception):
    """There are no rows to be had; the text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Source:
    """Judged rows, with what every view of them needs."""

    title: str
    rows: JudgedRows
    texts: Texts
    times: StepTimes
    jumps: bool = False
    """The rows' tokens are in the text on the screen, under the same reply numbers."""
    note: str = ""
    """A sentence about what is missing; empty when nothing is."""

    @classmethod
    def of(
        cls,
        title: str,
        rows: JudgedRows,
        plain: Iterable[PlainTime] | None = None,
        *,
        jumps: bool = False,
        note: str = "",
    ) -> Source:
        """The source of these rows. ``plain``: plain decoding of their replies; None: what the rows tell."""
        return cls(title, rows, Texts(rows), StepTimes(rows, plain), jumps, note)


def conversation_source(
    steps: Sequence[Step], plain: Iterable[PlainTime] | None = None, unread: int = 0
) -> Source:
    """The conversation on the screen. ``unread``: how many of its replies have no steps at hand. Raises
    SourceError."""
    if not any(step.judged for step in steps):
        raise SourceError(
            "No draft was judged in this conversation yet. Ask something with speculation on, then F5 here."
        )
    replies = "reply has" if unread == 1 else "replies have"
    note = f"{unread} {replies} no steps on record." if unread else ""
    return Source.of("this conversation", rows_from_steps(steps), plain, jumps=True, note=note)


def log_source(name: str) -> Source:
    """A log of --mtp-conf-log and its like. Raises SourceError."""
    path = user_path(name)
    try:
        with open_regular(path) as file:
            log = parse_log(io.TextIOWrapper(file, encoding="utf-8", errors="replace"))
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}. Give a log file.") from None
    rows = log.rows()
    if not len(rows):
        raise SourceError(
            f"{path} has no judged drafts. ds4chat writes them to stderr with --mtp-conf-log; --mtp-timing "
            "adds the times."
        )
    broken = "line is" if log.broken == 1 else "lines are"
    return Source.of(path.name, rows, note=f"{log.broken} {broken} incomplete." if log.broken else "")


def stored_source(store: Store, conversation: int, title: str = "") -> Source:
    """Every reply of a stored conversation, all branches. Raises SourceError."""
    from ds4chat.store.errors import StoreError

    try:
        rows = store.judged_rows(conversation)
        messages = store.conversations.messages(conversation)
    except StoreError as error:
        raise SourceError(str(error)) from None
    if not len(rows):
        raise SourceError(f"The stored conversation {conversation} has no judged drafts, or there is none.")
    plain = plain_times(rows)
    for message in messages:
        if message.id in plain:
            plain[message.id].load_ms = message.load_plain_ms
            plain[message.id].checked_ms = message.check_plain_ms
    return Source.of(title or f"conversation {conversation}", rows, plain.values())


def opener(chat: Chat, name: str) -> Callable[[], Source]:
    """What reads the source that the user names: nothing is the conversation on the screen, a number a stored
    one, anything else a log file. It may be called in any thread, and again when more may have come."""
    if not name:
        return lambda: _chat_source(chat)
    store = getattr(chat.recorder, "store", None)

    def named() -> Source:
        if name.isdecimal() and store is not None:
            try:
                if not is_regular(name):
                    return stored_source(store, int(name))
            except TimeoutError as error:
                raise SourceError(f"{name} cannot be read: {error.strerror}. Give a log file.") from None
        return log_source(name)

    return named


def _chat_source(chat: Chat) -> Source:
    # Lists grow while a reply runs; what is copied here stays as it is.
    replies = [turn for turn in list(chat.conversation.turns) if isinstance(turn, Reply)]
    steps = [step for reply in replies for step in list(reply.steps)]
    unread = sum(bool(reply.text) and not reply.steps for reply in replies)
    return conversation_source(steps, [reply.stats.plain for reply in replies if reply.steps], unread)
