"""SGLang: by step through its own /generate, which takes a raw prompt; in chat, counters at the end.

Written from SGLang's source. A chunk of /generate has the text and ids so far, or only the new ones, and may
have cumulative ``spec_verify_ct`` and ``spec_num_correct_drafts``. If there was one verification since the
last chunk, t more correct drafts mean t accepted tokens and then one of the target's own. The number of
drafts is not reported. Versions that fill in these fields only in the last chunk report totals, and so does
chat where its ``sglext`` has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import UNKNOWN_ID, Counters, FinishReason, Tells, Token
from ds4chat.servers.dialect import (
    SAMPLING,
    About,
    Block,
    End,
    Piece,
    Query,
    Request,
    count_of,
    ending,
    ids_of,
    object_of,
    raise_for,
    reply_text,
    text_of,
    with_origin,
)
from ds4chat.servers.http import Endpoint
from ds4chat.servers.openai import OpenAI, OpenAIReader


class SGLang(OpenAI):
    """SGLang's server."""

    kind = "SGLang"
    tells: Tells = "counters"
    why = (
        "its chat reports at most totals at the end; a raw prompt (--raw) is reported by step, if each chunk "
        "has the counters"
    )
    sampling: Mapping[str, str] = {
        ours: "repetition_penalty" if ours == "repeat_penalty" else theirs
        for ours, theirs in SAMPLING.items()
        if ours != "seed"
    }
    fixed: Mapping[str, str] = {
        "depth": "SGLang reads it only when it starts: --speculative-num-steps",
        "gate": "SGLang has none",
        "margin": "SGLang has server-wide thresholds: --speculative-accept-threshold-single and -acc",
        "strict": "SGLang verifies in batches: there is no strict mode",
        "seed": "SGLang takes one seed when it starts: --random-seed",
    }
    goes_on = True

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        answer = endpoint.ask("/server_info")
        info = object_of(answer.json())
        if answer.status != 200 or "speculative_algorithm" not in info:
            return None
        algorithm = text_of(info.get("speculative_algorithm"))
        name = text_of(info.get("served_model_name")) or text_of(info.get("model_path"))
        return About(
            model=model or name,
            version=text_of(info.get("version")),
            context=count_of(info.get("context_length")) or count_of(info.get("max_total_num_tokens")),
            speculates=bool(algorithm),
            drafter=algorithm,
        )

    def request(self, query: Query) -> Request:
        generate = query.generate
        if generate.prompt is None:
            request = super().request(query)
            return Request(request.path, request.body | query.template_options, ChatReader())
        sampling = query.settings(self.sampling, "max_new_tokens")
        if generate.ignore_eos:
            sampling["ignore_eos"] = True
        body = {"text": generate.prompt, "sampling_params": sampling, "stream": True}
        return Request("/generate", body, GenerateReader(speculates=query.about.speculates))


class ChatReader(OpenAIReader):
    """Reads SGLang's chat, whose last chunk may have the totals."""

    def __init__(self) -> None:
        super().__init__()
        self._totals: Mapping[str, Any] = {}

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        self._totals = object_of(payload.get("sglext")) or self._totals
        yield from super().feed(payload)

    def end(self, reason: FinishReason | None, detail: str) -> End:
        return replace(super().end(reason, detail), counters=_counters(self._totals))


class GenerateReader:
    """Reads a stream of /generate. ``speculates`` False: no step has drafts, and every token is plain."""

    def __init__(self, *, speculates: bool | None = None) -> None:
        self._speculates = speculates
        self._reply_text = reply_text()
        self._text = ""
        self._ids: tuple[int, ...] = ()
        self._counted = (0, 0, 0)
        """The last chunk's tokens, verifications and correct drafts."""
        self._meta: Mapping[str, Any] = {}
        self._reason: str | None = None

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        raise_for(payload)
        text, ids = text_of(payload.get("text")), ids_of(payload.get("output_ids"))
        self._meta = meta = object_of(payload.get("meta_info"))
        counted = (
            count_of(meta.get("completion_tokens")),
            count_of(meta.get("spec_verify_ct")),
            count_of(meta.get("spec_num_correct_drafts")),
        )
        reason = text_of(object_of(meta.get("finish_reason")).get("type"))
        if self._has_all(text, ids, counted[0] - bool(reason)):
            text, ids = text[len(self._text) :], ids[len(self._ids) :]
        count, verified, correct = (now - before for now, before in zip(counted, self._counted))
        if text or ids:
            # Each token adds a byte at least.
            count = min(count, len(ids) + len(text.encode("utf-8", "replace")))
            yield self._block(text, ids, max(count, len(ids), 1), verified, correct)
        self._text, self._ids, self._counted = self._text + text, self._ids + ids, counted
        if reason:
            self._reason = reason

    def _has_all(self, text: str, ids: tuple[int, ...], count: int) -> bool:
        """Whether a chunk has the whole reply so far, of at least ``count`` tokens. With
        --incremental-streaming-output it has only what is new, which may begin as the reply did."""
        if not ids:
            return text.startswith(self._text)
        return len(ids) >= count and ids[: len(self._ids)] == self._ids

    def _block(self, text: str, ids: tuple[int, ...], count: int, verified: int, correct: int) -> Block:
        added, thinking = self._reply_text.push_text(text)
        named = (*ids, *[UNKNOWN_ID] * (count - len(ids)))
        tokens = [Token(id_, added if i == 0 else "", "unknown", thinking) for i, id_ in enumerate(named)]
        if verified == 0 and (self._speculates is False or (not self._ids and count == 1)):
            return Block(tuple(with_origin(token, "plain") for token in tokens), 0, 0)
        if verified == 1 and correct == count - 1:
            tokens[:correct] = [with_origin(token, "accepted") for token in tokens[:correct]]
        return Block(tuple(tokens))

    def finish(self) -> Iterator[Piece]:
        yield End(
            *ending(self._reason),
            prompt_tokens=count_of(self._meta.get("prompt_tokens")),
            reused_tokens=count_of(self._meta.get("cached_tokens")),
            counters=_counters(self._meta),
        ).with_rest_of(self._reply_text)


def _counters(meta: Mapping[str, Any]) -> Counters | None:
    """The totals by SGLang's names for them; None where they are missing."""
    drafted = count_of(meta.get("spec_num_proposed_drafts")) or count_of(meta.get("spec_draft_token_num"))
    accepted = count_of(meta.get("spec_num_correct_drafts")) or count_of(meta.get("spec_accept_token_num"))
    return Counters(drafted, accepted) if drafted else None
