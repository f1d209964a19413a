"""Ollama: its own chat, JSON one a line, with counts and times and nothing of drafts. Written from its
documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4chat.engine.events import UNKNOWN_ID, Tells, Token
from ds4chat.servers.dialect import (
    SAMPLING,
    About,
    Asked,
    Block,
    End,
    Piece,
    Request,
    Spoken,
    first,
    number,
    raise_for,
    refusal,
    table,
    text_of,
    whole,
)
from ds4chat.servers.http import ANSWER_S, Endpoint
from ds4chat.servers.openai import ASK_IN_WORDS, REASONS


class Ollama:
    """Ollama's server."""

    kind = "Ollama"
    tells: Tells = "nothing"
    why = "its replies have no word for drafts"
    sampling: Mapping[str, str] = SAMPLING
    fixed: Mapping[str, str] = {
        "depth": "Ollama reads it as it loads a model: PARAMETER draft_num_predict N in the Modelfile",
        "gate": "Ollama has none",
        "margin": "Ollama has none",
        "strict": "Ollama verifies in batches: there is no strict mode",
    }
    goes_on = True

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        if b"Ollama is running" not in endpoint.ask("/").body[:200]:
            return None
        running = first(table(endpoint.ask("/api/ps").json()).get("models"))
        listed = table(endpoint.ask("/api/tags").json()).get("models")
        models = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        names = tuple(text_of(m.get("name")) for m in models)
        chosen = model or text_of(running.get("name")) or (names[0] if names else "")
        context = whole(running.get("context_length")) if running.get("name") == chosen else 0
        version = text_of(table(endpoint.ask("/api/version").json()).get("version"))
        return About(chosen, version=version, context=context, models=names)

    def request(self, asked: Asked) -> Request:
        generate = asked.generate
        options: dict[str, Any] = asked.sampling(self.sampling)
        if generate.max_tokens >= 0:
            options["num_predict"] = generate.max_tokens
        if generate.stop:
            options["stop"] = list(generate.stop)
        body: dict[str, Any] = {"model": asked.about.model, "stream": True, "options": options}
        if not asked.think:
            body["think"] = False
        if generate.prompt is not None:
            return Request("/api/generate", body | {"prompt": generate.prompt, "raw": True})
        body["messages"] = asked.messages()
        if asked.begun:
            self._check_open(asked, body)
        return Request("/api/chat", body)

    def _check_open(self, asked: Asked, body: Mapping[str, Any]) -> None:
        """Make sure that the model's template leaves the last turn open: not all do. Raises ServerError."""
        # A server too old to show the prompt alone answers instead, with a token at most.
        shown = {"_debug_render_only": True, "stream": False, "options": {"num_predict": 1}}
        answer = asked.endpoint.ask("/api/chat", {**body, **shown}, timeout=ANSWER_S, stop=asked.stop)
        if answer.status != 200:
            raise refusal(asked.endpoint, "/api/chat", answer.status, answer.json())
        prompt = table(table(answer.json()).get("_debug_info")).get("rendered_template")
        asked.check_open(text_of(prompt), ASK_IN_WORDS)

    def reader(self, asked: Asked) -> OllamaReader:
        return OllamaReader()

    def stopped(self, endpoint: Endpoint) -> bool | None:
        return None


class OllamaReader:
    """Reads a stream of /api/chat or /api/generate."""

    def __init__(self) -> None:
        self._spoken = Spoken()
        self._last: Mapping[str, Any] = {}

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        raise_for(payload)
        message = table(payload.get("message"))
        thought = text_of(message.get("thinking")) or text_of(payload.get("thinking"))
        text = text_of(message.get("content")) or text_of(payload.get("response"))
        if thought:
            yield Block((Token(UNKNOWN_ID, thought, "unknown", True),))
        if text:
            said, thinking = self._spoken.push(text)
            yield Block((Token(UNKNOWN_ID, said, "unknown", thinking),))
        if payload.get("done") is True:
            self._last = payload

    def finish(self) -> Iterator[Piece]:
        last = self._last
        if not last:
            return
        prefill_ns, decode_ns = number(last.get("prompt_eval_duration")), number(last.get("eval_duration"))
        end = End(
            REASONS.get(text_of(last.get("done_reason")), "stop"),
            prompt_tokens=whole(last.get("prompt_eval_count")),
            prefill_ms=None if prefill_ns is None else prefill_ns / 1e6,
            decode_ms=None if decode_ns is None else decode_ns / 1e6,
            model=text_of(last.get("model")),
            emitted=whole(last.get("eval_count")),
        )
        yield self._spoken.finish(end)
