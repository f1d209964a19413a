"""A running llama.cpp server, measured beside: the same prompt tokens, greedy, its own timings."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ds4chat.commands.bench.errors import BenchError

CONNECT_S = 10.0
"""Longest wait for the connection, and for what the server knows without the model."""
ANSWER_S = 600.0
"""Longest wait for a reply."""
STOP_S = 0.2
"""How often a waiting reply looks whether it is to be given up."""
ALIVE_S = 5.0
"""How often it looks whether the server takes connections: one that was told to end while it answers takes
none any more, but keeps this one open and silent."""
MOST_BYTES = 16 << 20
"""A longer answer is not read on: whatever sends it is not what was asked."""
SAME_SIZE = 0.03
"""Share by which two counts of one model's bytes may differ: versions of llama.cpp count layers differently
that they do not use. Another quantisation differs by more."""
KEY_VARIABLE = "LLAMA_API_KEY"
"""llama-server's own variable for its --api-key."""


class ServerError(BenchError):
    """The server cannot be measured."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A greedy reply of the server."""

    text: str
    ids: tuple[int, ...]
    """Its tokens without the one that ended it; empty where the server does not name them."""
    tokens: int
    """Sampled tokens, the one that ended the reply among them."""
    drafted: int
    accepted: int
    """Tokens of the server's own drafts; 0 where it does not speculate."""
    tokens_per_s: float | None
    """Tokens after the first over the time after the first, which comes with the prompt; None where the reply
    has no second."""

    @classmethod
    def of(cls, body: dict[str, Any]) -> Reply:
        """An answer of /completion. Raises KeyError, TypeError, ValueError where it is none."""
        timings = body["timings"]
        count, ms = int(timings["predicted_n"]), float(timings["predicted_ms"])
        ids = tuple(int(token) for token in body.get("tokens") or ())
        return cls(
            text=str(body["content"]),
            ids=ids[:-1] if body.get("stop_type") == "eos" else ids,
            tokens=count,
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            # Not the rate that it gives itself: some versions count the first token into that.
            tokens_per_s=(count - 1) / ms * 1000 if count > 1 and ms > 0 else None,
        )


