"""A loopback server that says what a test tells it to, byte by byte."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODELS = {"data": [{"id": "m", "owned_by": "somebody"}]}


@dataclass
class Received:
    """One request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """What a handler answers through."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(
        self, body: object = None, status: int = 200, headers: str = "", raw: bytes | None = None
    ) -> None:
        """A whole answer, JSON unless ``raw``."""
        content = json.dumps(body).encode() if raw is None else raw
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{headers}\r\n"
        self.send(head.encode() + content)

    def begin(self, kind: str = "text/event-stream") -> None:
        """The head of a chunked stream."""
        self.send(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    def chunk(self, data: bytes) -> None:
        """A part of it; an empty one ends it."""
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, body: object) -> None:
        """An event of it."""
        self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def closed(self, seconds: float) -> bool:
        """Wait for the client to close its side."""
        self.sock.settimeout(seconds)
        with suppress(OSError):
            return self.sock.recv(1) == b""
        return False


Handler = Callable[[Received, Connection], None]


@dataclass
class Scripted:
    """A running server. ``routes`` answer by path, others with 404; they may be changed at any time."""

    url: str
    routes: dict[str, Handler]
    listener: socket.socket
    asked: list[Received] = field(default_factory=list)

    def stop_listening(self) -> None:
        """Take no further connection."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def seen(self, path: str) -> list[Received]:
        return [request for request in self.asked if request.path == path]


def answers(body: object = None, status: int = 200, headers: str = "", raw: bytes | None = None) -> Handler:
    """A handler that always gives this answer, as Connection.answer does."""
    return lambda received, connection: connection.answer(body, status, headers, raw)


def openai(stream: Handler, models: object = MODELS) -> dict[str, Handler]:
    """The routes of a server with OpenAI's interface and this chat."""
    return {"/v1/models": answers(models), "/v1/chat/completions": stream}


def llama(completion: Handler, **props: object) -> dict[str, Handler]:
    """The routes of an idle llama-server with this completion; ``props``: more of its /props."""
    return {
        "/health": answers({}, headers="Server: llama.cpp\r\n"),
        "/props": answers({"default_generation_settings": {"n_ctx": 1024}, "chat_template": "x", **props}),
        "/v1/models": answers(MODELS),
        "/slots": answers([{"speculative": True, "is_processing": False}]),
        "/apply-template": answers({"prompt": "p"}),
        "/completion": completion,
    }


def says(*texts: str, reason: str | None = "stop", done: bool = True) -> Handler:
    """A chat that streams these texts."""

    def handle(received: Received, connection: Connection) -> None:
        connection.begin()
        for text in texts:
            connection.event({"choices": [{"delta": {"content": text}, "finish_reason": None}]})
        if reason:
            connection.event({"choices": [{"delta": {}, "finish_reason": reason}]})
        if done:
            connection.chunk(b"data: [DONE]\n\n")
        connection.chunk(b"")

    return handle


def unknown_parameter(name: str) -> tuple[int, Any]:
    """As OpenAI and the gateways to it."""
    message = f"Unknown parameter: '{name}'."
    return 400, {"error": {"message": message, "param": name, "code": "unknown_parameter"}}


def without(*fields: str, form: Any = unknown_parameter, then: Handler | None = None) -> Handler:
    """A chat that refuses each request with one of these fields."""

    def handle(received: Received, connection: Connection) -> None:
        refused = next((name for name in received.json() if name in fields), None)
        if refused is not None:
            status, body = form(refused)
            connection.answer(body, status)
        else:
            (then or says("one", " two"))(received, connection)

    return handle


@contextmanager
def scripted(
    routes: dict[str, Handler], tls: tuple[str, str] | None = None, missing: int = 404
) -> Iterator[Scripted]:
    """A server with these routes, until the block ends. ``tls``: certificate and key; ``missing``: its status
    for other paths."""
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if tls else "http"
    server = Scripted(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", routes, listener)
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)

    def serve(sock: socket.socket) -> None:
        with suppress(OSError, ValueError):
            sock.settimeout(20)
            if context:
                sock = context.wrap_socket(sock, server_side=True)
            with sock, sock.makefile("rb") as reader:
                method, path, _ = reader.readline().decode().split(" ", 2)
                headers = {}
                while line := reader.readline().decode().strip():
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = reader.read(int(headers.get("content-length", 0)))
                received = Received(method, path, headers, body)
                server.asked.append(received)
                handler = server.routes.get(path)
                if handler is None:
                    Connection(sock).answer({"error": {"message": "not here"}}, missing)
                else:
                    handler(received, Connection(sock))

    def accept() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        server.stop_listening()
