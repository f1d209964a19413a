"""The HTTP client of the house: one server, its key and its certificates, whole answers and streams of bytes.

Every request has a connection of its own and goes straight to the server: the environment's proxy is meant
for the web. Redirects are not followed, so that neither key nor conversation reaches a host that nobody
named. Nothing here waits without a limit, reads without a bound, or puts the key into a sentence.
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
from urllib.parse import urlsplit

import msgspec

from ds4chat.errors import UserFacingError
from ds4chat.settings.schema import SERVER_KEY
from ds4chat.text import one_line

CONNECT_S = 10.0
"""Longest wait for a connection, and for what a server knows without its model."""
ANSWER_S = 600.0
"""Longest silence of a server that answers: reading a long prompt takes minutes on a slow machine."""
STOP_S = 0.05
"""How often a wait looks whether the answer is still wanted."""
ALIVE_S = 5.0
"""How often a silent wait looks whether the server still takes connections: one that was told to end while it
answers takes none any more, but keeps this one open and silent."""
MOST_BYTES = 16 << 20
"""A longer whole answer is not read on: whatever sends it is not what was asked."""
MOST_KEY_BYTES = 4096
SHOWN = 300
"""Characters of a server's own words that a sentence repeats."""

Trouble = Literal["address", "unreachable", "silent", "broken", "strange", "refused", "stopped"]
"""address: what the user named is no server's address, key or certificate. unreachable: no connection.
silent: no answer in time. broken: the connection ended inside an answer. strange: the answer is not what was
asked. refused: a status other than 200. stopped: the caller no longer wanted it."""


class ServerError(UserFacingError):
    """Something between here and a server failed. The text does not hold the key."""

    def __init__(self, message: str, trouble: Trouble, status: int = 0, kind: str = "") -> None:
        super().__init__(message)
        self.trouble = trouble
        self.status = status
        """The HTTP status of a refusal; else 0."""
        self.kind = kind
        """The server's own name for a refusal, such as ``exceed_context_size_error``."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and how to talk to it."""

    url: str
    key_file: str = ""
    """A file that only its owner can read, with the API key in it."""
    key_env: str = ""
    """The environment variable that holds the key where no file is named."""
    ca_file: str = ""
    """Certificates to trust instead of the system's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


class _StoppedError(Exception):
    """The answer is not wanted any more."""


WIRE_ERRORS = (_StoppedError, OSError, http.client.HTTPException, ValueError)
"""What goes wrong between a request and the end of its answer; ``Endpoint.explanation`` says in words."""


def never() -> bool:
    """The ``stop`` of a request that is wanted to its end."""
    return False


class Endpoint:
    """A server at an address. Raises ServerError when made for an address, key or certificate that is
    none."""

    def __init__(self, address: Address) -> None:
        url = address.url
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port, parts = "", None, urlsplit("")
        if not host or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
            shown = one_line(url.rpartition("@")[2])[:200]
            raise ServerError(
                f'"{shown}" is no address of a server: it begins with http:// or https://, as in '
                "http://127.0.0.1:8080.",
                "address",
            )
        if "@" in parts.netloc:
            raise ServerError(
                "The server's address holds a user name or a password, which others can read in the list of "
                "processes: leave it out, and put a key into a file or the environment.",
                "address",
            )
        self.host = host
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        """The address without a last slash."""
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._key = _read_key(address)
        self.has_key = bool(self._key)
        self.key_place = address.key_file or f"the variable {address.key_env or SERVER_KEY}"
        """Where the key is taken from."""
        self._context = _tls(address.ca_file, self.url) if parts.scheme == "https" else None

    @property
    def local(self) -> bool:
        """It is this machine."""
        return self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"

    @property
    def exposed(self) -> bool:
        """What is said to it can be read on the way: plain http to another machine."""
        return self._context is None and not self.local

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        timeout: float | None = None,
        stop: Callable[[], bool] = never,
    ) -> Answer:
        """The whole answer to a GET, or to a POST of ``body`` as JSON, whatever its status. ``timeout``:
        seconds until all of it is there. Raises ServerError."""
        timeout = timeout or CONNECT_S
        with self.stream(path, body, timeout=timeout, stop=stop, until=time.monotonic() + timeout) as reply:
            content = bytearray()
            while len(content) <= MOST_BYTES and (part := reply.read()):
                content += part
            if len(content) > MOST_BYTES:
                raise ServerError(
                    f"{self.url}{path} answered with more than {MOST_BYTES >> 20} MiB, which is not what was "
                    "asked. Look whether the address is right.",
                    "strange",
                )
            return Answer(reply.status, reply.headers, bytes(content))

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
        """The answer while it comes; leaving the block closes the connection, which tells the server to stop.
        ``timeout``: longest silence in seconds. ``until``: when, by time.monotonic, it has to be over. Raises
        ServerError, also out of the block's own reads."""
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
                # A server that refuses a long request answers before it has read it.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(
                        "GET" if payload is None else "POST", self._path + path, payload, headers
                    )
                response = connection.getresponse()
            except WIRE_ERRORS as error:
                raise self.explanation(path, error) from None
            yield Stream(response, self, path)
        finally:
            connection.close()
            wire.shut()

    def _connect(self, timeout: float, stop: Callable[[], bool], until: float) -> _Wire:
        """A connection, encrypted where the address says so. Raises ServerError."""
        if stop():
            raise ServerError("The request was stopped.", "stopped")
        try:
            sock = socket.create_connection((self.host, self.port), CONNECT_S)
        except (OSError, UnicodeError) as error:
            late = f"not reached within {CONNECT_S:.0f} s" if isinstance(error, TimeoutError) else ""
            reason = late or getattr(error, "strerror", None) or str(error)
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
                    "Where it is your own, name its authority with --server-ca FILE.",
                    "unreachable",
                ) from None
            except (OSError, ValueError) as error:
                sock.close()
                silent = isinstance(error, TimeoutError)
                reason = f"no answer within {CONNECT_S:.0f} s" if silent else _reason(error)
                raise ServerError(
                    f"The server at {self.url} does not speak TLS ({reason}). Look whether the address begins"
                    " with http:// instead.",
                    "unreachable",
                ) from None
        return _Wire(sock, timeout, stop, until, self._takes_connections)

    def _takes_connections(self) -> bool:
        """Whether the server still listens; a full queue is no end."""
        try:
            socket.create_connection((self.host, self.port), 2.0).close()
        except TimeoutError:
            return True
        except OSError:
            return False
        return True

    def explanation(self, path: str, error: Exception) -> ServerError:
        """What one of WIRE_ERRORS on the way of a request means, as a sentence that says what to do."""
        if isinstance(error, _StoppedError):
            return ServerError("The request was stopped.", "stopped")
        if isinstance(error, TimeoutError):
            return ServerError(
                f"The server at {self.url} did not answer {path} within {error.args[0]:.0f} s. Look whether "
                "it hangs, and start it again.",
                "silent",
            )
        if isinstance(error, OSError | http.client.IncompleteRead | http.client.RemoteDisconnected):
            return ServerError(
                f"The server at {self.url} broke off while it answered {path}. Look at what it wrote last, "
                "and start it again.",
                "broken",
            )
        return ServerError(
            f"What answers at {self.url}{path} does not speak HTTP. Look whether the address and its port "
            "are right.",
            "strange",
        )


