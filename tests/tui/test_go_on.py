"""A reply that its limit cut, gone on with by the real engine and the demo's model."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kits.chat import SettledRecorder

from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Tuning
from ds4chat.engine.from_settings import load_of
from ds4chat.settings.schema import Settings
from ds4chat.tui.controller import Chat

PROMPT = "Write one sentence about the sea."
PATIENCE = 240.0


def frames_until(chat: Chat, over: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not over():
        assert time.monotonic() < end, chat.state
        chat.frame()
        time.sleep(0.02)


@pytest.mark.slow
def test_a_cut_reply_becomes_the_one_that_was_not_cut(tmp_path: Path) -> None:
    engine = EngineClient(tmp_path / "engine.log")
    settings = Settings(predict=24)
    chat = Chat(engine, SettledRecorder(), Tuning(depth=2), lambda: settings)
    try:
        chat.load(load_of(Settings(demo=True, ctx_size=512)))
        frames_until(chat, lambda: chat.state in ("ready", "failed"))
        assert not chat.trouble
        chat.submit(PROMPT)
        frames_until(chat, lambda: chat.reply is None)
        whole = chat.conversation.last_reply
        chat.new()
        settings = Settings(predict=10)
        chat.submit(PROMPT)
        frames_until(chat, lambda: chat.reply is None)
        settings = Settings(predict=14)
        assert chat.go_on()
        frames_until(chat, lambda: chat.reply is None)
        found = chat.conversation.last_reply
        assert whole is not None and found is not None and found.before is not None
        assert found.before.answer and found.answer
        assert found.whole_answer == whole.answer
        # Only the answer's last token is read, which no step was begun with.
        assert found.ended is not None
        assert found.ended.prompt_tokens - found.ended.reused_tokens == 1
    finally:
        engine.close()
