"""SGLang: by step through its own /generate, which takes a prompt as it stands; in chat counters at the end.

Written from SGLang's source. A chunk of /generate holds the text and ids so far, or what is new of them, and
may hold cumulative ``spec_verify_ct`` and ``spec_num_correct_drafts``: where one verification came since the
last chunk, t more correct drafts are t accepted tokens and then one of the target's own. How many drafts it
had is not told. Versions that fill these in with the last chunk alone tell totals, and chat tells them where
its ``sglext`` has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import UNKNOWN_ID, Counters, FinishReason, Tells, Token
from ds4chat.servers.dialect import (
    About,
    Asked,
    Block,
    End,
    Piece,
    Reader,
    Request,
    Spoken,
    ids_of,
    of_origin,
    raise_for,
    refusal,
    table,
    text_of,
    whole,
)
from ds4chat.servers.http import Endpoint
from ds4chat.servers.openai import REASONS, OpenAI, OpenAIReader


class SGLang(OpenAI):
    """SGLang's server."""

    kind = "SGLang"
    tells: Tells = "counters"
    why = (
        "its chat tells totals at the end at most; a prompt as it stands (--raw) is told by step where each "
        "chunk carries the counters"
    )
    sampling: Mapping[str, str] = {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "repeat_penalty": "repetition_penalty",
    }
    fixed: Mapping[str, str] = {
        "depth": "SGLang reads it only at its start: --speculative-num-steps",
        "gate": "SGLang has none",
        "margin": "SGLang has server-wide thresholds: --speculative-accept-threshold-single and -acc",
        "strict": "SGLang verifies in batches: there is no strict mode",
        "seed": "SGLang takes one seed at its start: --random-seed",
    }
    goes_on = True

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        answer = endpoint.ask("/server_info")
        info = table(answer.json())
        if answer.status in (401, 403) and endpoint.ask("/get_model_info").status == answer.status:
            raise refusal(endpoint, "/server_info", answer.status, answer.json())
        if answer.status != 200 or "speculative_algorithm" not in info:
            return None
        algorithm = text_of(info.get("speculative_algorithm"))
        name = text_of(info.get("served_model_name")) or text_of(info.get("model_path"))
        return About(
            model=model or name,
            version=text_of(info.get("version")),
            context=whole(info.get("context_length")) or whole(info.get("max_total_num_tokens")),
            speculates=bool(algorithm),
            drafter=algorithm,
        )

    def request(self, asked: Asked) -> Request:
        generate = asked.generate
        if generate.prompt is None:
            request = super().request(asked)
            thinking = {"chat_template_kwargs": {"enable_thinking": asked.think}}
            return Request(request.path, request.body | thinking)
        sampling: dict[str, Any] = asked.sampling(self.sampling)
        if generate.max_tokens >= 0:
            sampling["max_new_tokens"] = generate.max_tokens
        if generate.stop:
            sampling["stop"] = list(generate.stop)
        if generate.ignore_eos:
            sampling["ignore_eos"] = True
        return Request("/generate", {"text": generate.prompt, "sampling_params": sampling, "stream": True})

    def reader(self, asked: Asked) -> Reader:
        if asked.generate.prompt is None:
            return ChatReader()
        return GenerateReader(speculates=asked.about.speculates)


class ChatReader(OpenAIReader):
    """Reads SGLang's chat, whose last chunk may hold the totals."""

    def __init__(self) -> None:
        super().__init__()
        self._totals: Mapping[str, Any] = {}

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        self._totals = table(payload.get("sglext")) or self._totals
        yield from super().feed(payload)

    def end(self, reason: FinishReason) -> End:
        return replace(super().end(reason), counters=_counters(self._totals))


class GenerateReader:
    """Reads a stream of /generate. ``speculates`` False: no step has drafts, and every token is plain."""

    def __init__(self, *, speculates: bool | None = None) -> None:
        self._speculates = speculates
        self._spoken = Spoken()
        self._text = ""
        self._ids: tuple[int, ...] = ()
        self._seen = (0, 0, 0)
        self._meta: Mapping[str, Any] = {}
        self._reason: FinishReason | None = None

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        raise_for(payload)
        text, ids = text_of(payload.get("text")), ids_of(payload.get("output_ids"))
        self._meta = meta = table(payload.get("meta_info"))
        counted = (
            whole(meta.get("completion_tokens")),
            whole(meta.get("spec_verify_ct")),
            whole(meta.get("spec_num_correct_drafts")),
        )
        reason = table(meta.get("finish_reason")).get("type")
        if self._all_so_far(text, ids, counted[0] - isinstance(reason, str)):
            new, fresh = text[len(self._text) :], ids[len(self._ids) :]
        else:
            new, fresh = text, ids
        count, verified, correct = (now - before for now, before in zip(counted, self._seen))
        if new or fresh:
            yield self._block(new, fresh, max(count, len(fresh), 1), verified, correct)
        self._text, self._ids, self._seen = self._text + new, self._ids + fresh, counted
        if isinstance(reason, str):
            self._reason = "error" if reason == "abort" else REASONS.get(reason, "stop")

    def _all_so_far(self, text: str, ids: tuple[int, ...], count: int) -> bool:
        """A chunk holds the reply so far, of at least ``count`` tokens. With --incremental-streaming-output
        it holds what is new, which may begin as the reply did."""
        if not ids:
            return text.startswith(self._text)
        return len(ids) >= count and ids[: len(self._ids)] == self._ids

    def _block(self, text: str, ids: tuple[int, ...], count: int, verified: int, correct: int) -> Block:
        said, thinking = self._spoken.push(text)
        named = (*ids, *[UNKNOWN_ID] * (count - len(ids)))
        tokens = [Token(id_, said if i == 0 else "", "unknown", thinking) for i, id_ in enumerate(named)]
        if verified == 0 and (self._speculates is False or (not self._ids and count == 1)):
            return Block(tuple(of_origin(token, "plain") for token in tokens), 0, 0)
        if verified == 1 and correct == count - 1:
            tokens = [of_origin(t, "accepted") if i < correct else t for i, t in enumerate(tokens)]
        return Block(tuple(tokens))

    def finish(self) -> Iterator[Piece]:
        if self._reason is not None:
            end = End(
                self._reason,
                detail="The server gave the reply up." if self._reason == "error" else "",
                prompt_tokens=whole(self._meta.get("prompt_tokens")),
                reused_tokens=whole(self._meta.get("cached_tokens")),
                counters=_counters(self._meta),
            )
            yield self._spoken.finish(end)


def _counters(told: Mapping[str, Any]) -> Counters | None:
    """The totals in SGLang's words; None where they are not told."""
    drafted = whole(told.get("spec_num_proposed_drafts")) or whole(told.get("spec_draft_token_num"))
    accepted = whole(told.get("spec_num_correct_drafts")) or whole(told.get("spec_accept_token_num"))
    return Counters(drafted, accepted) if drafted else None