class LlamaServer:
    """A llama-server at ``url``, such as http://127.0.0.1:8080. Raises ServerError when made for a URL that
    is none, or where no such server answers with a model."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host = ""
        if not self._host or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
            raise ServerError(
                f'"{_shown(url)}" is no address of a server: --compare takes one such as '
                "http://127.0.0.1:8080."
            )
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._path = parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._key = os.environ.get(KEY_VARIABLE, "")
        props = self._ask("/props", None, CONNECT_S)
        if props.get("role") == "router":
            raise ServerError(
                f"The server at {self.url} is a router without a model of its own. Start a llama-server with "
                "-m and the model, and name that one."
            )
        path = props.get("model_path")
        model = _shown(path.replace("\\", "/").rpartition("/")[2]) if isinstance(path, str) else ""
        self.name = f"{model} at {self.url}" if model else self.url
        """What the server says it runs; its address where it does not say."""

    def check(self, name: str, n_vocab: int, size_bytes: int) -> None:
        """Make sure that it is idle and runs this model, by vocabulary and bytes of tensors, as far as it
        tells. Raises ServerError."""
        self._check_idle()
        try:
            meta = self._ask("/v1/models", None, CONNECT_S)["data"][0]["meta"]
            vocabulary, size = int(meta["n_vocab"]), int(meta["size"])
        except (ServerError, LookupError, TypeError, ValueError):
            return
        if vocabulary != n_vocab or abs(size - size_bytes) > SAME_SIZE * size_bytes:
            raise ServerError(
                f"The server runs another model: {self.name} has {size / 2**20:.0f} MiB and a vocabulary of "
                f"{vocabulary:,}, {_shown(name)} here {size_bytes / 2**20:.0f} MiB and {n_vocab:,}. Start "
                "llama-server with the same file."
            )

    def answer(
        self, prompt: Sequence[int], tokens: int, *, stop: Callable[[], bool] = lambda: False
    ) -> Reply | None:
        """The greedy reply to these tokens, all of them read anew; None when ``stop`` said so meanwhile, and
        the server then gives it up too. Raises ServerError, also where the server has other work."""
        self._check_idle()
        request = {
            "prompt": list(prompt),
            "n_predict": tokens,
            # The likeliest token and nothing else: the server may have been started with penalties.
            "samplers": ["top_k"],
            "top_k": 1,
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": False,
        }
        try:
            return Reply.of(self._ask("/completion", request, ANSWER_S, stop))
        except _StoppedError:
            return None
        except (KeyError, TypeError, ValueError):
            raise ServerError(
                f"{self.url} answered without text and timings, so it is no llama-server: --compare needs "
                "llama.cpp's."
            ) from None

    def _check_idle(self) -> None:
        """Raise ServerError where it answers somebody else now; it need not tell."""
        try:
            slots = self._get("/slots")
        except ServerError:
            return
        if isinstance(slots, list) and any(
            isinstance(slot, dict) and slot.get("is_processing") is True for slot in slots
        ):
            raise ServerError(
                f"The server at {self.url} is answering someone else, which slows everything here. Measure "
                "when it is idle."
            )

    # -- the wire

    def _ask(
        self,
        path: str,
        body: dict[str, Any] | None,
        timeout: float,
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        answer = self._get(path, body, timeout, stop)
        if not isinstance(answer, dict):
            raise ServerError(f"{self.url}{path} did not answer as a llama-server does: --compare needs one.")
        return answer

    def _get(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        timeout: float = CONNECT_S,
        stop: Callable[[], bool] = lambda: False,
    ) -> Any:
        """What the server answers, read as JSON. Raises ServerError, _StoppedError."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        payload = json.dumps(body).encode() if body is not None else None
        with self._connected() as connection:
            try:
                connection.request("POST" if body is not None else "GET", self._path + path, payload, headers)
                self._wait(connection, timeout, stop)
                response = connection.getresponse()
                content = response.read(MOST_BYTES)
                if response.length and len(content) < MOST_BYTES:
                    raise http.client.IncompleteRead(content)
            except TimeoutError:
                raise ServerError(
                    f"The server at {self.url} did not answer {path} within {timeout:.0f} s. Look whether it "
                    "hangs, and start it again."
                ) from None
            except (OSError, http.client.IncompleteRead):
                raise ServerError(
                    f"The server at {self.url} broke off while it answered {path}. Look what it wrote last, "
                    "and start it again."
                ) from None
            except (http.client.HTTPException, ValueError):
                self._strange(path)
        if response.status != http.client.OK:
            self._refused(path, response.status, content)
        try:
            return json.loads(content)
        except ValueError:
            self._strange(path)

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        """A connection of its own for each request, and straight to the server: the environment's proxy is
        meant for the web. Raises ServerError."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        try:
            try:
                connection.connect()
            except (OSError, http.client.HTTPException, ValueError) as error:
                late = f"not reached within {CONNECT_S:.0f} s" if isinstance(error, TimeoutError) else ""
                reason = late or getattr(error, "strerror", None) or error
                raise ServerError(
                    f"No server answers at {self.url}: {reason}. Start llama-server there, or do without it."
                ) from None
            yield connection
        finally:
            connection.close()

    def _wait(self, connection: http.client.HTTPConnection, timeout: float, stop: Callable[[], bool]) -> None:
        """Sleep until the answer begins: what has begun is all there soon, or its sender has died. Raises
        _StoppedError, OSError."""
        begun = looked = time.monotonic()
        while not select.select([connection.sock], [], [], STOP_S)[0]:
            if stop():
                raise _StoppedError
            now = time.monotonic()
            if now - begun > timeout:
                raise TimeoutError
            if now - looked > ALIVE_S:
                with suppress(TimeoutError):  # a full queue is no end
                    socket.create_connection((connection.host, connection.port), CONNECT_S).close()
                looked = now

    def _strange(self, path: str) -> NoReturn:
        raise ServerError(
            f"{self.url}{path} did not answer with JSON, so it is no llama-server: --compare needs one."
        )

    def _refused(self, path: str, status: int, content: bytes) -> NoReturn:
        """Raise what an answer other than OK means."""
        try:
            error = json.loads(content)["error"]
            message, kind = _shown(str(error["message"])), error.get("type", "")
        except (LookupError, TypeError, ValueError, AttributeError):
            message = kind = ""
        if status == http.client.UNAUTHORIZED and self._key:
            text = f"refused the API key in {KEY_VARIABLE}. Put its own key there."
        elif status == http.client.UNAUTHORIZED:
            text = f"wants an API key. Put it into {KEY_VARIABLE}, or start llama-server without --api-key."
        elif status == http.client.SERVICE_UNAVAILABLE and message == "Loading model":
            text = "is still loading its model. Wait until it has."
        elif kind == "exceed_context_size_error":
            text = "has too small a context for this prompt. Start llama-server with a larger -c."
        elif message:
            text = (
                f"refused {path} (HTTP {status}): {message.rstrip('.')}. Start llama-server with the same "
                "model, or do without it."
            )
        else:
            text = f"refused {path} (HTTP {status}). --compare needs llama.cpp's llama-server."
        raise ServerError(f"The server at {self.url} {text}")


class _StoppedError(Exception):
    """The reply is not wanted any more."""


def _shown(text: str) -> str:
    """A text of somebody else's in one line of signs that print."""
    return "".join(c if c.isprintable() else "?" for c in text[:200])
