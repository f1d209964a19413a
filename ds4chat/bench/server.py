"""A running llama.cpp server, measured beside: the same prompt tokens, greedy, its own timings."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from ds4chat.bench.errors import BenchError

CONNECT_S = 10.0
ANSWER_S = 600.0
MOST_BYTES = 16 << 20
"""A longer answer is not read on: whatever sends it is not what was asked."""


class ServerError(BenchError):
    """The server cannot be measured."""


class LlamaServer:
    """A llama-server at ``url``, such as http://127.0.0.1:8080. Raises ServerError when made for a URL that
    is none, or where no such server answers."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ServerError(
                f'"{url}" is no address of a server: --compare takes one such as http://127.0.0.1:8080.'
            )
        self.url = url.rstrip("/")
        # A proxy of the environment is meant for the web, not for a server that the user names.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.name = self._name()

    def tokens_per_s(self, prompt: Sequence[int], tokens: int) -> float:
        """Decode speed of a greedy reply to these tokens, from the server's timings. Raises ServerError."""
        answer = self._ask(
            "/completion",
            {
                "prompt": list(prompt),
                "n_predict": tokens,
                "temperature": 0,
                "cache_prompt": False,
                "stream": False,
            },
            ANSWER_S,
        )
        timings = answer.get("timings")
        speed = timings.get("predicted_per_second") if isinstance(timings, dict) else None
        if not isinstance(speed, (int, float)) or not speed > 0:
            raise ServerError(
                f"{self.url} answered without timings, so it is no llama-server: --compare needs one of "
                "llama.cpp's."
            )
        return float(speed)

    def _name(self) -> str:
        """What the server says it runs; its address where it does not say."""
        props = self._ask("/props", None, CONNECT_S)
        path = props.get("model_path")
        model = path.replace("\\", "/").rpartition("/")[2] if isinstance(path, str) else ""
        return f"{model} at {self.url}" if model else self.url

    def _ask(self, path: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=timeout) as response:
                answer = json.loads(response.read(MOST_BYTES))
        except urllib.error.HTTPError as error:
            raise ServerError(
                f"The server at {self.url} refused {path} (HTTP {error.code}). --compare needs llama.cpp's "
                "llama-server with the same model."
            ) from None
        except (OSError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", None) or error
            raise ServerError(
                f"No server answers at {self.url}: {reason}. Start llama-server there, or do without it."
            ) from None
        except ValueError:
            raise ServerError(
                f"{self.url}{path} did not answer with JSON, so it is no llama-server: --compare needs one."
            ) from None
        if not isinstance(answer, dict):
            raise ServerError(f"{self.url}{path} did not answer as a llama-server does.")
        return answer
