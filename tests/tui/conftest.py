"""Fixtures of the chat's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kits.chat import ReplayEngine, SettledRecorder
from kits.chat_stage import Chat, Open

from ds4chat.settings.schema import Settings
from ds4chat.tui.app import ChatApp
from ds4chat.tui.recorder import Recorder


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
