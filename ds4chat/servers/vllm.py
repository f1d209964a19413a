"""vLLM: one chunk is one step, and with detailed metrics every origin is known once the reply has ended.

A chunk of n tokens is n - 1 accepted drafts and one token of the target's own; how many drafts were refused
after them, and whether a step of one token had any, no chunk tells. The usage chunk does, where the server
was started with ``--per-request-spec-decode-metrics detailed``: ``per_step_accepted`` and
``per_step_drafted`` list the steps that had drafts. Steps without are not in the lists, so a token stays
unknown where both kinds would fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import Counters, FinishReason, Tells, Token
from ds4chat.servers.dialect import (
    SAMPLING,
    About,
    Asked,
    Block,
    End,
    Piece,
    Request,
    Revision,
    ids_of,
    number,
    of_origin,
    step_of,
    table,
    text_of,
    whole,
)
from ds4chat.servers.http import Endpoint
from ds4chat.servers.openai import OpenAI, OpenAIReader

DETAILED = "--per-request-spec-decode-metrics detailed"


class Vllm(OpenAI):
    """vLLM's server."""

    kind = "vLLM"
    tells: Tells = "exact at the end"
    why = (
        "while a reply is written a step of one token may be plain or corrected; it tells which at the end, "
        "where "
        f"it was started with {DETAILED}"
    )
    sampling: Mapping[str, str] = {**SAMPLING, "repeat_penalty": "repetition_penalty"}
    goes_on = True
    fixed: Mapping[str, str] = {
        "depth": "vLLM reads it only at its start: num_speculative_tokens in --speculative-config",
        "gate": "vLLM has none",
        "margin": "vLLM keeps the target's distribution",
        "strict": "vLLM verifies in batches: there is no strict mode",
    }

    def is_of(self, models: list[dict[str, Any]]) -> bool:
        return any(m.get("owned_by") == "vllm" for m in models)

    def about(self, endpoint: Endpoint, models: list[dict[str, Any]], model: str) -> About:
        found = super().about(endpoint, models, model)
        version = text_of(table(endpoint.ask("/version").json()).get("version"))
        metrics = endpoint.ask("/metrics")
        speculates = b"vllm:spec_decode_num_drafts" in metrics.body if metrics.status == 200 else None
        return replace(found, version=version, speculates=speculates)

    def request(self, asked: Asked) -> Request:
        request = super().request(asked)
        body = request.body | {
            "return_token_ids": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if asked.generate.ignore_eos:
            body["ignore_eos"] = True
        if asked.generate.prompt is None:
            # The text of each token of a chunk comes with its log probability alone.
            body |= {"logprobs": True, "chat_template_kwargs": {"enable_thinking": asked.think}}
        else:
            body["logprobs"] = 0
        return Request(request.path, body)

    def reader(self, asked: Asked) -> VllmReader:
        return VllmReader(speculates=asked.about.speculates)


class VllmReader(OpenAIReader):
    """Reads vLLM's streams. ``speculates`` False: no step has drafts, and every token is plain."""

    def __init__(self, *, speculates: bool | None = None) -> None:
        super().__init__()
        self._speculates = speculates
        self._chunks: list[tuple[Token, ...]] = []
        self._metrics: Mapping[str, Any] = {}

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        self._metrics = table(payload.get("metrics")) or self._metrics
        yield from super().feed(payload)

    def tokens(self, text: str, choice: Mapping[str, Any], apart: bool) -> Iterator[Piece]:
        ids = ids_of(choice.get("token_ids"))
        if not ids:
            yield from super().tokens(text, choice, apart)
            return
        pieces = _texts(text, choice, len(ids))
        chunk = tuple(self.token(piece, id_, apart) for id_, piece in zip(ids, pieces))
        self._chunks.append(chunk)
        yield self._provisional(chunk, opening=len(self._chunks) == 1)

    def _provisional(self, chunk: tuple[Token, ...], *, opening: bool) -> Block:
        """What is known of a chunk while the reply is written."""
        if self._speculates is False or (opening and len(chunk) == 1):
            return Block(tuple(of_origin(token, "plain") for token in chunk), 0, 0)
        *accepted, own = chunk
        return Block((*(of_origin(token, "accepted") for token in accepted), own))

    def finish(self) -> Iterator[Piece]:
        told = table(self._metrics.get("speculative_decoding"))
        accepted, drafted = ids_of(told.get("per_step_accepted")), ids_of(told.get("per_step_drafted"))
        if self._chunks and drafted and len(accepted) == len(drafted):
            yield Revision(tuple(align(self._chunks, accepted, drafted)))
        yield from super().finish()

    def end(self, reason: FinishReason) -> End:
        told = table(self._metrics.get("speculative_decoding"))
        drafted = whole(told.get("num_draft_tokens"))
        return replace(
            super().end(reason),
            prefill_ms=number(self._metrics.get("time_to_first_token_ms")),
            counters=Counters(drafted, whole(told.get("num_accepted_draft_tokens"))) if drafted else None,
        )


def _texts(text: str, choice: Mapping[str, Any], count: int) -> list[str]:
    """The chunk's text by tokens; all of it with the first where the server does not say how it is
    divided."""
    logprobs = table(choice.get("logprobs"))
    content = logprobs.get("content")
    if isinstance(content, list):
        pieces = [text_of(table(entry).get("token")) for entry in content]
    else:
        listed = logprobs.get("tokens")
        pieces = [text_of(piece) for piece in listed] if isinstance(listed, list) else []
    if len(pieces) == count and "".join(pieces) == text:
        return pieces
    return [text, *[""] * (count - 1)]


def align(
    chunks: Sequence[tuple[Token, ...]], accepted: Sequence[int], drafted: Sequence[int]
) -> list[Block]:
    """The reply's steps from its chunks and from the steps that had drafts, in order.

    ``accepted`` and ``drafted`` have one entry a step with drafts; the reply's first token and the steps
    without drafts are in neither. Each chunk is a step where the two fit together so; else, as where a server
    sends several steps in one chunk, the steps follow one another, if every one of them had drafts.
    """
    return _by_chunks(chunks, accepted, drafted) or _in_a_row(chunks, accepted, drafted)


def _by_chunks(
    chunks: Sequence[tuple[Token, ...]], accepted: Sequence[int], drafted: Sequence[int]
) -> list[Block] | None:
    """One chunk a step; None where the lists do not fit that."""
    if len(chunks[0]) != 1 or len(drafted) > len(chunks) - 1:
        return None
    blocks = [step_of(chunks[0], 0, 0)]
    rest = list(chunks[1:])
    at = 0  # the next step with drafts
    ones: list[tuple[Token, ...]] = []

    def settle(misses: Sequence[int]) -> bool:
        """Book the steps of one token since the last longer one, of which these many had drafts."""
        nonlocal ones
        if len(misses) > len(ones):
            return False
        if len(misses) == len(ones):
            blocks.extend(step_of(one, k, 0) for one, k in zip(ones, misses))
        elif not misses:
            blocks.extend(step_of(one, 0, 0) for one in ones)
        else:
            blocks.extend(Block(one) for one in ones)
        ones = []
        return True

    for number_, chunk in enumerate(rest):
        last = number_ == len(rest) - 1
        # A limit may cut the last step: its accepted drafts are counted all the same.
        cut = last and at < len(accepted) and accepted[-1] >= len(chunk) and accepted[-1] > 0
        if len(chunk) == 1 and not cut:
            ones.append(chunk)
            continue
        begin = at
        while at < len(accepted) and accepted[at] == 0:
            at += 1
        if at >= len(accepted) or not (accepted[at] == len(chunk) - 1 or (cut and at == len(accepted) - 1)):
            return None
        if not settle(drafted[begin:at]):
            return None
        blocks.append(step_of(chunk, drafted[at], accepted[at]))
        at += 1
    if any(accepted[at:]) or not settle(drafted[at:]):
        return None
    return blocks


def _in_a_row(
    chunks: Sequence[tuple[Token, ...]], accepted: Sequence[int], drafted: Sequence[int]
) -> list[Block]:
    """The steps one after the other, where every step had drafts; else one block of which nothing is
    known."""
    tokens = [token for chunk in chunks for token in chunk]
    missing = sum(accepted) + len(accepted) - (len(tokens) - 1)
    if not 0 <= missing <= accepted[-1]:
        opening = step_of(chunks[0], 0, 0) if len(chunks[0]) == 1 else Block(chunks[0])
        return [opening, *(Block(chunk) for chunk in chunks[1:])]
    blocks, at = [step_of(tokens[:1], 0, 0)], 1
    for a, k in zip(accepted, drafted):
        blocks.append(step_of(tokens[at : at + a + 1], k, a))
        at += a + 1
    return blocks
