"""Servers that misbehave: what came is kept, a sentence says what to do, and the next request works."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from servers.kit import ask, connect
from servers.replay import recorded
from servers.scripted import Connection, Handler, Received, answers, llama, openai, says, scripted

from ds4chat.engine.control import Control
from ds4chat.engine.events import (
    Alive,
    Event,
    Loaded,
    LoadError,
    Loading,
    ServerAddress,
)
from ds4chat.servers import http, session

TLS = Path(__file__).parent / "tls"
KEY = "sk-very-secret"


LONG = 120.0
"""Seconds to wait for what must come; only a fault makes a test wait that long."""


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit is reached because the machine is busy: a test sets the one that it waits for."""
    monkeypatch.setattr(http, "CONNECT_S", LONG)
    monkeypatch.setattr(session, "STOPPED_S", LONG)
    monkeypatch.setattr(session, "AGAIN_S", 0.02)


class Clock:
    """The time by which a server's silence is measured."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0
        """Seconds that pass with each look."""

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def run(self) -> None:
        """From now on, every limit has passed at the next look."""
        self.step = 2 * max(http.ANSWER_S, http.CONNECT_S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands still until a server of the test has sent what it has to send."""
    clock = Clock()
    monkeypatch.setattr(http, "time", clock)
    return clock


def refuses(url: str, **address: str) -> str:
    with pytest.raises(LoadError) as caught:
        connect(url, **address)
    return str(caught.value)


def is_sentence(text: str) -> bool:
    return (text[:1].isupper() or text[:1] == '"') and text.endswith(".") and text.isprintable()


# -- refusals, before and instead of a reply


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "refused the request (HTTP 400: odd)"),
        (401, "wants an API key"),
        (403, "wants an API key"),
        (404, "does not know the model or the path"),
        (413, "does not take a request of this length"),
        (429, "too many requests"),
        (500, "failed (HTTP 500: odd)"),
        (502, "failed (HTTP 502: odd)"),
        (503, "is not ready"),
        (307, "redirects to another address"),
    ],
)
def test_a_refusal_is_a_sentence_and_a_retry_works(status: int, said: str) -> None:
    routes = openai(answers({"error": {"message": "odd"}}, status))
    with scripted(routes) as server:
        opened = connect(server.url)
        refused = ask(opened).ended
        routes["/v1/chat/completions"] = says("fine")
        again = ask(opened)
    assert refused.finish_reason == "error"
    assert said in refused.detail and is_sentence(refused.detail)
    assert (again.text, again.ended.finish_reason) == ("fine", "stop")


def test_a_context_that_is_too_small_ends_the_reply_for_that_reason() -> None:
    body = json.loads((Path(__file__).parent / "recorded" / "eagle3.error-context.json").read_text())
    coded = {"error": {"message": "No.", "type": "invalid", "code": "context_length_exceeded"}}

    def within(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"error": {"message": "It exceeds the model's Context Window."}})

    for handler in (answers(body, 400), answers(coded, 400), within):
        with scripted(openai(handler)) as server:
            ended = ask(connect(server.url)).ended
        assert ended.finish_reason == "context"
        assert "too small a context" in ended.detail and is_sentence(ended.detail)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("7", "Wait 7 s,"),
        ("", "Wait a little,"),
        ("Wed, 21 Oct 2026 07:28:00 GMT", "Wait a little,"),
        ("9" * 40, "Wait a little,"),
        ("\u00b2", "Wait a little,"),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_the_time_that_a_busy_server_asks_for_is_named(status: int, asked: str, said: str) -> None:
    busy = answers({"error": "busy"}, status, f"Retry-After: {asked}\r\n")
    with scripted(openai(busy)) as server:
        detail = ask(connect(server.url)).ended.detail
    assert said in detail and is_sentence(detail)


