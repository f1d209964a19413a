"""A llama-server beside the bench, over a real socket.

llama_server.json holds what a llama-server answered (llama.cpp 0c1e570, the demo's target): status and body
of /props, /v1/models, /slots and /completion, in peace and in trouble. Left out are its sampling settings and
the chat template; the model's folder is shortened.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kits.engine import load_of, opened

from ds4chat.commands import bench
from ds4chat.commands.bench import server as module
from ds4chat.commands.bench.plan import QUICK
from ds4chat.commands.bench.runs import Measurement
from ds4chat.commands.bench.server import LlamaServer, ServerReply
from ds4chat.commands.bench.workloads import workloads
from ds4chat.commands.options import BenchOptions
from ds4chat.errors import UserFacingError
from ds4chat.servers import http
from ds4chat.settings.schema import Settings

RECORDED: dict[str, tuple[int, Any]] = {
    name: (status, body)
    for name, (status, body) in json.loads(
        (Path(__file__).parent / "llama_server.json").read_text(encoding="utf-8")
    ).items()
}
MODEL = ("SmolLM2", 49152, 96576768)
"""Name, vocabulary and bytes of the model in the recordings."""
PATHS = {"/props": "props", "/v1/models": "models", "/slots": "slots", "/completion": "completion"}


class Peer(ThreadingHTTPServer):
    """Answers each path with a recording, or as a function does with the request's handler."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answers: dict[str, str | tuple[int, Any] | Callable[[_Handler], None]] = dict(PATHS)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.over = threading.Event()
        """Set when the test ends: what is held back until then may go."""


class _Handler(BaseHTTPRequestHandler):
    server: Peer

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        answer = self.server.answers.get(self.path, "not_found")
        if isinstance(answer, str):
            answer = RECORDED[answer]
        if callable(answer):
            answer(self)
        else:
            self.send(answer[0], json.dumps(answer[1]).encode())

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.do_GET()

    def send(self, status: int, payload: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload) if length is None else length))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: stderr is ds4chat's."""


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    monkeypatch.delenv(module.KEY_VARIABLE, raising=False)
    made = Peer()
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    made.over.set()
    made.shutdown()
    made.server_close()
    thread.join()


def tiny_settings(folder: Path) -> Settings:
    load = load_of(folder, "llama-draft")
    return Settings(model=load.model, mtp=load.support, ctx_size=512, threads=1)


# ------------------------------------------------------------------------------------ what is asked and read


def test_a_reply_is_the_likeliest_tokens_of_the_same_prompt_read_anew(peer: Peer) -> None:
    reply = LlamaServer(peer.url + "/").answer([1, 4093, 198], 12)
    (asked,) = peer.asked
    assert asked["prompt"] == [1, 4093, 198]
    assert asked["n_predict"] == 12
    assert (asked["samplers"], asked["top_k"], asked["temperature"]) == (["top_k"], 1, 0)
    assert asked["cache_prompt"] is False and asked["return_tokens"] is True and asked["stream"] is False
    assert reply is not None
    assert reply.text == "I'm here to help you with anything you're looking for"
    assert (len(reply.ids), reply.ids[-1], reply.tokens) == (12, 327, 12)
    assert (reply.drafted, reply.accepted) == (0, 0)


def test_the_speed_is_that_of_the_tokens_after_the_first() -> None:
    """12 tokens in 75.705 ms, of which the first came with the prompt: 11 / 0.075705 s. So this version of
    llama-server counts too; others give 12 / 0.075705 s as their rate, which is not taken over."""
    _, body = RECORDED["completion"]
    timings = {**body["timings"], "predicted_per_second": 158.5}
    assert ServerReply.of({**body, "timings": timings}).tokens_per_s == pytest.approx(145.3008, abs=1e-3)
    one = {**body, "tokens": [57], "timings": {**timings, "predicted_n": 1, "predicted_ms": 0.001}}
    assert ServerReply.of(one).tokens_per_s is None


