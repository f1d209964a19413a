"""A load can be stopped: the engine's process is ended, the chat stays, and what was loaded is offered."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic, sleep

import pytest
import tiny
from kits.chat import SettledRecorder, loaded
from kits.chat_stage import Chat, Open
from textual.command import CommandPalette

from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import EngineDied, Load, Loading, Tuning
from ds4chat.tui import controller

GONE = EngineDied(None, None, "SIGKILL", "The engine stopped: it was killed.", ())


async def loading_another(chat: Chat, folder: Path) -> None:
    """A reply stands in the chat, and big.gguf is at 40 %."""
    await chat.type("Hi", "enter")
    (folder / "big.gguf").write_bytes(b"GGUF")
    chat.engine.on_load(Loading("reading tensors", 0.4))
    chat.app.load(model=str(folder / "big.gguf"), ctx_size=512)
    await chat.settle()
    assert "loading" in chat.shown() and "Esc stops" in chat.shown()


async def by_esc(chat: Chat) -> None:
    await chat.press("escape")


async def by_command(chat: Chat) -> None:
    await chat.type("/stop", "enter")


async def by_palette(chat: Chat) -> None:
    await chat.press("ctrl+p")
    assert isinstance(chat.app.screen, CommandPalette)
    await chat.press(*"stop")
    await chat.searched()
    await chat.press("enter")
    await chat.pilot.pause()
    await chat.settle()


@pytest.mark.parametrize("stop", [by_esc, by_command, by_palette])
async def test_a_load_is_stopped_and_the_model_before_it_offered(stop, opened: Open, tmp_path: Path) -> None:
    async with opened(size=(100, 30)) as chat:
        await loading_another(chat, tmp_path)
        await stop(chat)
        assert chat.engine.killed == 1
        await chat.push(GONE)
        shown = chat.shown()
        assert "You stopped the load of big, so no model is loaded." in shown
        assert "F5 loads tiny" in shown and "not loaded" in shown
        assert "Speculative decoding lets" in shown, "the conversation stays"
        assert (chat.app.settings.model, chat.app.settings.ctx_size) == ("/models/tiny.gguf", 0)
        chat.engine.on_load(loaded())
        await chat.press("f5")
        assert "ready" in chat.shown() and "F5 loads" not in chat.shown()
        last = next(c for c in reversed(chat.engine.sent) if isinstance(c, Load))
        assert last.model == "/models/tiny.gguf"


async def test_prompts_typed_meanwhile_wait_on(opened: Open, tmp_path: Path) -> None:
    async with opened(size=(100, 30)) as chat:
        await loading_another(chat, tmp_path)
        await chat.type("and then?", "enter")
        await chat.press("escape")
        await chat.push(GONE)
        assert "and then?" in chat.shown() and "sent when a model is loaded" in chat.shown()
        chat.engine.on_load(loaded())
        await chat.press("f5")
        assert [g.messages[-1].content for g in chat.engine.generates] == ["Hi", "and then?"]


async def test_esc_closes_what_is_open_before_it_stops_a_load(opened: Open, tmp_path: Path) -> None:
    async with opened() as chat:
        await loading_another(chat, tmp_path)
        await chat.type("/ma")
        await chat.press("escape")
        assert chat.engine.killed == 0
        await chat.press("escape")
        assert chat.engine.killed == 1


async def test_ctrl_c_during_a_load_leaves_on_the_second_press(opened: Open, tmp_path: Path) -> None:
    async with opened() as chat:
        await loading_another(chat, tmp_path)
        await chat.press("ctrl+c")
        assert chat.engine.killed == 0 and "again leaves" in chat.shown()
        await chat.press("ctrl+c")
        assert chat.app._exit


async def test_retry_during_a_load_says_how_to_stop_it(opened: Open, tmp_path: Path) -> None:
    async with opened() as chat:
        await loading_another(chat, tmp_path)
        await chat.press("f5")
        assert chat.said()[-1] == "A model is loading: Esc stops that."


def test_a_real_engine_that_hangs_in_a_load_is_ended_and_another_one_loads(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """The process is held with SIGSTOP, as a load from a dead network drive would hold it."""
    engine = EngineClient(tmp_path / "log")
    chat = controller.Chat(engine, SettledRecorder(), Tuning())
    try:
        engine.start()
        first = engine.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        chat.load(Load(str(tiny.build("llama", tiny_dir)), threads=1, ctx=256))
        chat.frame()
        assert chat.state == "loading"
        assert chat.stop()
        assert chat.reload(), "at once, before the process is gone"
        deadline = monotonic() + 120
        while chat.state == "loading" and monotonic() < deadline:
            chat.frame()
            sleep(0.01)
        assert (chat.state, chat.trouble) == ("ready", "")
        assert engine.pid != first
    finally:
        engine.close()
