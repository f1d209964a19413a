"""The HTTP client for servers: one address with its key and certificates, whole answers and streams of bytes.

Every request opens its own connection, straight to the server: proxies in the environment are meant for the
web. Redirects are not followed, so that neither the key nor the conversation reaches a host that the user did
not name. No wait is without a limit, no read without a bound, and no message contains the key.
"""

from __future__ import annotations

import http.client
import io
import json
import math
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import msgspec

from ds4chat.engine.events import ServerAddress
from ds4chat.engine.machine import is_this_machine
from ds4chat.errors import UserFacingError
from ds4chat.settings.schema import SERVER_KEY
from ds4chat.text import one_line

CONNECT_S = 10.0
"""Longest wait for a connection, and for a whole answer that needs no model."""
ANSWER_S = 600.0
"""Longest silence within an answer: reading a long prompt takes minutes on a slow machine."""
STOP_S = 0.05
"""How often a wait checks whether the answer is still wanted."""
ALIVE_S = 5.0
"""How often a silent wait checks that the server still accepts connections. A server that was told to stop
during an answer accepts none, but may keep this one open and silent."""
MOST_BYTES = 16 << 20
"""The longest whole answer that is read."""
MOST_KEY_BYTES = 4096
SHOWN = 300
"""Characters of a server's own error message that are repeated to the user."""

Trouble = Literal["address", "unreachable", "silent", "broken", "strange", "refused", "stopped"]
"""address: the user's address, key or certificate cannot be used. unreachable: no connection. silent: no
answer in time. broken: the connection ended within an answer. strange: an answer of the wrong form. refused:
a status other than 200. stopped: the caller no longer wanted the answer."""


class ServerError(UserFacingError):
    """A request to a server failed. The text does not hold the key."""

    def __init__(self, message: str, trouble: Trouble, kind: str = "") -> None:
        super().__init__(message)
        self.trouble = trouble
        self.kind = kind
        """The server's own name for a refusal, such as ``exceed_context_size_error``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    path: str
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None if it is not JSON."""
        try:
            return read_json(self.body)
        except ValueError:
            return None