@pytest.mark.parametrize("body", [[{"error": {"message": "odd"}}], {"detail": "odd"}, {"error": "odd"}])
def test_the_servers_own_message_is_found_in_each_form_of_an_error(body: object) -> None:
    with scripted(openai(answers(body, 400))) as server:
        assert "(HTTP 400: odd)" in ask(connect(server.url)).ended.detail


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (301, "redirects to another address"),
        (308, "redirects to another address"),
        (429, "too many requests"),
        (500, "failed (HTTP 500: odd)"),
        (502, "failed (HTTP 502: odd)"),
        (503, "is not ready"),
        (504, "failed (HTTP 504: odd)"),
    ],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_refusal_during_recognition_is_reported(status: int, said: str, everywhere: bool) -> None:
    """Instead of being taken for none of the servers that are known."""

    refuse = answers({"error": {"message": "odd"}}, status, "Location: http://127.0.0.1:9/\r\n")
    paths = ("/health", "/props", "/slots", "/server_info", "/", "/api/v0/models", "/v1/models")
    with scripted(dict.fromkeys(paths if everywhere else ("/v1/models",), refuse)) as server:
        refused = refuses(server.url)
    assert said in refused and is_sentence(refused)


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_or_wrong_key_is_reported_when_the_server_is_opened(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted({"/v1/models": answers({"error": {"message": "no"}}, status)}) as server:
        assert "wants an API key" in refuses(server.url)
        monkeypatch.setenv("SOME_KEY", KEY)
        wrong = refuses(server.url, key_env="SOME_KEY")
    assert "refused the API key" in wrong
    assert KEY not in wrong


def test_a_server_that_loads_its_model_is_waited_for() -> None:
    loading = [3]

    def models(received: Received, connection: Connection) -> None:
        loading[0] -= 1
        if loading[0] > 0:
            connection.answer({"error": {"message": "Loading model", "type": "unavailable_error"}}, 503)
        else:
            connection.answer({"status": "ok"}, 200)

    events: list[Event] = []
    with scripted(openai(says("a")) | {"/health": models}) as server:
        opened = connect(server.url, events)
        assert ask(opened).text == "a"
    stages = [event.stage for event in events if isinstance(event, Loading)]
    assert "waiting for the server to load its model" in stages


# -- the key


def test_the_key_is_sent_with_each_request(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    file.chmod(0o600)
    with scripted(openai(says("a"))) as server:
        ask(connect(server.url, key_file=str(file)))
        assert {request.headers.get("authorization") for request in server.asked} == {f"Bearer {KEY}"}


@pytest.mark.parametrize("content", [b"two\nlines", b"a b", b"caf\xc3\xa9", b"a\x1b[31m", b"x" * 5000])
def test_an_invalid_key_is_refused_without_being_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(0o600)
    said = refuses("http://127.0.0.1:9", key_file=str(file))
    assert "is not a key" in said and is_sentence(said)
    assert content.decode("utf-8", "replace")[:4] not in said.replace(str(file), "")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o644)
    assert "can be read by others" in refuses("http://127.0.0.1:9", key_file=str(file))
    assert "cannot be read" in refuses("http://127.0.0.1:9", key_file=str(tmp_path / "none"))


def test_a_redirect_carries_neither_key_nor_conversation_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    with scripted(openai(says("stolen"))) as other:
        away = f"Location: {other.url}/v1/chat/completions\r\n"
        routes = openai(answers({}, 307, headers=away))
        with scripted(routes) as server:
            answer = ask(connect(server.url, key_file=str(file)))
        assert other.asked == []
    assert answer.ids == [] and "redirects" in answer.ended.detail


@pytest.mark.parametrize("url", ["http://me:pw@127.0.0.1:9", "http://me@127.0.0.1"])
def test_an_address_with_a_password_is_refused_without_showing_it(url: str) -> None:
    said = refuses(url)
    assert "pw" not in said.replace("http", "") and "password" in said


@pytest.mark.parametrize(
    "url", ["box", "ftp://x", "http://", "http://a b", "http://x:99999", "http://x\x1b[31m"]
)
def test_an_invalid_address_is_refused(url: str) -> None:
    assert is_sentence(refuses(url))


# -- the way there


def test_nothing_listens() -> None:
    assert "No server answers" in refuses("http://127.0.0.1:9")
    assert "No server answers" in refuses("http://no-such-host.invalid:80")


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with scripted(openai(says("a"))) as server:
        assert ask(connect(server.url)).text == "a"


def test_certificates_are_verified_and_a_private_authority_can_be_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = str(TLS / "cert.pem"), str(TLS / "key.pem")
    with scripted(openai(says("a")), tls=(cert, key)) as server:
        assert "is not trusted" in refuses(server.url)
        assert ask(connect(server.url, ca_file=cert)).text == "a"
        assert "cannot be used" in refuses(server.url, ca_file=key + ".none")
    monkeypatch.setattr(http, "CONNECT_S", 0.3)  # the server waits for the end of a line
    with scripted(openai(says("a"))) as plain:
        assert "does not speak TLS" in refuses(plain.url.replace("http:", "https:"), ca_file=cert)


def test_plain_http_to_another_machine_is_marked() -> None:
    for away in ("http://box:8080", "http://127.example.org", "http://localhost.example.org", "http://[::2]"):
        assert http.Endpoint(ServerAddress(away)).exposed
    assert not http.Endpoint(ServerAddress("https://box")).exposed
    for local in ("http://127.0.0.1:1", "http://LOCALHOST.", "http://my.localhost", "http://[::1]:8080"):
        assert not http.Endpoint(ServerAddress(local)).exposed


def test_an_address_in_ipv6_is_named_in_brackets() -> None:
    assert http.Endpoint(ServerAddress("http://[::1]:8080")).place == "[::1]:8080"
    assert http.Endpoint(ServerAddress("http://box")).place == "box:80"


def test_a_path_before_the_servers_own_is_kept() -> None:
    routes = {f"/k%C3%BC/b{path}": handler for path, handler in openai(says("a")).items()}
    with scripted(routes) as server:
        for ending in ("", "/", "/v1", "/v1/"):
            assert ask(connect(f"{server.url}/kü/b{ending}")).text == "a"


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_compressed_answer_is_refused_with_its_reason(everywhere: bool) -> None:
    coded = answers(raw=gzip.compress(b"{}"), headers="Content-Encoding: gzip\r\n")
    with scripted(openai(coded)) as server:
        if everywhere:
            server.routes["/v1/models"] = coded
            said = refuses(server.url)
        else:
            said = ask(connect(server.url)).ended.detail
    assert "compresses its answers (gzip)" in said and is_sentence(said)


@contextmanager
def deaf(queue: int = 8) -> Iterator[str]:
    """The address of a port where connections are made and never taken up."""
    with socket.create_server(("127.0.0.1", 0), backlog=queue) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_connecting_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECT_S", 0.3)
    with deaf(queue=0) as place, ExitStack() as waiting:
        host, _, port = place.partition(":")
        # With the queue full, a further connection gets no answer.
        for _ in range(4):
            waiting.enter_context(sock := socket.socket())
            sock.setblocking(False)
            sock.connect_ex((host, int(port)))
        said = refuses(f"http://{place}")
    assert "No server answers" in said and "not reached within" in said and is_sentence(said)


def test_the_tls_handshake_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECT_S", 0.3)
    with deaf() as place:
        said = refuses(f"https://{place}", ca_file=str(TLS / "cert.pem"))
    assert "does not speak TLS" in said and is_sentence(said)


def test_sending_a_request_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_S", 0.3)
    with deaf() as place, pytest.raises(http.ServerError, match="did not answer /v1/completions") as caught:
        endpoint = http.Endpoint(ServerAddress(f"http://{place}"))
        with endpoint.stream("/v1/completions", {"prompt": "x" * (32 << 20)}):
            pass
    assert caught.value.trouble == "silent"


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_whole_answer_has_a_time_limit(part: str, clock: Clock) -> None:
    """Each byte comes in time, and the answer never."""

    def trickles(received: Received, connection: Connection) -> None:
        if part == "body":
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        clock.run()
        while True:  # until the client closes
            connection.send(b"h")
            time.sleep(0.01)

    with scripted({"/health": trickles}) as server:
        assert "did not answer /health" in refuses(server.url)


def test_a_server_that_stops_listening_but_keeps_the_connection_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "ALIVE_S", 0.1)

    def leaves(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"choices": [{"delta": {"content": "half"}}]})
        server.stop_listening()
        connection.closed(LONG)

    with scripted(openai(leaves)) as server:
        answer = ask(connect(server.url))
    assert answer.text == "half"
    assert "broke off" in answer.ended.detail and "What came is kept." in answer.ended.detail


