"""What breaks clients of such streams, without a socket: framing, encodings, errors and ends."""

from __future__ import annotations

import json

import pytest
from servers.replay import blocks, end, its_end, pieces, tokens

from ds4chat.engine.events import UNKNOWN_ID
from ds4chat.servers.dialect import End, Reader
from ds4chat.servers.http import Answer, ServerError
from ds4chat.servers.llama_server import LlamaReader
from ds4chat.servers.ollama import OllamaReader
from ds4chat.servers.openai import OpenAIReader
from ds4chat.servers.sglang import GenerateReader
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
def test_a_stream_that_is_cut_has_no_reason(last: bytes) -> None:
    found = pieces(OpenAIReader(), [event("a"), last])
    assert [token.text for token in tokens(found)] == ["a"]
    assert end(found) == End(None)


@pytest.mark.parametrize(
    ("reader", "chunk"),
    [
        (OpenAIReader, {"choices": [{"delta": {"content": "<think>hm</think>yes"}}]}),
        (LlamaReader, {"content": "<think>hm</think>yes", "tokens": [1], "timings": {"predicted_n": 1}}),
        (OllamaReader, {"message": {"content": "<think>hm</think>yes"}}),
        (GenerateReader, {"text": "<think>hm</think>yes", "output_ids": [1]}),
    ],
)
def test_a_stream_that_is_cut_loses_no_text(reader: type[Reader], chunk: object) -> None:
    found = pieces(reader(), [json.dumps(chunk).encode() + b"\n"])
    last = its_end(found)
    assert last.reason is None
    assert "".join(token.text for token in tokens(found)) + last.thinking_tail + last.tail == "hmyes"


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n',
        b'event: error\ndata: {"error": "out of memory"}\n\n',
        b'{"error": {"message": "out of memory"}}',
        b'{\n  "error": {\n    "message": "out of memory"\n  }\n}\n',
        b'data: {"object": "error", "message": "out of memory", "code": 500}\n\n',
    ],
    ids=["in an event", "as text", "without framing", "over lines", "as an object"],
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


def test_a_byte_order_mark_at_the_beginning_is_left_out() -> None:
    assert text_of(b"\xef\xbb\xbf" + event("a"), STOP) == "a"
    assert text_of(b"\xef", b"\xbb\xbf" + event("a"), STOP) == "a"


def test_unknown_fields_are_ignored() -> None:
    assert EventStream().feed(b"timestamp: 3\nx-id:7\nping\nevent: message\ndata: 1\n\n") == [b"1"]
    assert EventStream().finish() == []
    found = pieces(OpenAIReader(), [event("a"), b"timestamp: 3\n\n", STOP])
    assert end(found) == End("stop")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("reader", [OpenAIReader, LlamaReader])
def test_a_whole_answer_is_read_where_a_server_does_not_stream(
    reader: type[OpenAIReader] | type[LlamaReader], indent: int | None
) -> None:
    message = {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    body = {"choices": [{"message": message, "finish_reason": "length"}]}
    found = pieces(reader(), [json.dumps(body, indent=indent).encode()])
    assert [(token.text, token.thinking) for token in tokens(found)] == [("hm", True), ("yes", False)]
    assert its_end(found).reason == "length"


def test_a_whole_completion_of_llama_server_is_read() -> None:
    body = {"content": "<think>hm</think>yes", "tokens": [1, 2, 3], "stop": True, "stop_type": "eos"}
    timings = {"predicted_n": 3, "predicted_ms": 9.0, "draft_n": 0, "draft_n_accepted": 0}
    found = pieces(LlamaReader(), [json.dumps(body | {"timings": timings}).encode()])
    last = its_end(found)
    assert last.reason == "stop"
    assert "".join(token.text for token in tokens(found)) + last.thinking_tail + last.tail == "hmyes"


@pytest.mark.parametrize("reader", [OpenAIReader, LlamaReader])
def test_a_whole_message_after_its_chunks_is_not_read_again(
    reader: type[OpenAIReader] | type[LlamaReader],
) -> None:
    again = {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}
    found = pieces(reader(), [event("yes"), b"data: " + json.dumps(again).encode() + b"\n\n"])
    assert [token.text for token in tokens(found)] == ["yes"]
    native = [{"content": "yes", "tokens": [1]}, {"content": "yes", "stop": True, "stop_type": "eos"}]
    found = pieces(LlamaReader(), [json.dumps(chunk).encode() + b"\n" for chunk in native])
    assert [token.text for token in tokens(found)] == ["yes"]


@pytest.mark.parametrize(
    "delta",
    [
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "yes"},
                {"type": "reference", "reference_ids": [1]},
            ]
        },
        {"content": [{"type": "thinking", "thinking": "hm"}, "yes"]},
        {"reasoning": {"text": "hm"}, "content": ["y", "es"]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}], "content": "yes"},
        {"reasoning": "hm", "reasoning_details": [{"text": "hm"}], "content": "yes"},
    ],
)
def test_contents_and_thinking_may_be_typed_parts(delta: dict[str, object]) -> None:
    body = {"choices": [{"delta": delta}]}
    found = tokens(pieces(OpenAIReader(), [b"data: " + json.dumps(body).encode() + b"\n\n", STOP]))
    assert [(token.text, token.thinking) for token in found] == [("hm", True), ("yes", False)]