class Stream:
    """An answer while it comes."""

    def __init__(self, response: http.client.HTTPResponse, endpoint: Endpoint, path: str) -> None:
        self._response, self._endpoint, self._path = response, endpoint, path
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def read(self) -> bytes:
        """What came next, as soon as there is any; b"" at the end. Raises ServerError."""
        try:
            part = self._response.read1(1 << 16)
            if not part and self._response.length:
                raise http.client.IncompleteRead(b"")
        except WIRE_ERRORS as error:
            raise self._endpoint.explanation(self._path, error) from None
        return part


class _Wire:
    """A socket as http.client takes one, whose reads look after the limits."""

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
        return io.BufferedReader(_Reads(self), 1 << 16)

    def close(self) -> None:
        """The response may still read; ``shut`` ends both."""

    def shut(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._sock.close()

    def recv_into(self, buffer: Any) -> int:
        """Wait for bytes and take them. Raises _StoppedError, TimeoutError with the seconds, OSError."""
        begun = looked = 0.0
        while not self._stop():
            if time.monotonic() > self._until:
                raise TimeoutError(self._timeout)
            try:
                return self._sock.recv_into(buffer)
            except ssl.SSLEOFError:
                return 0
            except TimeoutError:  # after STOP_S
                now = time.monotonic()
            begun, looked = begun or now - STOP_S, looked or now
            if now - begun > self._timeout:
                raise TimeoutError(self._timeout)
            if now - looked > ALIVE_S:
                if not self._alive():
                    raise ConnectionResetError
                looked = now
        raise _StoppedError


class _Reads(io.RawIOBase):
    """The reading side of a wire."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.recv_into(buffer)


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return one_line(str(reason))[:SHOWN]


def _read_key(address: Address) -> str:
    """The key, "" without one. Raises ServerError, which never holds it."""
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
            f"What stands in {where} is no key: a key is one line of printable ASCII characters without "
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


def said(body: object, content: bytes = b"") -> tuple[str, str]:
    """The server's own words in an error's body, safe for one line of a terminal, and its name for the kind;
    ("", "") where it has none."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or error.get("error")
        kind = error.get("type") or error.get("code") or ""
    else:
        message, kind = error, ""
    if not isinstance(message, str):
        message = json.dumps(message) if message else ""
    return one_line(message)[:SHOWN].rstrip(". "), one_line(str(kind))[:60]