def read_json(body: bytes) -> Any:
    """The value in a server's JSON. What is not JSON but common is read too: bytes that are not UTF-8 and
    halves of surrogate pairs as U+FFFD, NaN and infinities as None. Raises ValueError."""
    text = body.decode("utf-8", "replace")
    try:
        try:
            return _decode(text)
        except msgspec.DecodeError:
            value = json.loads(text, parse_constant=lambda _: None)
        whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        return json.loads(whole.decode("utf-16", "replace"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_decode = msgspec.json.Decoder().decode


class _StoppedError(Exception):
    """The answer is not wanted any more."""


WIRE_ERRORS = (_StoppedError, OSError, http.client.HTTPException, ValueError)
"""What can go wrong between a request and the end of its answer; ``Endpoint.failure`` explains each."""


def never() -> bool:
    """The ``stop`` of a request that is wanted to its end."""
    return False


class Endpoint:
    """A server at an address. The constructor raises ServerError for an address, key or certificate that
    cannot be used."""

    def __init__(self, address: ServerAddress) -> None:
        url = address.url
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port, parts = "", None, urlsplit("")
        if not host or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
            shown = one_line(url.rpartition("@")[2])[:200]
            raise ServerError(
                f'"{shown}" is not the address of a server. Addresses begin with http:// or https://, as in '
                "http://127.0.0.1:8080.",
                "address",
            )
        if "@" in parts.netloc:
            raise ServerError(
                "The server's address contains a user name or a password, which others can see in the list "
                "of processes. Leave it out, and put a key into a file or the environment.",
                "address",
            )
        self.host = host
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        """The address without a trailing slash."""
        self._path = quote(parts.path.rstrip("/").removesuffix("/v1"), safe="/%:@!$&'()*+,;=")
        self._key = _read_key(address)
        self.has_key = bool(self._key)
        self._key_place = address.key_file or f"the variable {address.key_env or SERVER_KEY}"
        self._context = _tls(address.ca_file, self.url) if parts.scheme == "https" else None

    @property
    def exposed(self) -> bool:
        """Requests can be read on the way: plain http to another machine."""
        return self._context is None and not is_this_machine(self.host)

    @property
    def place(self) -> str:
        """Host and port, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        timeout: float | None = None,
        stop: Callable[[], bool] = never,
    ) -> Answer:
        """The whole answer to a GET, or to a POST of ``body`` as JSON, whatever its status. ``timeout``: most
        seconds for all of it. Raises ServerError."""
        timeout = timeout or CONNECT_S
        with self.stream(path, body, timeout=timeout, stop=stop, until=time.monotonic() + timeout) as reply:
            return reply.whole()

    @contextmanager
    def stream(
        self,
        path: str,
        body: object = None,
        *,
        timeout: float | None = None,
        stop: Callable[[], bool] = never,
        until: float = math.inf,
    ) -> Iterator[Stream]:
        """The answer as it arrives; leaving the block closes the connection, which tells the server to stop.
        ``timeout``: longest silence in seconds. ``until``: the deadline for all of it, by time.monotonic.
        Raises ServerError, also from reads within the block."""
        wire = self._connect(timeout or ANSWER_S, stop, until)
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.sock = wire  # type: ignore[assignment]
        headers = {"Accept-Encoding": "identity", "User-Agent": "ds4chat"}
        payload = None if body is None else msgspec.json.encode(body)
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            try:
                # A server that refuses a long request answers before it has read all of it.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(
                        "GET" if payload is None else "POST", self._path + path, payload, headers
                    )
                response = connection.getresponse()
            except WIRE_ERRORS as error:
                raise self.failure(path, error) from None
            yield Stream(response, self, path)
        finally:
            connection.close()
            wire.shut()

    def _connect(self, timeout: float, stop: Callable[[], bool], until: float) -> _Wire:
        """A connection, encrypted for https. Raises ServerError."""
        if stop():
            raise ServerError("The request was stopped.", "stopped")
        try:
            sock = socket.create_connection((self.host, self.port), CONNECT_S)
        except (OSError, UnicodeError) as error:
            late = isinstance(error, TimeoutError)
            reason = f"not reached within {CONNECT_S:.0f} s" if late else _reason(error)
            raise ServerError(
                f"No server answers at {self.url}: {reason}. Start it there, or name another address.",
                "unreachable",
            ) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            try:
                sock = self._context.wrap_socket(sock, server_hostname=self.host)
            except ssl.SSLCertVerificationError as error:
                sock.close()
                raise ServerError(
                    f"The certificate of {self.url} is not trusted ({error.verify_message or 'not valid'}). "
                    "If it is your own, name its authority with --server-ca FILE.",
                    "unreachable",
                ) from None
            except (OSError, ValueError) as error:
                sock.close()
                silent = isinstance(error, TimeoutError)
                reason = f"no answer within {CONNECT_S:.0f} s" if silent else _reason(error)
                raise ServerError(
                    f"The server at {self.url} does not speak TLS ({reason}). Check whether its address "
                    "begins with http:// instead.",
                    "unreachable",
                ) from None
        return _Wire(sock, timeout, stop, until, self._accepts_connections)

    def _accepts_connections(self) -> bool:
        """Whether the server still listens."""
        try:
            socket.create_connection((self.host, self.port), 2.0).close()
        except OSError as error:
            return isinstance(error, TimeoutError)  # its queue is full
        return True

    def failure(self, path: str, error: Exception) -> ServerError:
        """What one of WIRE_ERRORS during a request means, as a sentence that says what to do."""
        if isinstance(error, _StoppedError):
            return ServerError("The request was stopped.", "stopped")
        if isinstance(error, TimeoutError):
            return ServerError(
                f"The server at {self.url} did not answer {path} within {error.args[0]:.0f} s. Check whether "
                "it hangs, and restart it.",
                "silent",
            )
        if isinstance(error, OSError | http.client.IncompleteRead | http.client.RemoteDisconnected):
            return ServerError(
                f"The server at {self.url} broke off while it answered {path}. Look at the end of its log, "
                "and restart it.",
                "broken",
            )
        return ServerError(
            f"What answers at {self.url}{path} does not speak HTTP. Check the address and its port.",
            "strange",
        )

    def refusal(self, answer: Answer) -> ServerError:
        """What an answer that cannot be used means, as a sentence that says what to do."""
        status, (message, kind) = answer.status, error_of(answer.json())
        at = f"HTTP {status}: {message}" if message else f"HTTP {status}"
        if status == 200:
            text = f"did not answer {answer.path} as it should. Check whether it is the right server."
        elif 300 <= status < 400:
            text = (
                "redirects to another address, which is not followed, so that neither key nor conversation "
                "goes there unasked. If that address is the right one, name it with --server."
            )
        elif status in (401, 403) and self.has_key:
            text = f"refused the API key ({at}). Put its own key into {self._key_place}."
        elif status in (401, 403):
            text = f"wants an API key ({at}). Put it into {self._key_place}."
        elif status == 503 and "loading" in message.lower():
            text, kind = "is still loading its model. Wait until it has, then retry.", "loading"
        elif exceeds_context(message, kind):
            text, kind = (
                f"has too small a context for this conversation ({at}). Begin a new one, or start the server "
                "with a larger context.",
                "context",
            )
        else:
            seconds = answer.headers.get("retry-after", "")
            wait = f"{seconds} s" if seconds.isdecimal() and len(seconds) < 6 else "a little"
            text = _REFUSALS.get(status, _REFUSALS[500 if status >= 500 else 400]).format(at, wait=wait)
        return ServerError(f"The server at {self.url} {text}", "refused", kind)


_REFUSALS = {
    400: "refused the request ({}). ds4chat inspect --server says what it takes.",
    404: "does not know the model or the path ({}). ds4chat inspect --server says what it has.",
    413: "does not take a request of this length ({}). Begin a new conversation.",
    429: "has too many requests ({}). Wait {wait}, then retry.",
    500: "failed ({}). Look at its log, then retry.",
    503: "is not ready ({}). Wait {wait}, then retry.",
}


class Stream:
    """An answer as it arrives."""

    def __init__(self, response: http.client.HTTPResponse, endpoint: Endpoint, path: str) -> None:
        self._response, self._endpoint, self._path = response, endpoint, path
        self.status = response.status
        coding = response.getheader("Content-Encoding", "identity")
        if coding.lower() != "identity":
            raise ServerError(
                f"The server at {endpoint.url} compresses its answers ({one_line(coding)[:40]}), although it "
                "was asked not to. Switch that off there, or in the proxy before it.",
                "strange",
            )

    def read(self) -> bytes:
        """The next bytes, as soon as there are any; b"" at the end. Raises ServerError."""
        try:
            part = self._response.read1(1 << 16)
            if not part and self._response.length:
                raise http.client.IncompleteRead(b"")
        except WIRE_ERRORS as error:
            raise self._endpoint.failure(self._path, error) from None
        return part

    def whole(self) -> Answer:
        """The answer once all of it is there. Raises ServerError, also for one over MOST_BYTES."""
        body = bytearray()
        while part := self.read():
            body += part
            if len(body) > MOST_BYTES:
                raise ServerError(
                    f"{self._endpoint.url}{self._path} answered with more than {MOST_BYTES >> 20} MiB, which "
                    "is not what was asked for. Check the address.",
                    "strange",
                )
        headers = {name.lower(): value for name, value in self._response.getheaders()}
        return Answer(self._path, self.status, headers, bytes(body))


class _Wire(io.RawIOBase):
    """A socket as http.client uses one, whose reads observe the limits."""

    def __init__(
        self,
        sock: socket.socket,
        timeout: float,
        stop: Callable[[], bool],
        until: float,
        alive: Callable[[], bool],
    ) -> None:
        self._sock, self._timeout, self._stop, self._until, self._alive = sock, timeout, stop, until, alive

    def sendall(self, data: bytes) -> None:
        """Send all of it. Raises OSError, TimeoutError with the seconds."""
        self._sock.settimeout(self._timeout)
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise TimeoutError(self._timeout) from None
        self._sock.settimeout(STOP_S)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What http.client reads an answer from."""
        return io.BufferedReader(self, 1 << 16)

    def close(self) -> None:
        """Nothing: http.client closes before it has read an answer; ``shut`` closes the connection."""

    def shut(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._sock.close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes and read them. Raises _StoppedError, TimeoutError with the seconds, OSError."""
        silent_since = checked = 0.0
        while not self._stop():
            if time.monotonic() > self._until:
                raise TimeoutError(self._timeout)
            try:
                return self._sock.recv_into(buffer)
            except ssl.SSLEOFError:
                return 0
            except TimeoutError:  # after STOP_S
                now = time.monotonic()
            silent_since, checked = silent_since or now - STOP_S, checked or now
            if now - silent_since > self._timeout:
                raise TimeoutError(self._timeout)
            if now - checked > ALIVE_S:
                if not self._alive():
                    raise ConnectionResetError
                checked = now
        raise _StoppedError


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return one_line(str(reason))[:SHOWN]


def _read_key(address: ServerAddress) -> str:
    """The API key; "" without one. Raises ServerError, whose text does not contain it."""
    if address.key_file:
        path = Path(address.key_file)
        try:
            mode = path.stat().st_mode
            with path.open("rb") as file:
                data = file.read(MOST_KEY_BYTES + 1)
        except (OSError, ValueError) as error:
            raise ServerError(
                f"The file with the server's key, {path}, cannot be read: {_reason(error)}. Name another.",
                "address",
            ) from None
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ServerError(
                f"The file with the server's key, {path}, can be read by others: chmod 600 it.", "address"
            )
        where = f"the file {path}"
        key = data.decode("utf-8", "replace").strip()
    else:
        where = f"the variable {address.key_env}"
        key = os.environ.get(address.key_env, "").strip() if address.key_env else ""
    if len(key) > MOST_KEY_BYTES or not key.isascii() or not key.isprintable() or " " in key:
        raise ServerError(
            f"The content of {where} is not a key: a key is one line of printable ASCII characters without "
            "blanks. Put the key there and nothing else.",
            "address",
        )
    return key


def _tls(ca_file: str, url: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ServerError(
            f"The certificates in {ca_file} cannot be used for {url}: {_reason(error)}. Name a file in PEM "
            "form.",
            "address",
        ) from None


def exceeds_context(message: str, kind: str) -> bool:
    """Whether an error, as ``error_of`` returns it, says that the conversation is too long for the server."""
    said = f"{kind} {message}".lower().replace("_", " ")
    return any(f"context {word}" in said for word in ("length", "size", "window"))


def error_of(body: object) -> tuple[str, str]:
    """The message in an error's body, safe for one line of a terminal, and its kind by the server's name;
    ("", "") without one."""
    if isinstance(body, list) and body:
        body = body[0]
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or error.get("error")
        code = error.get("code")
        kind = code if isinstance(code, str) else error.get("type") or code or ""  # a code in words says most
    else:
        message, kind = error, ""
    if not isinstance(message, str):
        message = json.dumps(message) if message else ""
    return one_line(message)[:SHOWN].rstrip(". "), one_line(str(kind))[:60]
