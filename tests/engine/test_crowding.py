"""What is said where others keep the processors from the engine, by seconds given by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from kits.chat import loaded, served, steps_of

from ds4chat.engine.child import Engine
from ds4chat.engine.crowding import Crowding
from ds4chat.engine.events import Loaded, Notice, Step
from ds4chat.engine.wire import decode_event, read_frames


def steps(count: int) -> list[Step]:
    return steps_of(1, [("word ", "plain")] * count)


def told(on: Loaded, share: float, *, count: int = 40, replies: int = 1, step_s: float = 0.1) -> list[Notice]:
    """What is said in replies whose steps take ``step_s`` each, in which this share of the processor time
    that the threads want is got."""
    now, used = 0.0, 0.0
    crowding = Crowding(lambda: now, lambda: used)
    found = [crowding.notice(on)]
    for _ in range(replies):
        now += 60.0  # between replies the engine uses nothing
        for step in steps(count):
            now, used = now + step_s, used + step_s * on.threads * share
            found.append(crowding.notice(step))
    return [notice for notice in found if notice is not None]


def test_threads_that_get_half_of_what_they_want_are_told_once_a_load() -> None:
    (notice,) = told(loaded(), 0.5, replies=3)
    assert "2 threads got 50% of the time" in notice.message and "-t 1" in notice.message
    assert notice.level == "warning"
    (notice,) = told(replace(loaded(), threads=16), 0.5)
    assert "-t 8" in notice.message


def test_one_thread_cannot_become_fewer() -> None:
    (notice,) = told(replace(loaded(), threads=1), 0.5)
    assert "thread got 50% of the time that it wanted." in notice.message and "-t" not in notice.message


@pytest.mark.parametrize("share", [1.0, 0.85, 0.71])
def test_an_engine_alone_is_not_told(share: float) -> None:
    assert told(loaded(), share, replies=3) == []


def test_a_short_reply_tells_nothing() -> None:
    assert told(loaded(), 0.1, count=15, replies=4) == []


@pytest.mark.parametrize("on", [replace(loaded(), device="NVIDIA H200"), served()])
def test_a_gpu_or_a_server_keeps_no_threads_busy(on: Loaded) -> None:
    assert told(on, 0.1) == []


def test_the_engine_process_sends_it_after_the_step() -> None:
    now, used = 0.0, 0.0
    sent = io.BytesIO()
    engine = Engine(io.BytesIO(), sent)
    engine._crowding = Crowding(lambda: now, lambda: used)
    engine.emit(loaded())
    for step in steps(30):
        now, used = now + 0.1, used + 0.05
        engine.emit(step)
    sent.seek(0)
    events = [decode_event(payload) for payload in read_frames(sent)]
    (at,) = [i for i, event in enumerate(events) if isinstance(event, Notice)]
    assert isinstance(events[at - 1], Step) and len(events) == 32