def test_a_server_that_does_not_speak_http_is_reported() -> None:
    with scripted(
        {"/health": lambda received, connection: connection.send(b"SSH-2.0-OpenSSH\r\n")}
    ) as server:
        assert "does not speak HTTP" in refuses(server.url)


# -- silence, ends and deaths


@pytest.fixture
def silent(clock: Clock) -> Handler:
    """Answers nothing, for longer than any limit."""

    def handle(received: Received, connection: Connection) -> None:
        clock.run()
        connection.closed(LONG)

    return handle


def test_a_server_that_is_silent_from_the_start_is_given_up(silent: Handler) -> None:
    with scripted({"/health": silent}) as server:
        assert "did not answer" in refuses(server.url)


def test_a_server_that_is_silent_when_asked_is_given_up(silent: Handler) -> None:
    with scripted(openai(silent)) as server:
        ended = ask(connect(server.url)).ended
    assert ended.finish_reason == "error" and "did not answer" in ended.detail


def test_silence_within_a_reply_ends_it_and_keeps_its_tokens(silent: Handler) -> None:
    def stalls(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"choices": [{"delta": {"content": "half"}}]})
        silent(received, connection)

    with scripted(openai(stalls)) as server:
        answer = ask(connect(server.url))
    assert answer.text == "half"
    assert answer.ended.finish_reason == "error"
    assert "did not answer" in answer.ended.detail and "What came is kept." in answer.ended.detail