def test_the_token_that_ended_a_reply_is_no_token_of_it_and_the_servers_own_drafts_are_counted() -> None:
    reply = ServerReply.of(RECORDED["completion_drafted"][1])
    assert (len(reply.ids), reply.ids[-1], reply.tokens) == (49, 30, 50)
    assert (reply.drafted, reply.accepted) == (36, 35)


def test_the_name_is_the_model_and_the_address_without_what_could_steer_a_terminal(peer: Peer) -> None:
    assert LlamaServer(peer.url).name == f"SmolLM2-135M-Instruct.Q4_1.gguf at {peer.url}"
    peer.answers["/props"] = (200, {"model_path": "C:\\models\\a\x1b]0;owned\x07.gguf"})
    assert LlamaServer(peer.url).name == f"a\\x1b]0;owned\\x07.gguf at {peer.url}"
    peer.answers["/props"] = (200, {})
    assert LlamaServer(peer.url).name == peer.url


def test_an_address_may_have_a_folder(peer: Peer) -> None:
    peer.answers = {"/llm" + path: name for path, name in PATHS.items()}
    assert LlamaServer(peer.url + "/llm/").answer([1], 4) == ServerReply.of(RECORDED["completion"][1])
    with pytest.raises(UserFacingError, match=r"HTTP 404: File Not Found"):
        LlamaServer(peer.url)


def test_the_key_is_sent_where_one_is_set(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    LlamaServer(peer.url)
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    LlamaServer(peer.url)
    assert peer.keys == [None, "Bearer secret"]


# ------------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:x",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://a b",
        "http://a\nb",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserFacingError, match=r"not the address of a server.*http://127\.0\.0\.1:8080"):
        LlamaServer(url)


def test_a_server_that_is_not_there_is_said_so_before_anything_is_loaded() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    says = rf"No server answers at {url}: Connection refused\. Start it there"
    with pytest.raises(UserFacingError, match=says):
        bench.run(Settings(model="missing.gguf"), BenchOptions(compare=url))


@pytest.mark.parametrize(
    ("answer", "key", "says"),
    [
        ("loading", "", "still loading its model. Wait until it has"),
        (
            "key",
            "",
            r"wants an API key \(HTTP 401: Invalid API Key\). Put it into the variable LLAMA_API_KEY",
        ),
        ("key", "wrong", r"refused the API key \(HTTP 401.*Put its own key into the variable LLAMA_API_KEY"),
        ("router", "", "router without a model of its own. Start a llama-server with -m"),
        ("not_found", "", r"does not know the model or the path \(HTTP 404: File Not Found\)"),
        ((500, "no object"), "", r"failed \(HTTP 500\)"),
        ((200, ["list"]), "", "did not answer as a llama-server does"),
    ],
)
def test_a_server_that_refuses_is_named_with_what_to_do(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, answer: str | tuple[int, Any], key: str, says: str
) -> None:
    if key:
        monkeypatch.setenv("LLAMA_API_KEY", key)
    peer.answers["/props"] = answer
    with pytest.raises(UserFacingError, match=says) as raised:
        LlamaServer(peer.url)
    assert peer.url in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("context", "too small a context for this conversation .*start the server with a larger context"),
        ("invalid_tokens", r"refused the request \(HTTP 400: Prompt contains invalid tokens\)"),
        ((200, {"choices": []}), "without text and timings, so it is not a llama-server"),
        ((200, {"content": "x", "timings": {"predicted_n": None}}), "without text and timings"),
    ],
)
def test_a_prompt_that_is_not_answered_says_why(peer: Peer, answer: str | tuple[int, Any], says: str) -> None:
    peer.answers["/completion"] = answer
    with pytest.raises(UserFacingError, match=says):
        LlamaServer(peer.url).answer([1, 2], 4)


