"""Queue of prompts for the engine: one that mentions files waits until they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from textual.dom import DOMNode

from ds4chat.tui.conversation import UserTurn
from ds4chat.tui.prompt.files import MENTION, FileError, with_mentions


class Outbox:
    """Reads files in a thread of ``owner``. Calls ``send`` with each prompt and its files' contents, or
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
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not MENTION.search(self._waiting[0][0]):
            self._send(*self._waiting.popleft())
        if self._waiting:
            self._owner.run_worker(self._read, thread=True, group="files", exit_on_error=False)

    def _read(self) -> None:
        """Read the files that the first prompt mentions. Runs in the thread."""
        try:
            full, problem = with_mentions(self._waiting[0][0]), ""
        except FileError as error:
            full, problem = "", str(error)
        self._owner.app.call_from_thread(self._was_read, full, problem)

    def _was_read(self, full: str, problem: str) -> None:
        text, place = self._waiting.popleft()
        if problem:
            self._refuse(text, problem)
        else:
            self._send(full, place)
        self._go_on()
