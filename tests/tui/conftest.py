"""Fixtures of the chat's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kits.chat import ReplayEngine, SettledRecorder
from kits.chat_stage import Chat, Open
from kits.idle import wait_for_idle

from ds4chat.settings.schema import Settings
from ds4chat.tui.app import ChatApp
from ds4chat.tui.recorder import Recorder

PATIENCE = 120.0
"""Seconds that replace the chat's limits; only a fault makes a test wait that long."""


@pytest.fixture(autouse=True, scope="session")
def busy_machine() -> Iterator[None]:
    """No pause ends early and no limit of the chat is reached because the machine is busy. A test that waits
    for a limit sets it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("textual.pilot.wait_for_idle", wait_for_idle)
        patch.setattr("textual.app.wait_for_idle", wait_for_idle)
        for limit in (
            "themes.ThemeFolder.LOAD_SECONDS",
            "prompt.completion.PATIENCE_SECONDS",
            "kit.clipboard.SECONDS",
            "settings.file.LAST_WAIT",
            "recorder.LAST_WAIT",
        ):
            patch.setattr(f"ds4chat.tui.{limit}", PATIENCE)
        yield


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    # The models of whoever runs this are no part of it.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)

    @asynccontextmanager
    async def open_chat(
        *,
        size: tuple[int, int] = (80, 24),
        answer: bool = True,
        load: object = None,
        notices: bool = False,
        store: Recorder | None = None,
        **settings: object,
    ) -> AsyncIterator[Chat]:
        engine = ReplayEngine(answer=answer, load=load)  # type: ignore[arg-type]
        chosen = Settings(**{"model": "/models/tiny.gguf", "mtp_draft": 2, **settings})  # type: ignore[arg-type]
        app = ChatApp(chosen, engine, store or SettledRecorder())
        async with app.run_test(size=size, notifications=notices) as pilot:
            await pilot.pause()
            chat = Chat(app, pilot, engine)
            await chat.settle()
            yield chat

    return open_chat
