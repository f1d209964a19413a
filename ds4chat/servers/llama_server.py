"""llama.cpp's llama-server: every token's origin, from the counters that each chunk carries.

A step that verified k drafts and accepted t of them adds k to ``draft_n`` and t to ``draft_n_accepted``
before the first of its t + 1 tokens is sent, one chunk for each token; ``predicted_ms`` changes once a step.
So t tokens are accepted, and the one after them is the target's own: bonus if t = k, else corrected. A step
without drafts changes only ``predicted_ms``: its token is plain.

Where this does not hold, the origin is unknown instead of guessed:
- A token that ends within a UTF-8 character, or that a chat parser removes, has no chunk: ``predicted_n``
  jumps.
- A hybrid target that replays a step from a checkpoint emits one token more than t + 1 at the same
  ``predicted_ms``.
- Older servers raise ``predicted_n`` by a whole step at once: then only the counters can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ds4chat.engine.events import UNKNOWN_ID, Counters, Origin, Tells, Token
from ds4chat.engine.reply_text import ReplyText
from ds4chat.engine.thinking import FAMILIES
from ds4chat.servers.dialect import (
    OPEN_TURN,
    SAMPLING,
    About,
    Block,
    Dialect,
    End,
    Piece,
    PromptProgress,
    Query,
    Request,
    count_of,
    ending,
    first_of,
    ids_of,
    number_of,
    object_of,
    objects_of,
    raise_for,
    reply_text,
    said_in,
    text_of,
    verified_block,
    with_origin,
)
from ds4chat.servers.http import Endpoint, error_of

_AT_START = "llama-server reads it only when it starts: start it with "
_MARKS = {
    "<start_of_turn>thought",
    *(mark for family in FAMILIES if family.think != "<think>" for mark in (family.think, *family.header)),
} - {""}
"""What begins the thinking, a control token in most vocabularies. The native completion leaves such tokens
out of its text, so only chat separates that thinking."""
_RANDOM_SEED = 4294967295
_MOST_HIDDEN = 1 << 16
"""Tokens without chunks in one reply: more than a reply of tool calls has."""


class LlamaServer(Dialect):
    """llama-server: the native completion, or chat if its template cannot be used."""

    kind = "llama-server"
    tells: Tells = "exact"
    why = "it reports neither rejected drafts nor probabilities, so there is no ratio and no gap"
    sampling: Mapping[str, str] = SAMPLING
    fixed: Mapping[str, str] = {
        "depth": f"{_AT_START}--spec-draft-n-max N, or with --spec-type none for no drafts",
        "gate": f"{_AT_START}--spec-draft-p-min P, which is a probability there",
        "margin": "llama-server accepts nothing but the target's own choice",
        "strict": "llama-server verifies in batches: there is no strict mode",
    }
    goes_on = True

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        health = endpoint.ask("/health")
        if health.status == 503 and "loading" in error_of(health.json())[0].lower():
            raise endpoint.refusal(health)
        answer = endpoint.ask("/props")
        props = object_of(answer.json())
        defaults = object_of(props.get("default_generation_settings"))
        if health.headers.get("server", "").lower() != "llama.cpp" and not defaults:
            return None
        if answer.status in (401, 403):
            raise endpoint.refusal(answer)
        listed = first_of(object_of(endpoint.ask("/v1/models").json()).get("data"))
        meta = object_of(listed.get("meta"))
        slot = first_of(endpoint.ask("/slots").json())
        path, template = text_of(props.get("model_path")), text_of(props.get("chat_template"))
        router = props.get("role") == "router"
        return About(
            model=(model or text_of(listed.get("id"))) if router else "",
            label=path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf") or model,
            version=text_of(props.get("build_info")),
            answers=text_of(props.get("model_alias")) or path,
            context=count_of(slot.get("n_ctx")) or count_of(defaults.get("n_ctx")),
            speculates=slot.get("speculative") if isinstance(slot.get("speculative"), bool) else None,
            template=bool(template) and not any(mark in template for mark in _MARKS),
            parameters=count_of(meta.get("n_params")),
            size_bytes=count_of(meta.get("size")),
            vocabulary=count_of(meta.get("n_vocab")),
            trained_context=count_of(meta.get("n_ctx_train")),
        )

    def request(self, query: Query) -> Request:
        generate = query.generate
        chat = generate.prompt is None and not query.about.template
        body: dict[str, Any] = {
            "stream": True,
            "timings_per_token": True,
            "return_progress": True,
            **_model(query),
            **query.settings(self.sampling, "max_tokens" if chat else "n_predict"),
        }
        if generate.ignore_eos:
            body["ignore_eos"] = True
        if chat:
            if query.begun:
                self._rendered(query)  # raises if the prompt closes the turn
            body |= _conversation(query) | {"stream_options": {"include_usage": True}}
            return Request("/v1/chat/completions", body, LlamaReader())
        prompt = self._rendered(query) if generate.prompt is None else generate.prompt
        body |= {"prompt": prompt, "n_predict": generate.max_tokens, "return_tokens": True}
        return Request("/completion", body, LlamaReader(reply_text(prompt)))

    def _rendered(self, query: Query) -> str:
        """The conversation in the server's own template. Raises ServerError."""
        body = _conversation(query) | _model(query)
        answer = query.endpoint.ask("/apply-template", body, timeout=60.0, stop=query.stop)
        prompt = object_of(answer.json()).get("prompt")
        if answer.status != 200 or not isinstance(prompt, str):
            raise query.endpoint.refusal(answer)
        query.check_open(prompt, "Start it without --no-prefill-assistant.")
        return prompt

    def stopped(self, endpoint: Endpoint) -> bool | None:
        slots = endpoint.ask("/slots", timeout=2.0).json()
        if not isinstance(slots, list):
            return None
        return not any(slot.get("is_processing") is True for slot in objects_of(slots))