def test_another_model_is_refused_by_vocabulary_and_size(peer: Peer) -> None:
    server = LlamaServer(peer.url)
    server.check(*MODEL)
    server.check("a version that counts a layer more", 49152, round(96576768 * 1.02))
    with pytest.raises(UserFacingError, match=r"another model: .* 92 MiB .* 86 MiB .* with the same file"):
        server.check("Q4_0", 49152, 90_000_000)
    with pytest.raises(UserFacingError, match=r"vocabulary of 49,152, .* 32,000"):
        server.check("other", 32000, 96576768)
    for answer in ("not_found", (200, {"data": []})):  # servers that do not tell
        peer.answers["/v1/models"] = answer
        server.check("other", 32000, 1)


def test_a_server_with_other_work_is_not_measured(peer: Peer) -> None:
    server = LlamaServer(peer.url)
    peer.answers["/slots"] = "slots_busy"
    with pytest.raises(UserFacingError, match=r"answering someone else.*Measure when it is idle"):
        server.check(*MODEL)
    with pytest.raises(UserFacingError, match="answering someone else"):
        server.answer([1], 4)
    assert not peer.asked
    peer.answers["/slots"] = (501, {"error": {"message": "no slots", "type": "not_supported_error"}})
    assert server.answer([1], 4) == ServerReply.of(RECORDED["completion"][1])  # it does not tell


def broken_off(handler: _Handler) -> None:
    handler.send(200, b'{"content": "I', length=5000)
    handler.connection.shutdown(socket.SHUT_RDWR)


