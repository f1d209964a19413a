"""Queue of sent prompts: one that mentions files waits until they are read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from textual.dom import DOMNode

from ds4chat.tui.conversation import UserTurn
from ds4chat.tui.prompt.files import MENTION, FileError, with_mentions


class Outbox:
    """Reads files in a worker of ``owner``. Calls ``send`` with each prompt and its files' contents, or
    ``refuse`` with the prompt as typed and a sentence if a file cannot be read."""

    def __init__(
        self,
        owner: DOMNode,
        send: Callable[[str, UserTurn | None], None],
        refuse: Callable[[str, str], None],
    ) -> None:
        self._owner = owner
        self._send = send
        self._refuse = refuse
        self._waiting: deque[tuple[str, UserTurn | None]] = deque()

    def put(self, text: str, place: UserTurn | None = None) -> None:
        """Queue a prompt, optionally to replace an earlier one."""
        self._waiting.append((text, place))
        if len(self._waiting) == 1:
            self._send_next()

    def _send_next(self) -> None:
        while self._waiting and not MENTION.search(self._waiting[0][0]):
            self._send(*self._waiting.popleft())
        if self._waiting:
            self._owner.run_worker(self._read_files(), group="files", exit_on_error=False)

    async def _read_files(self) -> None:
        text, place = self._waiting[0]
        try:
            full, problem = await asyncio.to_thread(with_mentions, text), ""
        except FileError as error:
            full, problem = "", str(error)
        self._waiting.popleft()
        if problem:
            self._refuse(text, problem)
        else:
            self._send(full, place)
        self._send_next()
