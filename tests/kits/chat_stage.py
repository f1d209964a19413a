"""The chat in a test: the running app with what tests look at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from kits.chat import ReplayEngine
from kits.screen_stage import work_done
from textual.pilot import Pilot

from ds4chat.tui.app import ChatApp
from ds4chat.tui.chat.screen import ChatScreen
from ds4chat.tui.transcript import Transcript


class Chat:
    """A running app with what tests look at."""

    def __init__(self, app: ChatApp, pilot: Pilot[int], engine: ReplayEngine) -> None:
        self.app, self.pilot, self.engine = app, pilot, engine

    @property
    def screen(self) -> ChatScreen:
        return self.app.chat_screen

    @property
    def transcript(self) -> Transcript:
        return self.screen.transcript

    @property
    def prompt(self) -> str:
        return self.screen.prompt.text_field.text

    async def settle(self) -> None:
        self.screen.draw_frame()
        await self.pilot.pause()

    async def type(self, text: str, *keys: str) -> None:
        self.screen.prompt.text_field.insert(text)
        await self.pilot.pause()
        await self.press(*keys)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def searched(self) -> None:
        """Until nothing is looked for any more, as in the command palette."""
        await work_done(self.pilot)

    async def push(self, *what: object) -> None:
        self.engine.push(*what)  # type: ignore[arg-type]
        await self.settle()

    def shown(self) -> str:
        """The rows on the screen as text."""
        lines = self.screen._compositor.render_strips(self.screen.size)
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in lines)

    def said(self) -> list[str]:
        return [n.message for n in self.app._notifications]


Open = Callable[..., AbstractAsyncContextManager[Chat]]
