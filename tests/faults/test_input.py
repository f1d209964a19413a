"""What a user can get wrong in the chat: a sentence each, nothing lost, no traceback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tiny
from kits.faults import SHORT, Victim
from kits.screen_stage import work_done
from textual.pilot import Pilot

from ds4chat.engine.events import EngineDied
from ds4chat.settings.schema import Settings
from ds4chat.store import Store
from ds4chat.tui.app import ChatApp
from ds4chat.tui.recorder import Recorder

NARROW = 100
"""Columns at which no panel stands beside the sentences."""


class Desk:
    """A running chat with its real engine, and what it says."""

    def __init__(self, app: ChatApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot, self.chat = app, pilot, app.chat

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for what the engine brings; only a fault makes it wait long."""
        for _ in range(6000):
            self.app.chat_screen.draw_frame()
            await self.pilot.pause()
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"never came; {self.chat.state}: {self.chat.trouble}")

    async def say(self, command: str) -> str:
        """Run a command; what is said about it."""
        before = {id(n) for n in self.app._notifications}
        self.app.chat_screen.run_command(command)
        await work_done(self.pilot)
        return " ".join(n.message for n in self.app._notifications if id(n) not in before)

    async def said_of(self, path: Path) -> str:
        """What is said that names this file, as soon as it is."""

        def said() -> list[str]:
            return [n.message for n in self.app._notifications if str(path) in n.message]

        await self.until(said)
        return said()[-1]

    async def ask(self, prompt: str) -> str:
        """Send a prompt; what its reply came to: the text, and why it is not complete."""
        self.chat.submit(prompt)
        await self.until(lambda: self.chat.reply is None and self.chat.state == "ready")
        reply = self.chat.conversation.last_reply
        assert reply is not None
        return reply.text + reply.trouble


@asynccontextmanager
async def sat_down(model: Path, **settings: object) -> AsyncIterator[Desk]:
    """A chat with a loaded model."""
    chosen = Settings(model=str(model), threads=1, **{"ctx_size": 256, **settings})  # type: ignore[arg-type]
    app = ChatApp(chosen, recorder=Recorder(Store.in_memory()))
    try:
        async with app.run_test(size=(NARROW, 30)) as pilot:
            desk = Desk(app, pilot)
            await desk.until(lambda: desk.chat.state == "ready")
            yield desk
    finally:
        app.chat.engine.close()


@pytest.fixture
def model(tiny_dir: Path) -> Path:
    return tiny.build("llama", tiny_dir)


async def test_files_that_cannot_be_loaded_leave_the_conversation(
    model: Path, tmp_path: Path, tiny_dir: Path
) -> None:
    contents = {
        "empty": b"",
        "zip": b"PK\x03\x04" * 100,
        "cut": tiny.build("deepseek4", tiny_dir).read_bytes()[:3000],
    }
    async with sat_down(model) as desk:
        assert await desk.ask(SHORT) == " all done"
        assert "is not a file" in await desk.say(f"/model {tmp_path}/no.gguf")
        assert "is not a file" in await desk.say(f"/model {tmp_path}")
        assert desk.chat.state == "ready"
        for name, content in contents.items():
            path = tmp_path / f"{name}.gguf"
            path.write_bytes(content)
            await desk.say(f"/model {path}")
            trouble = await desk.said_of(path)
            assert trouble.endswith(".")
            assert "Traceback" not in trouble
            assert desk.chat.state == "ready", "the model that is loaded stays"
        await desk.say(f"/model {model}")
        await desk.until(lambda: desk.chat.state == "ready")
        assert await desk.ask(SHORT) == " all done"
        assert len(desk.chat.conversation.turns) == 4


async def test_drafters_that_do_not_fit_leave_the_target_usable(model: Path, tiny_dir: Path) -> None:
    wrong_kind = tiny.build("deepseek4-support", tiny_dir)
    async with sat_down(model) as desk:
        wrong = (
            (str(wrong_kind), "deepseek4"),
            ("embedded", "NextN"),
            ("/no/file", "is not a file"),
        )
        for support, word in wrong:
            said = await desk.say(f"/mtp {support}")
            await desk.until(lambda: desk.chat.state == "ready")
            assert desk.chat.loaded is not None
            assert word in said + desk.chat.loaded.off_reason
            assert await desk.ask(SHORT) == " all done"
        assert "MTP is off" in "".join(
            text for line in desk.app.chat_screen._status.lines for text, _ in line
        )


WRONG: dict[str, tuple[str, ...]] = {
    "/draft 17": ("16",),
    "/draft x": ("auto",),
    "/margin -1": ("0", "1"),
    "/margin 2": ("gate",),
    "/margin nan": ("nan",),
    "/gate -3": ("0",),
    "/temp hot": ("hot",),
    "/ctx none": ("none",),
    "/read /no/such/file": ("/no/such/file",),
    "/export nowhere.txt": (".md", ".json"),
    "/margn 1": ("Did you mean /margin?",),
}
"""Commands that cannot be done, and words of the sentence that says why."""


async def test_a_command_that_cannot_be_done_says_why_and_changes_nothing(opened: Desk) -> None:
    tuning, state = opened.chat.tuning, opened.chat.state
    for command, words in WRONG.items():
        said = await opened.say(command)
        assert [word for word in words if word not in said] == [], (command, said)
        assert said.endswith((".", "?")), (command, said)
        assert (opened.chat.tuning, opened.chat.state) == (tuning, state), command


@pytest.fixture
async def opened() -> AsyncIterator[Desk]:
    """A chat without a model: commands are read all the same."""
    app = ChatApp(Settings(), recorder=Recorder(Store.in_memory()))
    async with app.run_test(size=(NARROW, 30)) as pilot:
        yield Desk(app, pilot)


async def test_a_file_that_is_no_utf_8_is_refused_whole(opened: Desk, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    said = await opened.say(f"/read {tmp_path / 'latin.txt'}")
    assert "UTF-8" in said
    assert "caf" not in opened.app.chat_screen.prompt.text


async def test_a_prompt_longer_than_the_context_is_a_sentence_and_can_be_taken_back(model: Path) -> None:
    async with sat_down(model) as desk:
        said = await desk.ask("sun sea fog " * 200)
        assert "the context holds 256" in said
        assert "-c" in said
        await desk.say("/undo")
        assert desk.chat.conversation.turns == []
        assert desk.app.chat_screen.prompt.text.startswith("sun sea fog")
        assert await desk.ask(SHORT) == " all done"
        assert not any(isinstance(event, EngineDied) for event in desk.chat.engine.drain())


def test_a_broken_settings_file_and_an_unknown_theme_are_told_and_left_alone(
    victim: Callable[..., Victim], home: Path
) -> None:
    home.mkdir()
    config = home / "config.toml"
    config.write_text('theme = "nope"\nmtp-drift = 3\nmtp-margin = 7\n')
    before = config.read_text()
    chat = victim(home, columns=NARROW)
    chat.until("mtp-draft")  # the nearest known one
    chat.until("● ready")
    chat.answered()
    chat.enter("/quit")
    assert chat.leave() == 0
    assert config.read_text() == before


def test_a_screen_that_is_very_small_still_chats(victim: Callable[..., Victim], home: Path) -> None:
    chat = victim(home, columns=24, rows=8)
    chat.until("ready")
    chat.type(f"{SHORT}\r")
    # Before the end of the reply, Ctrl+C would stop it.
    chat.until(lambda screen: "all done" in screen and "ready" in screen)
    chat.type("\x03")
    chat.until("again")
    chat.type("\x03\x03")  # where the machine is busy, the first may come too late for the one before
    assert chat.leave() == 0
