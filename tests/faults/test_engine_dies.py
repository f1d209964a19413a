"""The engine process dies, hangs or runs out of memory: what the chat keeps, says, and how it goes on."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny
from kits.engine import load_of
from kits.faults import ENDLESS, PATIENCE, SHORT, Victim, frames_until, until

from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Tuning
from ds4chat.store import Store, open_store
from ds4chat.tui import watchdog
from ds4chat.tui.controller import ENDED_BY_USER, Chat
from ds4chat.tui.conversation import Reply
from ds4chat.tui.recorder import Recorder

# Whole programs that are killed, locked out or left without a disk, one process or more each.
pytestmark = pytest.mark.slow

PHASES = ("load", "prefill", "verify", "idle")
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "conversations.db")
    yield store
    store.close()


@pytest.fixture
def chat(store: Store, tmp_path: Path) -> Iterator[Chat]:
    """The chat without its screen: the real engine process and the real store."""
    client = EngineClient(tmp_path / "engine.log")
    yield Chat(client, Recorder(store), Tuning(depth=3))
    client.close()


def pid_of(chat: Chat) -> int:
    client = chat.engine
    assert isinstance(client, EngineClient)
    assert client.pid is not None
    return client.pid


def bring_into(chat: Chat, phase: str, folder: Path) -> None:
    """Have the engine work in that phase, with an answered prompt behind it unless it still loads."""
    chat.load(load_of(folder, "llama-draft", ctx=65536))
    if phase == "load":
        return
    frames_until(chat, lambda: chat.state == "ready", "the model")
    chat.submit(SHORT)
    frames_until(chat, lambda: chat.state == "ready", "an answer")
    if phase == "prefill":
        chat.submit("sun sea fog " * 2_000 + SHORT)
        frames_until(
            chat,
            lambda: chat.progress is not None and 0 < chat.progress.done < chat.progress.total,
            "a part of the prompt",
        )
        assert chat.state == "reading"
    elif phase == "verify":
        chat.submit(ENDLESS)
        frames_until(chat, lambda: chat.reply and len(chat.reply.tokens) > 20, "a part of a reply")


@pytest.mark.parametrize(
    ("number", "phase"),
    [pytest.param(number, phase, id=f"{number.name}-{phase}") for number in SIGNALS for phase in PHASES],
)
def test_a_death_costs_at_most_the_reply_in_flight(
    chat: Chat, store: Store, tiny_dir: Path, phase: str, number: signal.Signals
) -> None:
    bring_into(chat, phase, tiny_dir)
    running = chat.reply
    os.kill(pid_of(chat), number)
    frames_until(chat, lambda: chat.state == "died", "the engine's death")
    assert number.name in chat.trouble
    assert "Load the model again" in chat.trouble
    turns = list(chat.conversation.turns)
    if phase != "load":
        answered = turns[1]
        assert isinstance(answered, Reply)
        assert (answered.state, answered.text) == ("complete", " all done")
    if running is not None:
        assert running.state == "crashed"
        assert running is turns[-1]
        assert chat.conversation.key is not None
        assert chat.recorder.settle(PATIENCE)
        on_disk = store.conversations.path(chat.conversation.key)[-1]
        assert (on_disk.state, on_disk.text) == ("crashed", running.text)
        assert bool(running.tokens) == (phase == "verify")
    assert chat.reload()
    frames_until(chat, lambda: chat.state == "ready", "the model again")
    assert chat.conversation.turns == turns
    chat.submit(SHORT)
    frames_until(chat, lambda: chat.state == "ready", "an answer again")
    reply = chat.conversation.last_reply
    assert reply is not None
    assert reply.text == " all done"


def test_the_screen_says_what_happened_and_f5_goes_on(victim: Callable[..., Victim], home: Path) -> None:
    chat = victim(home)
    chat.kill(signal.SIGKILL, chat.engine)
    chat.until("The engine stopped: it was killed (SIGKILL)")
    chat.type("\x1b[15~")
    chat.until("● ready")
    chat.kill(signal.SIGABRT, chat.engine)
    chat.until("llama.cpp aborted it (SIGABRT)")
    chat.enter(ENDLESS)  # kept until there is an engine again
    chat.until("1 queued")
    chat.type("\x1b[15~")
    chat.until("▶ writing")
    chat.until(lambda screen: screen.count(" we ") > 3)
    chat.kill(signal.SIGSEGV, chat.engine)
    chat.until("it was ended by SIGSEGV")
    shown = chat.until("cut off: the engine died")
    assert "we go up to the old red hut by sea" in shown
    chat.type("\x1b[15~")
    chat.until("● ready")
    chat.answered()
    chat.enter("/quit")
    assert chat.leave() == 0
    _, crashed, _, answered = chat.messages()
    assert crashed[:2] == ("assistant", "crashed")
    assert crashed[2].startswith(" we go up")
    assert answered == ("assistant", "complete", " all done")


def test_an_engine_that_hangs_is_ended_by_a_second_stop(
    chat: Chat, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "KILL_AFTER", 0.2)
    bring_into(chat, "verify", tiny_dir)
    running, pid = chat.reply, pid_of(chat)
    os.kill(pid, signal.SIGSTOP)
    assert chat.stop()
    frames_until(chat, lambda: "does not stop" in chat.warning, "the warning")
    assert chat.stop()
    frames_until(chat, lambda: chat.state == "died", "its end")
    assert chat.trouble == ENDED_BY_USER
    assert running is not None
    assert (running.state, bool(running.text)) == ("crashed", True)


def test_out_of_memory_is_a_sentence_and_the_chat_goes_on(chat: Chat, tiny_dir: Path) -> None:
    """The engine may have 64 MB more than it has; the context asked for needs far more."""
    bring_into(chat, "idle", tiny_dir)
    pid = pid_of(chat)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    room = pages * os.sysconf("SC_PAGE_SIZE") + (64 << 20)
    _, most = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (room, most))
    turns = list(chat.conversation.turns)
    former = chat.load_command
    chat.load(load_of(tiny_dir, "llama-draft", ctx=40_000_000))
    said = ""

    def loaded_again() -> bool:
        nonlocal said
        said += " ".join(notice.message for notice in chat.frame().notices)
        return chat.load_command is former and chat.state == "ready"

    until(loaded_again, "the model that was loaded before")
    assert "a context of 40,000,000 tokens" in said
    assert "is loaded again." in said
    assert chat.conversation.turns == turns


@pytest.mark.parametrize("fault", ["deleted", "replaced", "truncated"])
def test_a_model_file_that_goes_away_under_the_engine(chat: Chat, tmp_path: Path, fault: str) -> None:
    """What came stays, and a reload says what is wrong with the file."""
    folder = tmp_path / "models"
    folder.mkdir()
    bring_into(chat, "verify", folder)
    command = chat.load_command
    assert command is not None
    model, running = Path(command.model), chat.reply
    assert running is not None
    text = running.text
    if fault == "deleted":
        model.unlink()
    elif fault == "replaced":
        (folder / "new").write_bytes(b"not a model")
        (folder / "new").replace(model)
    else:
        os.truncate(model, 0)
    chat.stop()
    frames_until(chat, lambda: chat.state in ("ready", "died"), "the end of the reply")
    assert running.text.startswith(text)
    chat.reload()
    frames_until(chat, lambda: chat.state == "failed", "the refusal")
    assert str(model) in chat.trouble
    assert chat.trouble.endswith(".")
    tiny.build("llama", tmp_path).replace(model)
    chat.reload()
    frames_until(chat, lambda: chat.state == "ready", "the model again")
