"""vLLM: one chunk is one step, and with detailed metrics every origin is known once the reply has ended.

A chunk of n tokens is n - 1 accepted drafts and one token of the target's own. No chunk says how many drafts
were rejected, or whether a step of one token had any. The usage chunk does, if the server was started with
``--per-request-spec-decode-metrics detailed``: ``per_step_accepted`` and ``per_step_drafted`` list the steps
that had drafts. The other steps are not in these lists, so a token stays unknown where both kinds would fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import Counters, FinishReason, Tells, Token
from ds4chat.servers.dialect import (
    SAMPLING,
    About,
    Block,
    End,
    Piece,
    Query,
    Request,
    Revision,
    count_of,
    ids_of,
    number_of,
    object_of,
    text_of,
    verified_block,
    with_origin,
)
from ds4chat.servers.http import Endpoint
from ds4chat.servers.openai import OpenAI, OpenAIReader


class Vllm(OpenAI):
    """vLLM's server."""

    kind = "vLLM"
    tells: Tells = "exact at the end"
    why = (
        "while a reply is written, a step of one token may be plain or corrected; it tells which at the end, "
        "if it was started with --per-request-spec-decode-metrics detailed"
    )
    sampling: Mapping[str, str] = {**SAMPLING, "repeat_penalty": "repetition_penalty"}
    goes_on = True
    fixed: Mapping[str, str] = {
        "depth": "vLLM reads it only when it starts: num_speculative_tokens in --speculative-config",
        "gate": "vLLM has none",
        "margin": "vLLM keeps the target's distribution",
        "strict": "vLLM verifies in batches: there is no strict mode",
    }

    def is_kind_of(self, models: list[dict[str, Any]]) -> bool:
        return any(m.get("owned_by") == "vllm" for m in models)

    def about(self, endpoint: Endpoint, models: list[dict[str, Any]], model: str) -> About:
        found = super().about(endpoint, models, model)
        version = text_of(object_of(endpoint.ask("/version").json()).get("version"))
        metrics = endpoint.ask("/metrics")
        speculates = b"vllm:spec_decode_num_drafts" in metrics.body if metrics.status == 200 else None
        return replace(found, version=version, speculates=speculates)

    def request(self, query: Query) -> Request:
        request = super().request(query)
        body = request.body | {
            "return_token_ids": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if query.generate.ignore_eos:
            body["ignore_eos"] = True
        if query.generate.prompt is None:
            # A chunk has the text of each token only beside its log probability.
            body |= {"logprobs": True, **query.template_options}
        else:
            body["logprobs"] = 0
        return Request(request.path, body, VllmReader(speculates=query.about.speculates))


class VllmReader(OpenAIReader):
    """Reads vLLM's streams. ``speculates`` False: no step has drafts, and every token is plain."""

    def __init__(self, *, speculates: bool | None = None) -> None:
        super().__init__()
        self._speculates = speculates
        self._chunks: list[tuple[Token, ...]] = []
        self._metrics: Mapping[str, Any] = {}

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        self._metrics = object_of(payload.get("metrics")) or self._metrics
        yield from super().feed(payload)

    def blocks(self, text: str, choice: Mapping[str, Any], *, thinking: bool) -> Iterator[Block]:
        ids = ids_of(choice.get("token_ids"))
        if not ids:
            yield from super().blocks(text, choice, thinking=thinking)
            return
        pieces = _texts(text, choice, len(ids))
        chunk = tuple(self.token(piece, id_, thinking) for id_, piece in zip(ids, pieces))
        self._chunks.append(chunk)
        yield self._provisional(chunk, opening=len(self._chunks) == 1)

    def _provisional(self, chunk: tuple[Token, ...], *, opening: bool) -> Block:
        """What is known about a chunk while the reply is written."""
        if self._speculates is False or (opening and len(chunk) == 1):
            return Block(tuple(with_origin(token, "plain") for token in chunk), 0, 0)
        *accepted, own = chunk
        return Block((*(with_origin(token, "accepted") for token in accepted), own))

    def finish(self) -> Iterator[Piece]:
        metrics = object_of(self._metrics.get("speculative_decoding"))
        accepted, drafted = ids_of(metrics.get("per_step_accepted")), ids_of(metrics.get("per_step_drafted"))
        if self._chunks and drafted and len(accepted) == len(drafted):
            yield Revision(tuple(align(self._chunks, accepted, drafted)))
        yield from super().finish()

    def end(self, reason: FinishReason | None, detail: str) -> End:
        metrics = object_of(self._metrics.get("speculative_decoding"))
        drafted = count_of(metrics.get("num_draft_tokens"))
        accepted = count_of(metrics.get("num_accepted_draft_tokens"))
        return replace(
            super().end(reason, detail),
            prefill_ms=number_of(self._metrics.get("time_to_first_token_ms")),
            counters=Counters(drafted, accepted) if drafted else None,
        )


def _texts(text: str, choice: Mapping[str, Any], count: int) -> list[str]:
    """The chunk's text by tokens; all of it with the first token if the server does not divide it."""
    logprobs = object_of(choice.get("logprobs"))
    listed = logprobs.get("content")
    if isinstance(listed, list):
        pieces = [text_of(object_of(entry).get("token")) for entry in listed]
    else:
        listed = logprobs.get("tokens")
        pieces = [text_of(piece) for piece in listed] if isinstance(listed, list) else []
    if len(pieces) == count and "".join(pieces) == text:
        return pieces
    return [text, *[""] * (count - 1)]


def align(
    chunks: Sequence[tuple[Token, ...]], accepted: Sequence[int], drafted: Sequence[int]
) -> list[Block]:
    """The reply's steps, in order, from its chunks and from what is known about the steps with drafts.

    ``accepted`` and ``drafted`` have one entry for each step with drafts, none for the reply's first token
    and the steps without drafts. Each chunk is taken for a step if that fits the lists. It does not where a
    server sends several steps in one chunk; then the lists alone divide the tokens, if every step had drafts.
    """
    return _by_chunks(chunks, accepted, drafted) or _in_a_row(chunks, accepted, drafted)


def _by_chunks(
    chunks: Sequence[tuple[Token, ...]], accepted: Sequence[int], drafted: Sequence[int]
) -> list[Block] | None:
    """Steps of one chunk each; None if the lists do not fit that."""
    if len(chunks[0]) != 1:
        return None
    blocks = [verified_block(chunks[0], 0, 0)]
    left = deque(zip(accepted, drafted))
    singles: list[tuple[Token, ...]] = []
    for index, chunk in enumerate(chunks[1:], start=2):
        # A limit may cut the last step, whose accepted drafts are counted nevertheless.
        cut = index == len(chunks) and bool(left) and left[-1][0] >= len(chunk)
        if len(chunk) == 1 and not cut:
            singles.append(chunk)
            continue
        misses = []
        while left and left[0][0] == 0:
            misses.append(left.popleft()[1])
        if not left or len(misses) > len(singles):
            return None
        right, count = left.popleft()
        if right != len(chunk) - 1 and not (cut and not left):
            return None
        blocks += [*_single(singles, misses), verified_block(chunk, count, right)]
        singles = []
    if any(right for right, _ in left) or len(left) > len(singles):
        return None
    return blocks + _single(singles, [count for _, count in left])


def _single(chunks: Sequence[tuple[Token, ...]], misses: Sequence[int]) -> list[Block]:
    """Steps of one token; ``misses``: the drafts of those of them that had any."""
    if misses and len(misses) < len(chunks):
        return [Block(chunk) for chunk in chunks]
    drafted = misses or [0] * len(chunks)
    return [verified_block(chunk, count, 0) for chunk, count in zip(chunks, drafted)]


def _in_a_row(
    chunks: Sequence[tuple[Token, ...]], accepted: Sequence[int], drafted: Sequence[int]
) -> list[Block]:
    """Steps divided by the lists alone, if every step had drafts; else the chunks, with nothing known about
    them."""
    tokens = [token for chunk in chunks for token in chunk]
    missing = sum(accepted) + len(accepted) - (len(tokens) - 1)
    if not 0 <= missing <= accepted[-1]:
        opening = verified_block(chunks[0], 0, 0) if len(chunks[0]) == 1 else Block(chunks[0])
        return [opening, *(Block(chunk) for chunk in chunks[1:])]
    blocks, at = [verified_block(tokens[:1], 0, 0)], 1
    for a, k in zip(accepted, drafted):
        blocks.append(verified_block(tokens[at : at + a + 1], k, a))
        at += a + 1
    return blocks