def test_comments_are_signs_of_life(clock: Clock) -> None:
    came = threading.Semaphore(0)

    def slowly(received: Received, connection: Connection) -> None:
        connection.begin()
        for _ in range(4):
            connection.chunk(b": prefill\n\n")
            assert came.acquire(timeout=LONG)
            clock.now += 0.7 * http.ANSWER_S
        says("a")(received, _Continued(connection.sock))

    def count(event: Event, control: Control) -> None:
        if isinstance(event, Alive):
            came.release()

    with scripted(openai(slowly)) as server:
        answer = ask(connect(server.url), hook=count)
    assert answer.text == "a"
    assert sum(isinstance(event, Alive) for event in answer.events) == 4


class _Continued(Connection):
    """A connection whose head was sent."""

    def begin(self, kind: str = "") -> None:
        """Nothing."""


@pytest.mark.parametrize("abrupt", [True, False])
def test_a_server_that_dies_within_a_reply_loses_no_token(abrupt: bool) -> None:
    def dies(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"choices": [{"delta": {"content": "half"}}]})
        if not abrupt:
            connection.chunk(b"")

    routes = openai(dies)
    with scripted(routes) as server:
        opened = connect(server.url)
        answer = ask(opened)
        routes["/v1/chat/completions"] = says("whole")  # it was started again
        again = ask(opened)
    assert answer.text == "half"
    assert answer.ended.finish_reason == "error" and is_sentence(answer.ended.detail)
    assert ("broke off" in answer.ended.detail) == abrupt
    assert (again.text, again.ended.finish_reason) == ("whole", "stop")


