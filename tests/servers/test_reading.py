"""What breaks clients of such streams, without a socket: framing, encodings, errors and ends."""

from __future__ import annotations

import json

import pytest
from servers.replay import end, its_end, pieces, tokens

from ds4chat.servers.dialect import End
from ds4chat.servers.http import ServerError
from ds4chat.servers.openai import OpenAIReader
from ds4chat.servers.sse import EventStream, TooLongError


def event(content: str = "", reason: str | None = None, **delta: str) -> bytes:
    body = {"choices": [{"delta": {"content": content, **delta}, "finish_reason": reason}]}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def text_of(*parts: bytes) -> str:
    return "".join(token.text for token in tokens(pieces(OpenAIReader(), parts)))


STOP = event(reason="stop")


def test_a_character_cut_between_two_reads_is_whole() -> None:
    data = event("naïve 🙂") + STOP
    for at in range(len(data)):
        assert text_of(data[:at], data[at:]) == "naïve 🙂"


@pytest.mark.parametrize("strange", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_a_line_ends_only_in_lf_crlf_or_cr(strange: str) -> None:
    assert text_of(event(f"a{strange}b") + STOP) == f"a{strange}b"


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_is_recognised_however_it_is_cut(ending: bytes) -> None:
    data = (event("one") + event("two") + STOP).replace(b"\n", ending)
    assert text_of(data) == "onetwo"
    assert text_of(*(data[i : i + 1] for i in range(len(data)))) == "onetwo"


def test_bytes_without_a_charset_are_utf_8() -> None:
    assert text_of(b"data: " + '{"choices":[{"delta":{"content":"é"}}]}\n\n'.encode() + STOP) == "é"


def test_comments_and_blank_lines_after_them_are_not_events() -> None:
    stream = EventStream()
    assert stream.feed(b": prefill 3%\n\n:\n\n\n\n") == []
    assert stream.comments == 2
    assert stream.feed(b"data: 1\n\n: x\ndata: 2\ndata: 3\n\n") == [b"1", b"2\n3"]


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b"", b"data: [DONE]", b"data:  [DONE] \n\n"])
def test_done_may_be_missing(last: bytes) -> None:
    found = pieces(OpenAIReader(), [event("a"), STOP, last])
    assert end(found) == End("stop")


def test_a_last_event_without_its_blank_line_counts() -> None:
    found = pieces(OpenAIReader(), [event("a"), STOP.rstrip(b"\n")])
    assert end(found) == End("stop")


@pytest.mark.parametrize("last", [b"", b"data: [DONE]\n\n"])
def test_a_stream_without_a_reason_has_no_end(last: bytes) -> None:
    found = pieces(OpenAIReader(), [event("a"), last])
    assert [token.text for token in tokens(found)] == ["a"]
    assert end(found) is None


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n',
        b'event: error\ndata: {"error": "out of memory"}\n\n',
        b'{"error": {"message": "out of memory"}}',
        b'{\n  "error": {\n    "message": "out of memory"\n  }\n}\n',
    ],
    ids=["in an event", "as text", "without framing", "over lines"],
)
def test_an_error_in_the_stream_is_raised(error: bytes) -> None:
    with pytest.raises(ServerError, match="out of memory"):
        pieces(OpenAIReader(), [event("a"), error])


def test_an_event_that_is_not_json_is_an_error() -> None:
    with pytest.raises(ServerError, match="not JSON"):
        pieces(OpenAIReader(), [b"data: <html>\n\n"])
    with pytest.raises(ServerError, match="not JSON"):
        pieces(OpenAIReader(), [b"<html>gateway</html>"])


def test_chunks_without_choices_are_ignored() -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
    odd = b'data: {"choices": null}\n\ndata: {"choices": [null]}\n\ndata: {}\n\ndata: []\n\ndata: 3\n\n'
    last = its_end(pieces(OpenAIReader(), [event("a"), odd, STOP, usage]))
    assert last.prompt_tokens == 7


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_is_recognised_by_either_name(name: str) -> None:
    body = {"choices": [{"delta": {"content": None, name: "hm"}, "finish_reason": None}]}
    found = tokens(
        pieces(OpenAIReader(), [b"data: " + json.dumps(body).encode() + b"\n\n", event("a"), STOP])
    )
    assert [(token.text, token.thinking) for token in found] == [("hm", True), ("a", False)]


def test_thinking_between_tags_is_separated_from_the_text() -> None:
    found = tokens(
        pieces(OpenAIReader(), [event("<think>"), event("hm"), event("</think>"), event("a"), STOP])
    )
    assert [token.thinking for token in found] == [True, True, True, False]


def test_an_event_that_never_ends_is_an_error() -> None:
    stream = EventStream()
    with pytest.raises(TooLongError):
        for _ in range(40):
            stream.feed(b"x" * (1 << 20))


def test_invalid_utf_8_becomes_replacement_characters() -> None:
    assert text_of(b'data: {"choices":[{"delta":{"content":"a\xffb"}}]}\n\n' + STOP) == "a\ufffdb"
