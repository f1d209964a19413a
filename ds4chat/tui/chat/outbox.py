"""Prompts on their way to the engine, in order: one that mentions files waits until they were read."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ds4chat.tui.conversation import UserTurn
from ds4chat.tui.prompt.files import MENTION, FileError, with_mentions

if TYPE_CHECKING:
    from ds4chat.tui.chat.screen import ChatScreen


class Outbox:
    """Reads the files in a thread. A prompt whose files cannot be read stands in the prompt again."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._waiting: deque[tuple[str, UserTurn | None]] = deque()

    def put(self, text: str, place: UserTurn | None = None) -> None:
        """Send a prompt after those that wait, in the place of an earlier one where that is given."""
        self._waiting.append((text, place))
        if len(self._waiting) == 1:
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not MENTION.search(self._waiting[0][0]):
            self._send(*self._waiting.popleft())
        if self._waiting:
            self._screen.run_worker(self._read, thread=True, group="files", exit_on_error=False)

    def _read(self) -> None:
        """Read what the first prompt mentions. Runs in the thread."""
        try:
            full, problem = with_mentions(self._waiting[0][0]), ""
        except FileError as error:
            full, problem = "", str(error)
        self._screen.app.call_from_thread(self._was_read, full, problem)

    def _was_read(self, full: str, problem: str) -> None:
        text, place = self._waiting.popleft()
        if problem:
            self._screen.notify(problem, severity="warning", markup=False)
            self._screen.prompt.put_back([text])
        else:
            self._send(full, place)
        self._go_on()

    def _send(self, text: str, place: UserTurn | None) -> None:
        screen = self._screen
        if place is not None and not screen.cut_before(place):
            screen.prompt.put_back([text])
            return
        screen.chat.submit(text.strip("\n"))
        if place is not None:
            screen.show_conversation()
        screen.show_queue()
        screen.show_status()
        screen.wake()
