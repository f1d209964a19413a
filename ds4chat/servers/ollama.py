"""Ollama: its own chat as JSON lines, with counts and times, and nothing about drafts. Written from its
documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4chat.engine.events import UNKNOWN_ID, Tells, Token
from ds4chat.servers.dialect import (
    SAMPLING,
    About,
    Block,
    Dialect,
    End,
    Piece,
    Query,
    Request,
    calls_in,
    count_of,
    ending,
    first_of,
    number_of,
    object_of,
    raise_for,
    reply_text,
    text_of,
)
from ds4chat.servers.http import ANSWER_S, Endpoint
from ds4chat.servers.openai import ASK_IN_A_PROMPT


class Ollama(Dialect):
    """Ollama's server."""

    kind = "Ollama"
    tells: Tells = "nothing"
    why = "its replies do not report drafts"
    sampling: Mapping[str, str] = SAMPLING
    fixed: Mapping[str, str] = {
        "depth": "Ollama reads it when it loads a model: PARAMETER draft_num_predict N in the Modelfile",
        **dict.fromkeys(("gate", "margin"), "Ollama has none"),
        "strict": "Ollama verifies in batches: there is no strict mode",
    }
    goes_on = True

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        if b"Ollama is running" not in endpoint.ask("/").body[:200]:
            return None
        running = first_of(object_of(endpoint.ask("/api/ps").json()).get("models"))
        listed = first_of(object_of(endpoint.ask("/api/tags").json()).get("models"))
        chosen = model or text_of(running.get("name")) or text_of(listed.get("name"))
        context = count_of(running.get("context_length")) if running.get("name") == chosen else 0
        version = text_of(object_of(endpoint.ask("/api/version").json()).get("version"))
        return About(chosen, version=version, context=context)

    def request(self, query: Query) -> Request:
        generate = query.generate
        body: dict[str, Any] = {
            "model": query.about.model,
            "stream": True,
            "options": query.settings(self.sampling, "num_predict"),
        }
        if not query.think:
            body["think"] = False
        if generate.prompt is not None:
            return Request("/api/generate", body | {"prompt": generate.prompt, "raw": True}, OllamaReader())
        body["messages"] = query.messages()
        if query.begun:
            self._check_open(query, body)
        return Request("/api/chat", body, OllamaReader())

    def _check_open(self, query: Query, body: Mapping[str, Any]) -> None:
        """Make sure that the model's template leaves the last turn open, as not all do. Raises
        ServerError."""
        # A server too old to render the prompt only gives an answer instead, of one token at most.
        render_only = {"_debug_render_only": True, "stream": False, "options": {"num_predict": 1}}
        answer = query.endpoint.ask("/api/chat", {**body, **render_only}, timeout=ANSWER_S, stop=query.stop)
        if answer.status != 200:
            raise query.endpoint.refusal(answer)
        prompt = object_of(object_of(answer.json()).get("_debug_info")).get("rendered_template")
        query.check_open(text_of(prompt), ASK_IN_A_PROMPT)


class OllamaReader:
    """Reads a stream of /api/chat or /api/generate."""

    def __init__(self) -> None:
        self._text = reply_text()
        self._last: Mapping[str, Any] = {}

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        raise_for(payload)
        message = object_of(payload.get("message"))
        thought = text_of(message.get("thinking")) or text_of(payload.get("thinking")) or calls_in(message)
        text = text_of(message.get("content")) or text_of(payload.get("response"))
        if thought:
            yield Block((Token(UNKNOWN_ID, thought, "unknown", True),))
        if text:
            added, thinking = self._text.push_text(text)
            yield Block((Token(UNKNOWN_ID, added, "unknown", thinking),))
        if payload.get("done") is True:
            self._last = payload

    def finish(self) -> Iterator[Piece]:
        last = self._last
        prefill_ns = number_of(last.get("prompt_eval_duration"))
        decode_ns = number_of(last.get("eval_duration"))
        yield End(
            *ending(text_of(last.get("done_reason")) if last else None),
            prompt_tokens=count_of(last.get("prompt_eval_count")),
            prefill_ms=None if prefill_ns is None else prefill_ns / 1e6,
            decode_ms=None if decode_ns is None else decode_ns / 1e6,
            model=text_of(last.get("model")),
        ).with_rest_of(self._text)
