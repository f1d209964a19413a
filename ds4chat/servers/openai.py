"""Any server with OpenAI's interface: text, an end, perhaps a count of tokens; nothing of its speculation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4chat.engine.events import UNKNOWN_ID, FinishReason, Tells, Token
from ds4chat.servers.dialect import (
    OPEN_TURN,
    About,
    Asked,
    Block,
    End,
    Piece,
    Reader,
    Request,
    Spoken,
    first,
    no_going_on,
    raise_for,
    refusal,
    table,
    text_of,
    whole,
)
from ds4chat.servers.http import Endpoint

REASONS: Mapping[str, FinishReason] = {"length": "length", "max_tokens": "length"}
ASK_IN_WORDS = "Ask it in a prompt to go on."


class OpenAI:
    """The interface that most servers have; dialects that tell more begin with it."""

    kind = "OpenAI-compatible server"
    tells: Tells = "nothing"
    why = "its interface has no word for drafts"
    sampling: Mapping[str, str] = {"temp": "temperature", "top_p": "top_p", "seed": "seed"}
    fixed: Mapping[str, str] = dict.fromkeys(
        ("depth", "margin", "gate", "strict"), "look at how the server is started"
    )
    goes_on = False

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        answer = endpoint.ask("/v1/models")
        if answer.status not in (200, 404, 405):
            raise refusal(endpoint, "/v1/models", answer.status, answer.json())
        listed = table(answer.json()).get("data")
        if answer.status != 200 or not isinstance(listed, list):
            return None
        models = [m for m in listed if isinstance(m, dict)]
        if not self.is_of(models):
            return None
        return self.about(endpoint, models, model)

    def is_of(self, models: list[dict[str, Any]]) -> bool:
        """Whether a list of models is one of this kind of server."""
        return True

    def about(self, endpoint: Endpoint, models: list[dict[str, Any]], model: str) -> About:
        """What is known of a server that lists these models."""
        names = tuple(text_of(m.get("id")) for m in models)
        chosen = model or (names[0] if names else "")
        entry = next((m for m in models if m.get("id") == chosen), {})
        context = whole(entry.get("max_model_len")) or whole(entry.get("context_length"))
        return About(model=chosen, context=context, models=names)

    def request(self, asked: Asked) -> Request:
        generate = asked.generate
        body: dict[str, Any] = {
            "model": asked.about.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **asked.sampling(self.sampling),
        }
        if generate.max_tokens >= 0:
            body["max_tokens"] = generate.max_tokens
        if generate.stop:
            body["stop"] = list(generate.stop)
        if generate.prompt is not None:
            return Request("/v1/completions", body | {"prompt": generate.prompt})
        if asked.begun:
            if not self.goes_on:
                raise no_going_on(f"{self.kind} at {asked.endpoint.url}", ASK_IN_WORDS)
            body |= OPEN_TURN
        return Request("/v1/chat/completions", body | {"messages": asked.messages()})

    def reader(self, asked: Asked) -> Reader:
        return OpenAIReader()

    def stopped(self, endpoint: Endpoint) -> bool | None:
        return None


class OpenAIReader:
    """Reads a stream of /v1/chat/completions or /v1/completions."""

    def __init__(self) -> None:
        self._spoken = Spoken()
        self._reason: FinishReason | None = None
        self.usage: Mapping[str, Any] = {}
        self._model = ""

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        raise_for(payload)
        self.usage = table(payload.get("usage")) or self.usage
        self._model = text_of(payload.get("model")) or self._model
        choice = first(payload.get("choices"))
        delta = table(choice.get("delta"))
        thought = text_of(delta.get("reasoning")) or text_of(delta.get("reasoning_content"))
        text = text_of(delta.get("content")) or text_of(choice.get("text"))
        if thought:
            yield from self.tokens(thought, choice, True)
        if text or not thought:
            yield from self.tokens(text, choice, False)
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._reason = REASONS.get(reason, "stop")

    def tokens(self, text: str, choice: Mapping[str, Any], apart: bool) -> Iterator[Piece]:
        """The block of one chunk's text, which is a token as far as anybody knows. ``apart``: the server says
        that it is thinking."""
        if text:
            yield Block((self.token(text, UNKNOWN_ID, apart),))

    def token(self, text: str, id_: int, apart: bool) -> Token:
        """A token of unknown origin with what its text adds."""
        said, thinking = (text, True) if apart else self._spoken.push(text)
        return Token(id_, said, "unknown", thinking)

    def finish(self) -> Iterator[Piece]:
        if self._reason is not None:
            yield self._spoken.finish(self.end(self._reason))

    def end(self, reason: FinishReason) -> End:
        """The end of the reply by what the last chunks said."""
        details = table(self.usage.get("prompt_tokens_details"))
        return End(
            reason,
            prompt_tokens=whole(self.usage.get("prompt_tokens")),
            reused_tokens=whole(details.get("cached_tokens")),
            model=self._model,
            emitted=whole(self.usage.get("completion_tokens")),
        )