def _model(query: Query) -> dict[str, Any]:
    """The field of a request that names the model, if the server has several."""
    return {"model": query.about.model} if query.about.model else {}


def _conversation(query: Query) -> dict[str, Any]:
    """The fields of a request that hold the conversation."""
    return {
        "messages": query.messages(),
        **query.template_options,
        **(OPEN_TURN if query.begun else {}),
    }


class LlamaReader:
    """Reads a stream of /completion, /v1/completions or /v1/chat/completions.

    ``text`` separates the thinking, for a prompt that may have opened it; in chat the server may separate it.
    """

    def __init__(self, text: ReplyText | None = None) -> None:
        self._text = text or reply_text()
        self._steps = Steps()
        self._streams = False
        """Some of the tokens have come."""
        self._held: tuple[Timings, int] | None = None
        """A chunk without text and its token's id: the token that ended the reply, if no other follows."""
        self._timings: Mapping[str, Any] = {}
        self._last: Mapping[str, Any] = {}
        self._reason: str | None = None
        self._ended_by_token = False
        self._usage: Mapping[str, Any] = {}
        self._model = ""

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        raise_for(payload)
        self._timings = object_of(payload.get("timings")) or self._timings
        if "prompt_progress" in payload:
            progress = object_of(payload["prompt_progress"])
            yield PromptProgress(
                count_of(progress.get("processed")),
                count_of(progress.get("total")),
                count_of(progress.get("cache")),
                number_of(progress.get("time_ms")) or 0.0,
            )
            return
        if "choices" in payload:
            yield from self._chat(payload)
        elif payload.get("stop") is True:
            self._last = payload
            self._model = text_of(payload.get("model"))
            self._reason = text_of(payload.get("stop_type"))
            self._ended_by_token = self._reason == "eos"
            if (whole := text_of(payload.get("content"))) and not self._streams:
                added, thinking = self._text.push_text(whole)
                yield Block((Token(UNKNOWN_ID, added, "unknown", thinking),))
        else:
            text, ids = text_of(payload.get("content")), ids_of(payload.get("tokens"))
            if text or ids:
                yield from self._token(text, ids, thinking=False)

    def _chat(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        """What a chunk in OpenAI's form says."""
        self._model = text_of(payload.get("model")) or self._model
        self._usage = object_of(payload.get("usage")) or self._usage
        choice = first_of(payload.get("choices"))
        ids = ids_of(payload.get("tokens"))
        thought, text = said_in(choice, streams=self._streams)
        if thought:
            yield from self._token(thought, ids if not text else (), thinking=True)
        if text or ids:
            yield from self._token(text, ids, thinking=False)
        if reason := text_of(choice.get("finish_reason")):
            self._reason = reason
            self._ended_by_token = reason == "stop"

    def _token(self, text: str, ids: tuple[int, ...], *, thinking: bool) -> list[Block]:
        self._streams = True
        out = self._release()
        timings, id_ = Timings.of(self._timings), ids[0] if ids else UNKNOWN_ID
        if not text:
            self._held = timings, id_
            return out
        added, inside = (text, True) if thinking else self._text.push_text(text)
        return out + self._steps.add(timings, Token(id_, added, "unknown", inside))

    def _release(self) -> list[Block]:
        if self._held is None:
            return []
        (timings, id_), self._held = self._held, None
        return self._steps.add(timings, Token(id_, "", "unknown", self._text.inside))

    def finish(self) -> Iterator[Piece]:
        blocks = self._release()
        timings = Timings.of(self._timings)
        blocks += self._steps.end(timings)
        if self._ended_by_token and blocks:
            blocks[-1] = replace(blocks[-1], tokens=blocks[-1].tokens[:-1], ended=True)
        yield from blocks
        settings = object_of(self._last.get("generation_settings"))
        kinds = text_of(settings.get("speculative.types"))
        seed = count_of(settings.get("seed"))
        cached = count_of(self._timings.get("cache_n"))
        read = cached + count_of(self._timings.get("prompt_n"))
        reason, detail = ending(self._reason)
        truncated = self._last.get("truncated")
        yield End(
            reason,
            "The conversation was cut to fit the server's context." if truncated else detail,
            prompt_tokens=read or count_of(self._usage.get("prompt_tokens")),
            reused_tokens=cached,
            prefill_ms=number_of(self._timings.get("prompt_ms")),
            decode_ms=number_of(self._timings.get("predicted_ms")),
            counters=Counters(timings.drafted, timings.accepted) if timings.drafted else None,
            seed=0 if seed == _RANDOM_SEED else seed,
            drafter="" if kinds == "none" else kinds,
            model=self._model,
        ).with_rest_of(self._text)


# ------------------------------------------------------------------------------------------------ steps


class Timings(NamedTuple):
    """The cumulative counters of a chunk."""

    emitted: int
    """Tokens of the reply so far."""
    ms: float
    drafted: int
    accepted: int

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Timings:
        """The counters in a ``timings`` object."""
        return cls(
            count_of(fields.get("predicted_n")),
            number_of(fields.get("predicted_ms")) or 0.0,
            count_of(fields.get("draft_n")),
            count_of(fields.get("draft_n_accepted")),
        )

    def same_step(self, other: Timings) -> bool:
        """Whether both chunks are from the same step."""
        return self[1:] == other[1:]


@dataclass(slots=True)
class _Step:
    """The step whose tokens are arriving."""

    drafted: int
    accepted: int
    ms: float
    tokens: list[Token] = field(default_factory=list)
    unplaced: int = 0
    """Hidden tokens at the beginning of ``tokens`` that may belong to this step, to one before it, or to
    steps of their own. 0: this step's first token is known."""
    sent: bool = False
    """Its block was returned: a further token at the same time is the additional one of a replay."""

    @property
    def complete(self) -> bool:
        return not self.unplaced and len(self.tokens) > self.accepted

    def block(self) -> Block:
        """What is known about it, its tokens with their origins."""
        return verified_block(self.tokens, self.drafted, self.accepted, self.ms)


class Steps:
    """Turns the counters of chunks into steps with the origin of every token, in order. A hidden token is one
    that has no chunk."""

    def __init__(self) -> None:
        self._at = Timings(0, 0.0, 0, 0)
        """Of the last chunk."""
        self._step: _Step | None = None
        self._chunks = 0
        self._counters_only = False

    def add(self, at: Timings, token: Token) -> list[Block]:
        """The blocks that a token's chunk completes."""
        if self._counters_only:
            return [Block((token,))]
        self._chunks += 1
        if at.emitted <= self._at.emitted or at.emitted - self._chunks > _MOST_HIDDEN:
            return self._repeated(at, token)
        out: list[Block] = []
        if self._step is None:
            # The first token comes with the prompt's own batch.
            first = at.emitted == 1
            ms = at.ms if first else 0.0
            self._step = _Step(0, 0, ms, [token if first else _hidden()])
            out += self._send()
            self._at = Timings(1, ms, 0, 0)
            if first:
                return out
        hidden = at.emitted - self._at.emitted - 1
        if at.same_step(self._at):
            out += self._grow([_hidden() for _ in range(hidden)] + [token])
        else:
            out += self._begin(hidden, at, token)
        self._at = at
        return out

    def end(self, at: Timings) -> list[Block]:
        """The remaining blocks when the stream is over, including the token that ended it."""
        if self._counters_only or self._step is None:
            return []
        hidden = max(0, min(at.emitted, self._chunks + _MOST_HIDDEN) - self._at.emitted)
        out: list[Block] = []
        if hidden and at.same_step(self._at):
            out = self._grow([_hidden() for _ in range(hidden)])
        elif hidden:
            out = self._begin(hidden - 1, at, _hidden())
        # The reply may have ended within the step.
        return out + self._send(followed_by=1)

    # -- parts

    def _repeated(self, at: Timings, token: Token) -> list[Block]:
        """Text at a count that cannot be its own: an older server, which counted a whole step at once, or the
        second part of a token."""
        step = self._step
        if at.emitted == self._at.emitted and (step is None or not step.unplaced):
            return [Block((token,))]
        self._counters_only = True
        shown: list[Token] = []
        if step is not None and not step.sent:
            # What seemed to be hidden comes as text now.
            shown = [t for t in step.tokens if t.text or t.id != UNKNOWN_ID]
        before = [Block(tuple(shown), ms=step.ms)] if step and shown else []
        return [*before, Block((token,))]

    def _grow(self, tokens: list[Token]) -> list[Block]:
        """Further tokens of the step that is arriving, by its time and counters."""
        step = self._step
        assert step is not None
        if step.sent:
            return [Block((token,), ms=0.0) for token in tokens]
        step.tokens += tokens
        return self._send() if step.complete else []

    def _begin(self, hidden: int, at: Timings, token: Token) -> list[Block]:
        """The first chunk of another step, after ``hidden`` tokens."""
        old = self._step
        assert old is not None
        ms, drafted, accepted = (
            at.ms - self._at.ms,
            at.drafted - self._at.drafted,
            at.accepted - self._at.accepted,
        )
        unclear = bool(old.unplaced)
        missing = 0
        if not old.sent and not unclear:
            # A step is sent when it is complete, so the tokens that this one lacks are among the hidden ones.
            missing = old.accepted + 1 - len(old.tokens)
        if missing > hidden or not 0 <= accepted <= drafted:
            self._counters_only = True
            before = [] if old.sent else [Block(tuple(old.tokens), ms=old.ms)]
            old.sent = True
            return [*before, Block((*(_hidden() for _ in range(hidden)), token))]
        old.tokens += [_hidden() for _ in range(missing)]
        out = self._send(followed_by=hidden)
        unplaced = hidden - missing
        replayed = old.accepted < old.drafted
        if drafted == 0:
            # Steps without drafts, except for what may be left of an unclear step or of a replay.
            for i in range(unplaced):
                known = not unclear and not (replayed and i == 0)
                out.append(Block((_hidden("plain"),), 0, 0, 0.0) if known else Block((_hidden(),), ms=0.0))
            unplaced = 0
        tokens = [*(_hidden() for _ in range(unplaced)), token]
        self._step = step = _Step(drafted, accepted, ms, tokens, unplaced)
        return out + (self._send() if step.complete else [])

    def _send(self, *, followed_by: int = 0) -> list[Block]:
        """The step's block, unless it was sent before. ``followed_by``: hidden tokens after it that may
        belong to it."""
        step = self._step
        assert step is not None
        if step.sent:
            return []
        step.sent = True
        if not followed_by and len(step.tokens) == step.accepted + 1:
            # As many tokens as one step can have with all that was accepted since: it is one step, and
            # complete.
            step.unplaced = 0
        if not step.unplaced:
            return [step.block()]
        # The chunks at one time are of one step, and all but at most its last two tokens are accepted drafts.
        known = range(step.unplaced, len(step.tokens) - 2)
        tokens = [with_origin(t, "accepted") if i in known else t for i, t in enumerate(step.tokens)]
        return [Block(tuple(tokens), ms=step.ms)]


def _hidden(origin: Origin = "unknown") -> Token:
    """A token that has no chunk."""
    return Token(UNKNOWN_ID, "", origin)