def gone(handler: _Handler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def silent(handler: _Handler) -> None:
    handler.server.over.wait()


def told_to_end(handler: _Handler) -> None:
    """As llama-server does at a SIGTERM while it answers: takes no connection more, and keeps this one."""
    handler.server.shutdown()
    handler.server.server_close()
    handler.server.over.wait()


@pytest.mark.parametrize("how", [broken_off, gone, told_to_end])
def test_a_server_that_ends_in_the_middle_is_said_to_have_broken_off(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, how: Callable[[_Handler], None]
) -> None:
    monkeypatch.setattr(http, "ALIVE_S", 0.0)
    server = LlamaServer(peer.url)
    peer.answers["/completion"] = how
    with pytest.raises(UserFacingError, match=r"broke off while it answered /completion\. Look at the end"):
        server.answer([1], 4)


def test_a_server_that_hangs_is_left_after_a_while(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_S", 0.01)
    peer.answers["/completion"] = silent
    with pytest.raises(
        UserFacingError, match=r"did not answer /completion within 0 s\. Check whether it hangs"
    ):
        LlamaServer(peer.url).answer([1], 4)


def test_a_reply_that_is_not_wanted_any_more_is_given_up_and_its_connection_closed(peer: Peer) -> None:
    """llama-server ends the work on a reply when its connection closes."""
    closed = threading.Event()

    def until_closed(handler: _Handler) -> None:
        if handler.connection.recv(1) == b"":
            closed.set()

    peer.answers["/completion"] = until_closed
    assert LlamaServer(peer.url).answer([1], 4, stop=lambda: bool(peer.asked)) is None
    assert closed.wait(60)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>", b""])
def test_what_listens_there_but_is_no_llama_server_is_said_so(greeting: bytes) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        says = {b"": "broke off", b"S": "does not speak HTTP"}.get(greeting[:1], "llama-server")
        with pytest.raises(UserFacingError, match=says):
            LlamaServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


# ------------------------------------------------------------------------------------ in the bench


def test_the_bench_puts_the_servers_speed_beside_each_kind_of_text(
    tiny_dir: Path, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    peer.answers["/v1/models"] = "not_found"  # the recorded model is not the constructed one
    peer.answers["/completion"] = "completion_drafted"
    assert bench.run(tiny_settings(tiny_dir), BenchOptions(quick=True, json=True, compare=peer.url)) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["server"] == f"SmolLM2-135M-Instruct.Q4_1.gguf at {peer.url}"
    for workload in result["workloads"]:
        beside = workload["server"]
        assert beside["tokens_per_s"] == pytest.approx(49 / 0.925795, rel=1e-4)
        assert beside["acceptance"] == pytest.approx(35 / 36, abs=1e-4)
        assert beside["same_text"] == [0, workload["prompts"]]
    warm_up, *asked = peer.asked
    assert warm_up["n_predict"] < asked[0]["n_predict"]
    assert len(asked) == sum(workload["prompts"] for workload in result["workloads"])


def test_the_report_names_the_server_without_a_drafter_too(
    tiny_dir: Path, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    peer.answers["/v1/models"] = "not_found"
    settings = Settings(model=tiny_settings(tiny_dir).model, ctx_size=512, threads=1)
    assert bench.run(settings, BenchOptions(quick=True, compare=peer.url)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "plain server" in out and "145.3" in out
    assert f"Server: SmolLM2-135M-Instruct.Q4_1.gguf at {peer.url}. 0 of its" in out


def test_another_model_ends_the_bench_before_it_measures(
    tiny_dir: Path, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserFacingError, match="The server runs another model"):
        bench.run(tiny_settings(tiny_dir), BenchOptions(quick=True, compare=peer.url))
    assert not capsys.readouterr().out
    assert not peer.asked


def test_a_server_that_fails_meanwhile_leaves_the_bench_without_it(tiny_dir: Path, peer: Peer) -> None:
    """It answers the warm-up and the first kind of text, then breaks off."""
    replies = [RECORDED["completion"]] * 2

    def answer(handler: _Handler) -> None:
        if replies:
            status, body = replies.pop()
            handler.send(status, json.dumps(body).encode())
        else:
            gone(handler)

    peer.answers["/completion"] = answer
    with opened(load_of(tiny_dir, "llama-draft")) as kit:
        texts = workloads()
        measured = Measurement(kit.session, Settings(), texts, QUICK, server=LlamaServer(peer.url)).run()
    assert [run.workload for run in measured.server] == [texts[0].name]
    (notice,) = measured.notices
    assert "broke off" in notice and notice.endswith("The bench went on without it.")
    assert len(peer.asked) == 3
    assert {run.workload for run in measured.runs} == {text.name for text in texts}


def test_the_end_of_the_bench_ends_the_wait_for_the_server(tiny_dir: Path, peer: Peer) -> None:
    """Ctrl-C while the server is silent: its own limit is ten minutes."""
    with opened(load_of(tiny_dir, "llama-draft")) as kit:
        measurement = Measurement(kit.session, Settings(), workloads(), QUICK, server=LlamaServer(peer.url))

        def stop_and_hold(handler: _Handler) -> None:
            measurement.stop()
            silent(handler)

        peer.answers["/completion"] = stop_and_hold
        measured = measurement.run()
    assert (measured.runs, measured.server, measured.notices) == ([], [], [])


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: there is no second thread that could spin")
def test_the_engine_does_not_spin_while_the_server_answers(tiny_dir: Path, peer: Peer) -> None:
    """Two engines that both spin at their barriers slow each other several-fold. After a reply with two
    threads, waiting for the server takes this process a small share of one core."""
    spent: list[float] = []

    def late(handler: _Handler) -> None:
        begun = time.monotonic()
        cpu = time.process_time()
        time.sleep(1.0)
        spent.append((time.process_time() - cpu) / (time.monotonic() - begun))
        handler.send(200, json.dumps(RECORDED["completion"][1]).encode())

    peer.answers["/completion"] = late
    with opened(load_of(tiny_dir, "llama-draft", threads=2)) as kit:
        kit.ask("a b c", 16, depth=2)
        assert LlamaServer(peer.url).answer([1], 4) == ServerReply.of(RECORDED["completion"][1])
    assert spent[0] < 0.25
