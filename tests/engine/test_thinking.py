"""Bytes to text, stop strings and thinking tags, however tokens cut them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4chat.engine.text import TextStream, Thinking, opens_thinking


def push_all(stream: TextStream, pieces: list[bytes]) -> list[str]:
    return [stream.push(piece) for piece in pieces]


def test_a_character_comes_with_the_token_that_completes_it() -> None:
    """An emoji split over tokens, as it may be over accepted tokens or over two steps."""
    whole = "🙂".encode()
    assert push_all(TextStream(), [b"a", whole[:1], whole[1:3], whole[3:] + b"b"]) == ["a", "", "", "🙂b"]


def test_bytes_that_are_not_utf8_come_out_as_replacement_characters() -> None:
    stream = TextStream()
    assert push_all(stream, [b"\x80", b"\xc3", b"x"]) == ["�", "", "�x"]
    assert stream.push(b"\xe2\x82") == ""
    assert stream.flush() == "�"


@given(st.text(), st.lists(st.integers(1, 4), max_size=40))
def test_any_cutting_of_utf8_gives_the_text_back(text: str, cuts: list[int]) -> None:
    raw = text.encode("utf-8", "surrogatepass") if text.isprintable() else text.encode("utf-8", "replace")
    expected = raw.decode("utf-8", "replace")
    stream, out, at = TextStream(), "", 0
    for n in cuts:
        out += stream.push(raw[at : at + n])
        at += n
    assert out + stream.push(raw[at:]) + stream.flush() == expected


def test_a_stop_string_over_three_tokens_never_shows() -> None:
    stream = TextStream(["\nUser:"])
    assert push_all(stream, [b"fine.\n", b"Us", b"er: hi"]) == ["fine.", "", ""]
    assert stream.stopped


def test_text_held_back_for_a_stop_string_comes_when_it_does_not_complete() -> None:
    stream = TextStream(["\nUser:"])
    assert push_all(stream, [b"a\nUs", b"age"]) == ["a", "\nUsage"]
    assert not stream.stopped
    assert stream.push(b"\nUse") == ""
    assert stream.flush() == "\nUse"


def test_text_before_a_stop_string_in_the_same_token_is_kept() -> None:
    stream = TextStream(["END"])
    assert stream.push(b"last words END and more") == "last words "
    assert stream.stopped


@pytest.mark.parametrize(
    ("pieces", "inside"),
    [
        (["<think>", "hm", "</think>", "yes"], [True, True, True, False]),
        (["<", "think", ">", "hm", "</th", "ink>", "yes"], [False, False, True, True, True, True, False]),
        (["<think>a</think>", "b"], [True, False]),
        (["plain", " text"], [False, False]),
    ],
)
def test_thinking_is_told_token_by_token(pieces: list[str], inside: list[bool]) -> None:
    thinking = Thinking(open_at_start=False)
    assert [thinking.push(piece) for piece in pieces] == inside


def test_a_template_may_open_the_thinking() -> None:
    assert opens_thinking("<|assistant|><think>\n")
    assert not opens_thinking("<think></think>\n")
    thinking = Thinking(open_at_start=True)
    assert [thinking.push(t) for t in ("so", "</think>", "x")] == [True, True, False]
