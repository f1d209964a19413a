"""A running llama.cpp server, measured alongside: the same prompt tokens, greedy, its own timings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ds4chat.commands.bench.running import BenchError
from ds4chat.engine.events import ServerAddress
from ds4chat.errors import UserFacingError
from ds4chat.servers import http
from ds4chat.servers.http import Endpoint, ServerError
from ds4chat.text import one_line

SAME_SIZE = 0.03
"""Share by which two counts of one model's bytes may differ: versions of llama.cpp differ in how they count
unused layers. Another quantisation differs by more."""
KEY_VARIABLE = "LLAMA_API_KEY"
"""llama-server's own variable for its --api-key."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A greedy reply of the server."""

    text: str
    ids: tuple[int, ...]
    """Its tokens without the one that ended it; empty if the server does not name them."""
    tokens: int
    """Sampled tokens, including the one that ended the reply."""
    drafted: int
    accepted: int
    """Tokens of the server's own drafts; 0 if it does not speculate."""
    tokens_per_s: float | None
    """Tokens after the first over the time after the first, which comes with the prompt; None if there is
    only one."""

    @classmethod
    def of(cls, body: dict[str, Any]) -> ServerReply:
        """The reply in an answer of /completion. Raises KeyError, TypeError, ValueError if it is not one."""
        timings = body["timings"]
        count, ms = int(timings["predicted_n"]), float(timings["predicted_ms"])
        ids = tuple(int(token) for token in body.get("tokens") or ())
        return cls(
            text=str(body["content"]),
            ids=ids[:-1] if body.get("stop_type") == "eos" else ids,
            tokens=count,
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            # Not the server's own rate, in which some versions count the first token.
            tokens_per_s=(count - 1) / ms * 1000 if count > 1 and ms > 0 else None,
        )


class LlamaServer:
    """A llama-server at ``url``, such as http://127.0.0.1:8080. Making one raises ServerError for a malformed
    URL, and if no such server answers with a model."""

    def __init__(self, url: str) -> None:
        self._endpoint = Endpoint(ServerAddress(url, key_env=KEY_VARIABLE))
        self.url = self._endpoint.url
        props = self._ask("/props")
        if props.get("role") == "router":
            raise BenchError(
                f"The server at {self.url} is a router without a model of its own. Start a llama-server with "
                "-m and the model, and name that one."
            )
        path = props.get("model_path")
        model = path.replace("\\", "/").rpartition("/")[2] if isinstance(path, str) else ""
        self.name = f"{one_line(model)[:200]} at {self.url}" if model else self.url
        """What the server says it runs, and its address."""

    def check(self, name: str, n_vocab: int, size_bytes: int) -> None:
        """Raise BenchError if it is busy, or runs another model by vocabulary or bytes of tensors, as far as
        it tells."""
        self._check_idle()
        try:
            meta = self._ask("/v1/models")["data"][0]["meta"]
            vocabulary, size = int(meta["n_vocab"]), int(meta["size"])
        except (UserFacingError, LookupError, TypeError, ValueError):
            return
        if vocabulary != n_vocab or abs(size - size_bytes) > SAME_SIZE * size_bytes:
            raise BenchError(
                f"The server runs another model: {self.name} has {size / 2**20:.0f} MiB and a vocabulary of "
                f"{vocabulary:,}, {one_line(name)} here {size_bytes / 2**20:.0f} MiB and {n_vocab:,}. Start "
                "llama-server with the same file."
            )

    def answer(
        self, prompt: Sequence[int], tokens: int, *, stop: Callable[[], bool] = http.never
    ) -> ServerReply | None:
        """The greedy reply to these tokens, nothing of which comes from a cache; None when ``stop`` said so
        meanwhile, and then the server gives it up too. Raises BenchError, also if the server is busy."""
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
            return ServerReply.of(self._ask("/completion", request, http.ANSWER_S, stop))
        except ServerError as error:
            if error.trouble == "stopped":
                return None
            raise
        except (KeyError, TypeError, ValueError):
            raise BenchError(
                f"{self.url} answered without text and timings, so it is not a llama-server: --compare needs "
                "llama.cpp's."
            ) from None

    def _check_idle(self) -> None:
        """Raise BenchError if it is answering someone else; some servers do not tell."""
        slots = self._endpoint.ask("/slots").json()
        if isinstance(slots, list) and any(
            isinstance(slot, dict) and slot.get("is_processing") is True for slot in slots
        ):
            raise BenchError(
                f"The server at {self.url} is answering someone else, which slows everything here. Measure "
                "when it is idle."
            )

    def _ask(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        timeout: float | None = None,
        stop: Callable[[], bool] = http.never,
    ) -> dict[str, Any]:
        """What the server answers. Raises BenchError, ServerError."""
        found = self._endpoint.ask(path, body, timeout=timeout, stop=stop)
        answer = found.json()
        if found.status != 200:
            raise self._endpoint.refusal(found)
        if not isinstance(answer, dict):
            raise BenchError(f"{self.url}{path} did not answer as a llama-server does: --compare needs one.")
        return answer