@pytest.mark.parametrize("rest", [b"", b'data: {"usage": {"prom', b"data: [DONE]\n\n<p>Good bye.</p>"])
@pytest.mark.parametrize("abrupt", [True, False])
def test_a_reply_that_has_ended_is_complete_however_the_connection_ends(rest: bytes, abrupt: bool) -> None:
    def dies(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"choices": [{"delta": {"content": "all <"}}]})
        connection.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        if rest:
            connection.chunk(rest)
        if not abrupt:
            connection.chunk(b"")

    with scripted(openai(dies)) as server:
        answer = ask(connect(server.url))
    assert (answer.ended.finish_reason, answer.ended.detail) == ("stop", "")
    assert answer.text == "all <"


def test_a_reply_ends_with_done_though_the_connection_stays_open() -> None:
    left = threading.Event()

    def stays(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"choices": [{"delta": {"content": "all"}, "finish_reason": "stop"}]})
        usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 7}}).encode()
        connection.chunk(b"data: [DONE]\n\ndata: " + usage + b"\n\n")
        if connection.closed(LONG):
            left.set()

    with scripted(openai(stays)) as server:
        answer = ask(connect(server.url))
        assert left.wait(LONG)
    assert (answer.text, answer.ended.finish_reason, answer.ended.prompt_tokens) == ("all", "stop", 7)


def test_what_was_held_back_is_kept_when_the_stream_is_cut_within_an_event() -> None:
    def cut(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"choices": [{"delta": {"content": "<thi"}}]})
        connection.chunk(b'data: {"choices": [')
        connection.chunk(b"")

    with scripted(openai(cut)) as server:
        answer = ask(connect(server.url))
    assert answer.ended.finish_reason == "error"
    assert answer.text == answer.ended.tail == "<thi"


def test_a_server_that_disappears_between_replies_is_named() -> None:
    with scripted(openai(says("a"))) as server:
        opened = connect(server.url)
        ask(opened)
    assert f"No server answers at {server.url}" in ask(opened).ended.detail


@pytest.mark.parametrize(
    "body",
    [b'data: {"error": {"message": "ran out"}}\n\n', b'{"error": {"message": "ran out"}}'],
    ids=["framed", "bare"],
)
def test_an_error_within_a_reply_keeps_its_tokens(body: bytes) -> None:
    def fails(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"choices": [{"delta": {"content": "half"}}]})
        connection.chunk(body)
        connection.chunk(b"")

    with scripted(openai(fails)) as server:
        answer = ask(connect(server.url))
    assert answer.text == "half"
    assert "ran out" in answer.ended.detail and "kept" in answer.ended.detail


# -- more than was asked


def test_the_length_of_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(received: Received, connection: Connection) -> None:
        connection.begin()
        for _ in range(400):
            connection.chunk(b"x" * (1 << 16))

    with scripted(openai(says("a"), {"data": [{"id": "x" * (17 << 20)}]})) as server:
        assert "more than 16 MiB" in refuses(server.url)
    with scripted(openai(endless)) as server:
        assert "event of more than 16 MiB" in ask(connect(server.url)).ended.detail
    monkeypatch.setattr(session, "MOST_REPLY_BYTES", 2000)
    with scripted(openai(says(*["word "] * 100))) as server:
        answer = ask(connect(server.url))
    assert "has no end" in answer.ended.detail
    assert 0 < len(answer.tokens) < 100


ESCAPE = "\x1b]0;pwned\x07\x9b31m\u202e"


def test_names_and_errors_of_a_server_cannot_control_the_terminal() -> None:
    refuses_all = answers({"error": {"message": ESCAPE}}, 400)
    with scripted(openai(refuses_all, {"data": [{"id": f"m{ESCAPE}"}]})) as server:
        opened = connect(server.url)
        detail = ask(opened).ended.detail
    assert opened.loaded.target.name.isprintable()
    assert detail.isprintable()


