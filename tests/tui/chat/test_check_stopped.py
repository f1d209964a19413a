"""A check can be stopped, and what is typed meanwhile waits for it."""

from __future__ import annotations

from kits.chat import PIECES, ReplayEngine, SettledRecorder, ended, steps_of
from kits.chat_stage import Open

from ds4chat.engine.events import (
    Cancel,
    Event,
    Generate,
    Load,
    Loaded,
    Prefill,
    Replay,
    Replayed,
    SpeculationOff,
    Tuning,
    uncompared,
)
from ds4chat.tui.controller import Chat
from ds4chat.tui.watchdog import KILL_AFTER

EQUAL = Replayed(1, True, 22, -1, -1, -1, "", "", 0.0, "")
STOPPED = uncompared(1, "The check was stopped.")
OFF = SpeculationOff("none of the first 64 drafts was accepted; it stays off until the model is loaded again")


class Engine(ReplayEngine):
    """Ends what is cancelled as the engine does: a check by no Ended."""

    def send(self, command) -> None:  # type: ignore[no-untyped-def]
        if isinstance(command, Cancel):
            self.sent.append(command)
        else:
            super().send(command)


def checking(clock=None) -> tuple[Chat, Engine]:  # type: ignore[no-untyped-def]
    """A finished reply that is being checked."""
    engine = Engine()
    chat = Chat(engine, SettledRecorder(), Tuning(depth=2), **({"clock": clock} if clock else {}))
    chat.load(Load("/models/tiny.gguf"))
    chat.frame()
    chat.submit("one")
    chat.frame()
    assert chat.replay()
    assert engine.sent[-1] == Replay(1)
    return chat, engine


def test_a_check_is_a_state_of_its_own_with_progress() -> None:
    chat, engine = checking()
    assert (chat.state, chat.busy, chat.frame().engine) == ("checking", True, True)
    engine.push(Prefill(1, 30, 60, 0, 1.0))
    assert chat.frame().engine
    assert isinstance(chat.progress, Prefill) and (chat.progress.done, chat.progress.total) == (30, 60)
    reply = chat.conversation.last_reply
    assert reply is not None and reply.prefill is not None and reply.prefill.total == 40
    assert not chat.replay()  # one at a time
    engine.push(EQUAL)
    assert chat.frame().replayed == [EQUAL]
    assert (chat.state, chat.busy) == ("ready", False)


def test_a_stop_ends_the_check_and_the_prompt_that_waited_is_answered() -> None:
    chat, engine = checking()
    chat.submit("two")
    assert chat.stop()
    assert (engine.sent[-1], chat.state) == (Cancel(1), "stopping")
    engine.push(STOPPED)
    frame = chat.frame()
    assert frame.replayed == [STOPPED] and [r.number for r in frame.started] == [2]
    asked = engine.sent[-1]
    assert isinstance(asked, Generate) and asked.messages[-1].content == "two"
    # The stop was of the check: the reply runs on, and a stop of it is its own.
    assert chat.state == "reading"
    assert engine.killed == 0
    assert not any(isinstance(c, Cancel) and c.reply == 2 for c in engine.sent)


def test_a_second_stop_ends_only_an_engine_that_does_not_answer_the_first() -> None:
    now = [100.0]
    chat, engine = checking(lambda: now[0])
    chat.stop()
    now[0] += KILL_AFTER - 1
    chat.stop()
    assert engine.killed == 0
    now[0] += 2
    chat.stop()
    assert engine.killed == 1


def test_a_stop_after_a_stopped_check_does_not_count_from_it() -> None:
    now = [100.0]
    chat, engine = checking(lambda: now[0])
    chat.stop()
    engine.push(STOPPED)
    chat.frame()
    now[0] += KILL_AFTER + 1
    engine._answer = False
    chat.submit("two")
    chat.frame()
    assert chat.stop()
    assert (engine.sent[-1], engine.killed) == (Cancel(2), 0)


def test_a_load_during_a_check_stops_it_first() -> None:
    chat, engine = checking()
    other = Load("/models/other.gguf")
    chat.load(other)
    assert engine.sent[-1] == Cancel(1)
    engine.push(STOPPED)
    chat.frame()
    assert engine.sent[-1] == other


async def test_esc_stops_a_check_on_the_screen(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        await chat.type("/check", "enter")
        assert "◐ checking" in chat.shown()
        await chat.type("two", "enter")
        assert "sent when the check ends" in chat.shown()
        await chat.press("escape")
        assert chat.engine.sent[-1] == Cancel(1)
        assert list(chat.app.chat.queue) == ["two"]
        await chat.push(STOPPED)
        assert "The check was stopped." in chat.shown()
        assert [g.messages[-1].content for g in chat.engine.generates] == ["one", "two"]


async def test_the_conversation_decoded_again_shows_in_the_status_line(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.push(Prefill(1, 40, 40, 0, 80.0), *steps_of(1, PIECES[:6]))
        assert "▶ writing" in chat.shown()
        await chat.push(Prefill(1, 128, 512, 0, 20.0, again=True))
        assert "◐ reading" in chat.shown() and "128/512" in chat.shown()
        reply = chat.app.chat.reply
        assert reply is not None and reply.prefill == Prefill(1, 40, 40, 0, 80.0)
        await chat.push(*steps_of(1, PIECES[6:], first=3))
        assert "▶ writing" in chat.shown()
        await chat.push(ended(1))


def test_only_what_is_read_first_is_recorded() -> None:
    added: list[Event] = []

    class Book(SettledRecorder):
        def add(self, reply, event) -> None:  # type: ignore[no-untyped-def]
            added.append(event)

    engine = ReplayEngine(answer=False)
    chat = Chat(engine, Book(), Tuning())
    chat.load(Load("/models/tiny.gguf"))
    chat.frame()
    chat.submit("one")
    first = Prefill(1, 40, 40, 0, 80.0)
    engine.push(first, Prefill(1, 128, 512, 0, 20.0, again=True))
    chat.frame()
    assert added == [first]


def test_a_drafter_that_was_given_up_is_no_longer_loaded_for_anybody() -> None:
    told: list[Loaded] = []

    class Book(SettledRecorder):
        def loaded(self, command: Load, loaded: Loaded) -> None:
            told.append(loaded)

    engine = ReplayEngine(answer=False)
    chat = Chat(engine, Book(), Tuning(depth=2))
    chat.load(Load("/models/tiny.gguf"))
    chat.frame()
    chat.submit("one")
    engine.push(*steps_of(1, PIECES[:4]), OFF)
    frame = chat.frame()
    assert chat.loaded is not None
    assert (chat.loaded.drafter, chat.loaded.off_reason) == (None, OFF.reason)
    assert told[-1] == chat.loaded
    assert frame.engine and [n.message for n in frame.notices] == [f"MTP is off: {OFF.reason}."]


async def test_why_speculation_is_off_stands_on_the_screen_while_it_is(opened: Open) -> None:
    async with opened(answer=False, size=(120, 40)) as chat:
        await chat.type("one", "enter")
        assert "eagle3 depth" in chat.shown()
        await chat.push(*steps_of(1, PIECES[:4]), OFF)
        for _ in range(2):
            status = chat.shown().splitlines()[-3:]
            assert any("MTP off" in line for line in status)
            assert any("MTP is off: none of the first 64 drafts" in line for line in status)
            assert not any("eagle3 depth" in line for line in status)
            await chat.push(*steps_of(1, PIECES[4:], first=2), ended(1))