def test_a_refusal_is_the_answer() -> None:
    body = {"choices": [{"delta": {"content": None, "refusal": "I cannot."}}]}
    assert text_of(b"data: " + json.dumps(body).encode() + b"\n\n", STOP) == "I cannot."


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("abort", "gave up"),
        ("error", "gave up"),
        ("CANCELLED", "gave up"),
        ("insufficient_system_resource", "gave up"),
        ("content_filter", "content filter"),
        ("content-filter", "content filter"),
        ("SAFETY", "content filter"),
    ],
)
def test_a_reply_that_the_server_did_not_complete_is_an_error(reason: str, said: str) -> None:
    ollama = {"message": {"content": "half"}, "done": True, "done_reason": reason}
    sglang = {"text": "half", "output_ids": [1], "meta_info": {"finish_reason": {"type": reason}}}
    for last in (
        its_end(pieces(OpenAIReader(), [event("half"), event(reason=reason)])),
        its_end(pieces(LlamaReader(), [event("half"), event(reason=reason)])),
        its_end(pieces(OllamaReader(), [json.dumps(ollama).encode()])),
        its_end(pieces(GenerateReader(), [b"data: " + json.dumps(sglang).encode() + b"\n\n"])),
    ):
        assert last.reason == "error"
        assert said in last.detail


@pytest.mark.parametrize("reason", ["length", "LENGTH", "max_tokens", "model_length"])
def test_a_limit_is_told_by_each_of_its_names(reason: str) -> None:
    assert end(pieces(OpenAIReader(), [event("half"), event(reason=reason)])) == End("length")


@pytest.mark.parametrize("reader", [OpenAIReader, LlamaReader])
def test_an_empty_reason_is_none(reader: type[Reader]) -> None:
    """Some servers send one with each chunk."""
    chunks = [event("a", reason=""), event("b", reason="")]
    assert its_end(pieces(reader(), chunks)).reason is None
    assert its_end(pieces(reader(), [*chunks, STOP])).reason == "stop"


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (b'{"choices": [{"delta": {"content": "a"}, "logprob": NaN}]}', "a"),
        (b'{"choices": [{"delta": {"content": "a"}, "logprob": -Infinity}]}', "a"),
        (b'{"choices": [{"delta": {"content": "a\\ud83d"}}]}', "a\ufffd"),
        (b'{"choices": [{"delta": {"content": "a\\ud83d\\ude42"}, "x": NaN}]}', "a\U0001f642"),
        (b'{"choices": [{"delta": {"content": "a\xff"}, "x": NaN}]}', "a\ufffd"),
    ],
)
def test_what_is_common_in_json_without_being_json_is_read(said: bytes, read: str) -> None:
    """Python's writer puts NaN into it, JavaScript's halves of a character."""
    assert text_of(b"data: " + said + b"\n\n", STOP) == read
    answer = Answer("/", 200, {}, said)
    assert answer.json()["choices"][0]["delta"]["content"] == read


@pytest.mark.parametrize("said", [b"[" * 100_000, b'{"a":' * 5000 + b"NaN", b"1" * 5000, b"{1}"])
def test_what_cannot_be_read_as_json_is_an_error(said: bytes) -> None:
    with pytest.raises(ServerError, match="is not JSON"):
        pieces(OpenAIReader(), [b"data: " + said + b"\n\n"])
    assert Answer("/", 200, {}, said).json() is None


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [{"function": {"name": "get", "arguments": '{"a": 1}'}}]},
        {"tool_calls": [{"function": {"name": "get", "arguments": {"a": 1}}}]},
        {"function_call": {"name": "get", "arguments": '{"a": 1}'}},
    ],
)
def test_a_call_of_a_tool_is_not_lost(message: dict[str, object]) -> None:
    """None was offered, so it is shown as what it is: not an answer."""
    chunk = b"data: " + json.dumps({"choices": [{"delta": message}]}).encode() + b"\n\n"
    calls = event(reason="tool_calls")
    found = [tokens(pieces(reader(), [chunk, calls])) for reader in (OpenAIReader, LlamaReader)]
    found.append(tokens(pieces(OllamaReader(), [json.dumps({"message": message}).encode() + b"\n"])))
    for said in found:
        assert [(token.text, token.thinking) for token in said] == [('get {"a": 1}', True)]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "thinking"])
