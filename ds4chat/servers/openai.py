"""Any server with OpenAI's interface: text, an end, sometimes token counts; nothing about its speculation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4chat.engine.events import UNKNOWN_ID, FinishReason, Tells, Token
from ds4chat.servers.dialect import (
    OPEN_TURN,
    About,
    Block,
    Dialect,
    End,
    Piece,
    Query,
    Request,
    cannot_continue,
    count_of,
    ending,
    first_of,
    object_of,
    objects_of,
    raise_for,
    reply_text,
    said_in,
    text_of,
)
from ds4chat.servers.http import Endpoint

ASK_IN_A_PROMPT = "Ask for the rest in a prompt."


class OpenAI(Dialect):
    """The interface that most servers have; the dialects of those that tell more build on it."""

    kind = "OpenAI-compatible server"
    tells: Tells = "nothing"
    why = "its interface does not report drafts"
    sampling: Mapping[str, str] = {"temp": "temperature", "top_p": "top_p", "seed": "seed"}
    fixed: Mapping[str, str] = dict.fromkeys(
        ("depth", "margin", "gate", "strict"), "look at how the server is started"
    )

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        answer = endpoint.ask("/v1/models")
        if answer.status not in (200, 404, 405):
            raise endpoint.refusal(answer)
        found = answer.json()
        listed = found if isinstance(found, list) else object_of(found).get("data")
        if answer.status != 200:
            listed = [] if model else None  # a server without a list may have what the user names
        if not isinstance(listed, list):
            return None
        models = objects_of(listed)
        return self.about(endpoint, models, model) if self.is_kind_of(models) else None

    def is_kind_of(self, models: list[dict[str, Any]]) -> bool:
        """Whether a server of this kind lists its models like this."""
        return True

    def about(self, endpoint: Endpoint, models: list[dict[str, Any]], model: str) -> About:
        """What is known about a server that lists these models."""
        chosen = model or text_of(first_of(models).get("id"))
        entry = next((m for m in models if m.get("id") == chosen), {})
        context = count_of(entry.get("max_model_len")) or count_of(entry.get("context_length"))
        return About(model=chosen, context=context)

    def request(self, query: Query) -> Request:
        generate = query.generate
        body: dict[str, Any] = {
            "model": query.about.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **query.settings(self.sampling, "max_tokens"),
        }
        if generate.prompt is not None:
            return Request("/v1/completions", body | {"prompt": generate.prompt}, OpenAIReader())
        if query.begun:
            if not self.goes_on:
                raise cannot_continue(f"{self.kind} at {query.endpoint.url}", ASK_IN_A_PROMPT)
            body |= OPEN_TURN
        return Request("/v1/chat/completions", body | {"messages": query.messages()}, OpenAIReader())


class OpenAIReader:
    """Reads a stream of /v1/chat/completions or /v1/completions."""

    def __init__(self) -> None:
        self._text = reply_text()
        self._reason: str | None = None
        self._streams = False
        """Some of the text has come."""
        self.usage: Mapping[str, Any] = {}
        self._model = ""

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        raise_for(payload)
        self.usage = object_of(payload.get("usage")) or self.usage
        self._model = text_of(payload.get("model")) or self._model
        choice = first_of(payload.get("choices"))
        thought, text = said_in(choice, streams=self._streams)
        if thought:
            yield from self.blocks(thought, choice, thinking=True)
        if text or not thought:
            yield from self.blocks(text, choice, thinking=False)
        self._streams = self._streams or bool(thought or text)
        if reason := text_of(choice.get("finish_reason")):  # some servers send an empty one with each chunk
            self._reason = reason

    def blocks(self, text: str, choice: Mapping[str, Any], *, thinking: bool) -> Iterator[Block]:
        """The block of a chunk's text, counted as one token. ``thinking``: the server says that it is part of
        the thinking."""
        if text:
            yield Block((self.token(text, UNKNOWN_ID, thinking),))

    def token(self, text: str, id_: int, thinking: bool) -> Token:
        """A token of unknown origin with the text that it adds."""
        added, inside = (text, True) if thinking else self._text.push_text(text)
        return Token(id_, added, "unknown", inside)

    def finish(self) -> Iterator[Piece]:
        yield self.end(*ending(self._reason)).with_rest_of(self._text)

    def end(self, reason: FinishReason | None, detail: str) -> End:
        """The end of the reply, by what the last chunks said."""
        details = object_of(self.usage.get("prompt_tokens_details"))
        return End(
            reason,
            detail,
            prompt_tokens=count_of(self.usage.get("prompt_tokens")),
            reused_tokens=count_of(details.get("cached_tokens")),
            model=self._model,
        )
