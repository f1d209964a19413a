"""What the tests of the screens share: an app that opens one sheet and keeps what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import WorkerCancelled

from ds4chat.tui import themes


class Host(App[None]):
    """Opens ``sheet`` over a text field; ``results``: what it was dismissed with, ``seen``: its messages."""

    def __init__(self, sheet: Screen[Any] | None = None) -> None:
        super().__init__()
        self.sheet = sheet
        self.results: list[Any] = []
        self.seen: list[Message] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.variable_defaults()

    def compose(self) -> ComposeResult:
        yield Input(id="under")

    def on_mount(self) -> None:
        for theme in themes.load_themes(None)[0]:
            self.register_theme(theme)
        self.theme = themes.DEFAULT_THEME
        if self.sheet is not None:
            self.push_screen(self.sheet, self.results.append)

    def keep(self, message: Message) -> None:
        """Remember a message."""
        self.seen.append(message)

    on_settings_saved = on_settings_changed = on_model_chosen = on_demo_chosen = keep


async def work_done(pilot: Pilot[Any]) -> None:
    """Wait until no worker runs, nor one that another has started. Raises what a worker raised."""
    await pilot.pause()
    while workers := list(pilot.app.workers):
        for worker in workers:
            with suppress(WorkerCancelled):
                await worker.wait()
        await pilot.pause()


async def until(pilot: Pilot[Any], condition: Callable[[], object]) -> None:
    """Wait for what threads and processes bring; only a fault makes it wait long."""
    async with asyncio.timeout(90):
        await pilot.pause()
        while not condition():
            await pilot.pause(0.02)
