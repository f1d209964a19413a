"""LM Studio: totals of its drafts at the end, through its own REST interface. Written from its
documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import Counters, FinishReason, Tells
from ds4chat.servers.dialect import (
    SAMPLING,
    About,
    End,
    Piece,
    Query,
    Request,
    count_of,
    number_of,
    object_of,
    objects_of,
    text_of,
)
from ds4chat.servers.http import Endpoint
from ds4chat.servers.openai import OpenAI, OpenAIReader


class LMStudio(OpenAI):
    """LM Studio's server."""

    kind = "LM Studio"
    tells: Tells = "counters"
    why = "it reports the totals of its drafts at the end, not which tokens they were"
    sampling: Mapping[str, str] = SAMPLING
    fixed: Mapping[str, str] = {
        **dict.fromkeys(
            ("depth", "gate"), "LM Studio keeps it with the draft model, in the model's settings"
        ),
        "margin": "LM Studio has none",
        "strict": "LM Studio verifies in batches: there is no strict mode",
    }

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        answer = endpoint.ask("/api/v0/models")
        listed = object_of(answer.json()).get("data")
        if answer.status != 200 or not isinstance(listed, list):
            return None
        models = [m for m in objects_of(listed) if m.get("type") in ("llm", "vlm")]
        loaded = [m for m in models if m.get("state") == "loaded"]
        entry = next((m for m in models if m.get("id") == model), (loaded or models or [{}])[0])
        return About(
            model=model or text_of(entry.get("id")),
            context=count_of(entry.get("loaded_context_length")) or count_of(entry.get("max_context_length")),
        )

    def request(self, query: Query) -> Request:
        request = super().request(query)
        return Request(request.path.replace("/v1/", "/api/v0/"), request.body, LMStudioReader())


class LMStudioReader(OpenAIReader):
    """Reads a stream of /api/v0, whose last chunk has ``stats``."""

    def __init__(self) -> None:
        super().__init__()
        self._stats: Mapping[str, Any] = {}

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        self._stats = object_of(payload.get("stats")) or self._stats
        yield from super().feed(payload)

    def end(self, reason: FinishReason | None, detail: str) -> End:
        stats = {**self.usage, **self._stats}  # versions differ in which of them has the drafts
        drafted = count_of(stats.get("total_draft_tokens_count"))
        first_s, decode_s = (
            number_of(stats.get("time_to_first_token")),
            number_of(stats.get("generation_time")),
        )
        return replace(
            super().end(reason, detail),
            counters=Counters(drafted, count_of(stats.get("accepted_draft_tokens_count")))
            if drafted
            else None,
            prefill_ms=None if first_s is None else first_s * 1000,
            decode_ms=None if decode_s is None else decode_s * 1000,
            drafter=text_of(stats.get("draft_model")),
        )