def test_what_llama_server_reports_cannot_control_the_terminal() -> None:
    stream = recorded("eagle3.completion").replace(
        b'"speculative.types":"draft-eagle3"', b'"speculative.types":' + json.dumps(ESCAPE).encode()
    )
    assert stream != recorded("eagle3.completion")
    names = {"model_path": f"/{ESCAPE}.gguf", "build_info": ESCAPE, "chat_template": ESCAPE}
    routes = llama(answers(raw=stream), **names) | {"/v1/models": answers({"data": [{"id": ESCAPE}]})}
    events: list[Event] = []
    with scripted(routes) as server:
        answer = ask(connect(server.url, events))
    told = [event for event in answer.events if isinstance(event, Loaded)][-1]
    assert told.server is not None and told.drafter is not None
    said = [told.target.name, told.device, told.off_reason, told.server.version, told.drafter.kind]
    said += [step.drafter for step in answer.steps] + [answer.ended.detail, *answer.notices]
    assert all(text.isprintable() for text in said), said


# -- another model, a stop


def test_a_change_of_the_model_is_reported_with_its_first_reply() -> None:
    def named(model: str) -> Handler:
        def handle(received: Received, connection: Connection) -> None:
            connection.begin()
            connection.event({"model": model, "choices": [{"delta": {"content": "a"}}]})
            connection.event({"model": model, "choices": [{"delta": {}, "finish_reason": "stop"}]})
            connection.chunk(b"")

        return handle

    routes = openai(named("one"))
    with scripted(routes) as server:
        opened = connect(server.url)
        assert ask(opened).notices == []
        routes |= openai(named("two\x1b"), {"data": [{"id": "two"}]})
        server.routes = routes
        changed = ask(opened)
        after = ask(opened)
    assert any("now answers with two" in notice and notice.isprintable() for notice in changed.notices)
    assert after.notices == []


def half_of_a_reply(received: Received, connection: Connection) -> bool:
    """Streams until the client closes; whether it did."""
    connection.begin()
    connection.chunk(recorded("eagle3.completion")[:6000])
    return connection.closed(LONG)


def stop(event: Event, control: Control) -> None:
    """Stops the reply at its second step."""
    if getattr(event, "index", None) == 1:
        control.cancel()


@pytest.mark.parametrize("tells", [True, False])
def test_a_cancel_closes_the_connection_and_reports_whether_the_server_stopped(tells: bool) -> None:
    closed = threading.Event()

    def endless(received: Received, connection: Connection) -> None:
        if half_of_a_reply(received, connection):
            closed.set()

    def slots(received: Received, connection: Connection) -> None:
        connection.answer([{"is_processing": not closed.is_set()}])

    routes = llama(endless) | {"/slots": slots if tells else answers({}, 501)}
    with scripted(routes) as server:
        answer = ask(connect(server.url), hook=stop)
    assert closed.wait(LONG)
    assert answer.ended.finish_reason == "cancelled"
    assert answer.text.startswith("This is")
    assert ("The server stopped" in answer.ended.detail) == tells
    assert ("does not tell whether" in answer.ended.detail) != tells


def test_a_server_that_keeps_writing_after_a_cancel_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "STOPPED_S", 0.1)
    routes = llama(lambda received, connection: half_of_a_reply(received, connection) and None)
    routes["/slots"] = answers([{"is_processing": True}])
    with scripted(routes) as server:
        assert "still writing" in ask(connect(server.url), hook=stop).ended.detail


def test_step_times_are_the_servers_even_if_a_proxy_buffers_the_stream() -> None:
    """All of it arrives at once; the steps took what the server says."""
    with scripted(llama(answers(raw=recorded("eagle3.completion")))) as server:
        answer = ask(connect(server.url))
    assert answer.ended.decode_ms == pytest.approx(512.039)
    assert answer.steps[1].ms.total == pytest.approx(40.179)
    assert answer.stats.accepted == 24
