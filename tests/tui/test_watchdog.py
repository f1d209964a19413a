"""When the user is told that the engine is silent, and that a stop works on an engine that hangs."""

from __future__ import annotations

import pytest
from kits.chat import PIECES, ReplayEngine, SettledRecorder, steps_of

from ds4chat.engine.events import Cancel, EngineDied, Load, Loading, Prefill, Tuning
from ds4chat.tui.controller import ENDED_BY_USER, Chat
from ds4chat.tui.watchdog import KILL_AFTER, Watchdog


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nothing_is_said_before_thirty_seconds_however_quick_steps_are(clock: Clock) -> None:
    dog = Watchdog(clock)
    dog.sign("writing", 0.02)
    clock.now += 29.9
    assert dog.complaint == ""
    clock.now += 0.2
    assert dog.complaint == "Nothing came from the engine for 30 s, and a step usually takes 20 ms."


def test_slow_steps_have_twenty_times_their_usual(clock: Clock) -> None:
    dog = Watchdog(clock)
    for seconds in (4.0, 5.0, 60.0):  # the median: one slow step does not make the others slow
        dog.sign("writing", seconds)
    assert dog.limit == 100.0
    clock.now += 99.9
    assert dog.complaint == ""
    clock.now += 0.2
    assert dog.complaint == "Nothing came from the engine for 100 s, and a step usually takes 5 s."


def test_a_prompt_has_its_own_usual_and_a_sign_of_life_ends_the_complaint(clock: Clock) -> None:
    dog = Watchdog(clock)
    dog.sign("writing", 10.0)
    dog.expect("reading")
    clock.now += 31.0
    assert dog.complaint == "Nothing came from the engine for 30 s."
    dog.sign("reading")
    assert dog.complaint == ""
    assert dog.limit == 20 * 31.0


def test_nothing_is_expected_of_an_idle_engine(clock: Clock) -> None:
    dog = Watchdog(clock)
    dog.sign("writing", 1.0)
    dog.expect(None)
    clock.now += 10_000.0
    assert dog.complaint == ""


def hanging(clock: Clock) -> tuple[Chat, ReplayEngine]:
    """A chat whose engine wrote four tokens and then fell silent, even to a Cancel."""
    engine = ReplayEngine(answer=False)
    chat = Chat(engine, SettledRecorder(), Tuning(depth=2), clock=clock)
    chat.load(Load("/models/tiny.gguf"))
    chat.frame()
    chat.submit("How?")
    engine.push(Prefill(1, 40, 40, 0, 80.0), *steps_of(1, PIECES[:4]))
    chat.frame()
    silent = engine.send
    engine.send = lambda command: None if isinstance(command, Cancel) else silent(command)  # type: ignore[method-assign]
    return chat, engine


def test_a_silent_engine_is_told_of_and_a_second_stop_ends_it(clock: Clock) -> None:
    chat, engine = hanging(clock)
    clock.now += 31.0
    frame = chat.frame()
    assert frame.engine
    assert "Nothing came from the engine for 30 s" in chat.warning
    assert "press Esc to stop the reply" in chat.warning
    assert not chat.frame().engine, "the same sentence is not drawn again"
    chat.stop()
    assert chat.frame().engine
    assert chat.warning == ""
    clock.now += KILL_AFTER
    chat.frame()
    assert chat.warning == "The engine does not stop. Esc again ends it; what came is kept."
    chat.stop()
    assert engine.killed == 1
    engine.push(EngineDied(1, None, "SIGKILL", "The engine stopped: it was killed (SIGKILL)", ()))
    frame = chat.frame()
    assert chat.trouble == ENDED_BY_USER
    assert chat.warning == ""
    assert frame.ended is not None
    assert frame.ended.text == "Speculative decoding lets"


def test_a_reply_that_goes_on_takes_the_warning_back(clock: Clock) -> None:
    chat, engine = hanging(clock)
    clock.now += 31.0
    chat.frame()
    engine.push(*steps_of(1, PIECES[4:6], first=3))
    assert chat.frame().engine
    assert chat.warning == ""


def test_a_load_that_hangs_is_said_with_the_key_that_stops_it(clock: Clock) -> None:
    engine = ReplayEngine(load=Loading("target", 0.5))
    chat = Chat(engine, SettledRecorder(), Tuning(), clock=clock)
    chat.load(Load("/models/tiny.gguf"))
    chat.frame()
    assert chat.warning == ""
    clock.now += 31.0
    chat.frame()
    assert "press Esc to stop the load" in chat.warning
    assert chat.stop()
    assert engine.killed == 1