def test_thinking_is_found_under_each_of_its_names(field: str) -> None:
    chunk = b"data: " + json.dumps({"choices": [{"delta": {field: "hm"}}]}).encode() + b"\n\n"
    (token,) = tokens(pieces(OpenAIReader(), [chunk, STOP]))
    assert (token.text, token.thinking) == ("hm", True)


@pytest.mark.parametrize("body", [{"message": "out of memory"}, {"detail": "out of memory"}])
@pytest.mark.parametrize("framing", ["event: error\ndata: {}\n\n", "{}\n"])
def test_an_error_without_the_usual_frame_is_repeated(body: dict[str, str], framing: str) -> None:
    with pytest.raises(ServerError, match="out of memory"):
        pieces(OpenAIReader(), [event("half"), framing.replace("{}", json.dumps(body)).encode()])
    chunk = {"message": "success", "choices": [{"delta": {"content": "yes"}}]}
    assert text_of(b"data: " + json.dumps(chunk).encode() + b"\n\n", STOP) == "yes"


HUGE = 10**40


def test_no_number_is_more_than_the_wire_and_the_database_hold() -> None:
    usage = {"prompt_tokens": HUGE, "prompt_tokens_details": {"cached_tokens": HUGE}}
    stop = {"stop": True, "generation_settings": {"seed": HUGE}, "timings": {"prompt_ms": HUGE}}
    ids = [
        {"content": "a", "tokens": [HUGE], "timings": {"predicted_n": 1, "predicted_ms": -1.0}},
        {"content": "b", "tokens": [-7], "timings": {"predicted_n": 2, "predicted_ms": HUGE}},
    ]
    last = its_end(pieces(OpenAIReader(), [STOP, json.dumps({"usage": usage}).encode()]))
    assert (last.prompt_tokens, last.reused_tokens) == (0, 0)
    found = pieces(LlamaReader(), [json.dumps(body).encode() + b"\n" for body in [*ids, stop]])
    last = its_end(found)
    assert (last.seed, last.prefill_ms) == (0, None)
    assert [token.id for token in tokens(found)] == [UNKNOWN_ID, UNKNOWN_ID]
    assert all((block.ms or 0) >= 0 for block in blocks(found))


def test_a_count_that_jumps_makes_no_tokens() -> None:
    """Millions of hidden tokens would fill the memory."""
    jump = 1 << 40
    timings = [{"predicted_n": n, "predicted_ms": 1.0 * i} for i, n in enumerate((1, jump, jump + 1))]
    chunks = [{"content": "a", "tokens": [7], "timings": each} for each in timings]
    chunks.append({"stop": True, "stop_type": "eos", "timings": {"predicted_n": 2 * jump}})
    found = tokens(pieces(LlamaReader(), [json.dumps(chunk).encode() + b"\n" for chunk in chunks]))
    assert [token.text for token in found] == ["a", "a", "a"]
    meta = {"completion_tokens": jump, "finish_reason": {"type": "stop"}}
    for ids in ({}, {"output_ids": [1, 2]}):
        body = json.dumps({"text": "abc", "meta_info": meta, **ids}).encode()
        assert len(tokens(pieces(GenerateReader(), [b"data: " + body + b"\n\n"]))) <= 5


@pytest.mark.parametrize("then", [(5, 0), (2, 1), (5, 9)])
def test_counters_that_contradict_each_other_leave_the_origins_unknown(then: tuple[int, int]) -> None:
    chunks = []
    for i, (drafted, accepted) in enumerate([(0, 0), (3, 1), (3, 1), then], start=1):
        ms = (1.0, 2.0, 2.0, 3.0)[i - 1]
        counted = {"draft_n": drafted, "draft_n_accepted": accepted}
        timings = {"predicted_n": i, "predicted_ms": ms, **counted}
        chunks.append({"content": "abcd"[i - 1], "tokens": [i], "timings": timings})
    found = tokens(pieces(LlamaReader(), [json.dumps(chunk).encode() + b"\n" for chunk in chunks]))
    origins = ["plain", "accepted", "corrected", "unknown"]
    assert [(token.text, token.origin) for token in found] == list(zip("abcd", origins))
