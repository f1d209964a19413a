"""The wire form: every message comes back as it went, and nothing else gets through."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4chat.engine import wire
from ds4chat.engine.events import (
    Cancel,
    Generate,
    Judged,
    Message,
    Notice,
    Phases,
    Replayed,
    Step,
    Token,
    Tuning,
)
from ds4chat.engine.wire import (
    MAX_FRAME,
    READ_BYTES,
    ProtocolError,
    decode_command,
    decode_event,
    encode,
    read_frames,
)

STEP = Step(
    reply=3,
    index=0,
    tokens=(Token(5, 'é "\n\x1b', "accepted"), Token(6, "", "bonus", True)),
    drafted=1,
    judged=(Judged(1, 5, "a", 5, "a", True, "match", 1.0, 2.5, 0.5, 0.9),),
    outcome="full",
    ms=Phases(1, 2, 3, 4, 5, 15),
    tuning=Tuning(depth="auto", margin=0.5),
    depth=1,
    drafter="nextn-support",
    context_used=9,
)


def test_events_and_commands_come_back_equal() -> None:
    assert decode_event(encode(STEP)[4:]) == STEP
    command = Generate(1, (Message("user", "hi"),), tuning=Tuning(depth=16), stop=("x",))
    assert decode_command(encode(command)[4:]) == command


def test_a_frame_begins_with_its_length() -> None:
    frame = encode(Cancel(7))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


class Pipe(BytesIO):
    """Has ``ready`` bytes at each read."""

    def __init__(self, data: bytes, ready: int) -> None:
        super().__init__(data)
        self.ready = ready
        self.reads = 0

    def read1(self, size: int | None = -1) -> bytes:
        self.reads += 1
        return super().read1(min(self.ready, size or 0))


FRAMES = [encode(STEP), encode(Notice("info", "x")), encode(replace(STEP, index=1))]


@pytest.mark.parametrize("ready", [1, 4, 5, len(FRAMES[0]), len(FRAMES[0]) + 3, 10_000])
def test_frames_are_read_wherever_reads_cut_them(ready: int) -> None:
    payloads = read_frames(Pipe(b"".join(FRAMES) + FRAMES[0][:-1], ready))
    assert list(payloads) == [frame[4:] for frame in FRAMES]


def test_frames_gather_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five frames come while the reader sleeps, and one read takes them."""
    pipe = Pipe(FRAMES[0] * 101, len(FRAMES[0]))
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        pipe.ready = 5 * len(FRAMES[0])

    monkeypatch.setattr(wire.time, "sleep", sleep)
    assert len(list(read_frames(pipe, 0.05))) == 101
    assert (pipe.reads, slept) == (1 + 20 + 1, [0.05] * 21)


def test_a_reader_does_not_sleep_while_there_is_more_in_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.time, "sleep", lambda _: pytest.fail("slept"))
    other_bytes = len(encode(Notice("info", "")))
    frame = encode(Notice("info", "x" * (3 * READ_BYTES - other_bytes)))
    assert list(read_frames(Pipe(frame, len(frame)), 0.05)) == [frame[4:]]


def test_a_length_that_no_frame_has_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a frame of"):
        list(read_frames(BytesIO((MAX_FRAME + 1).to_bytes(4, "big"))))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b'{"type":"Step","body":{}}',
        b'{"type":"Nothing","body":{}}',
        b'{"type":"Cancel","body":{"reply":"one"}}',
        b"[" * 5000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(payload)
    with pytest.raises(ProtocolError):
        decode_event(payload)


def test_a_command_is_no_event() -> None:
    with pytest.raises(ProtocolError):
        decode_event(encode(Cancel(1))[4:])


@given(st.data())
def test_a_mutated_frame_is_an_event_or_a_protocol_error(data: st.DataObject) -> None:
    payload = bytearray(encode(data.draw(st.sampled_from([STEP, Notice("info", "x")])))[4:])
    for _ in range(data.draw(st.integers(1, 6))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        event = decode_event(bytes(payload))
    except ProtocolError:
        return
    assert type(event).__name__ in wire._EVENTS
    encode(event)


def test_the_mode_follows_from_strict_and_margin() -> None:
    assert Tuning().mode == "exact"
    assert Tuning(margin=0.3).mode == "approximate"
    assert Tuning(margin=0.3, strict=True).mode == "strict"


def test_a_check_that_timed_plain_decoding_says_how_fast_it_was() -> None:
    timed = Replayed(1, True, 22, -1, -1, -1, "", "", 0.0, "", plain_ms=440.0)
    assert timed.plain_speed == "Plain decoding took 20.0 ms a token, 50.0 tok/s."
    assert replace(timed, plain_ms=0.0).plain_speed == ""
