"""llama.cpp's llama-server: every token's origin out of the counters that each chunk carries.

A step that verified k drafts and accepted t of them adds k to ``draft_n`` and t to ``draft_n_accepted``
before the first of its t + 1 tokens goes out, one chunk a token; ``predicted_ms`` moves once a step. So t
tokens are accepted, and the one after them is the target's own: bonus where t = k, else corrected. A step
without drafts moves ``predicted_ms`` alone: its token is plain.

What breaks this, and is told as unknown instead of guessed:
- A token that ends inside a UTF-8 character, or that a chat parser keeps, has no chunk: ``predicted_n``
  jumps.
- A hybrid target that replays a step from a checkpoint emits one token more than t + 1 at the same
  ``predicted_ms``.
- Servers older than this raise ``predicted_n`` by a whole step at once: then only the counters are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ds4chat.engine.events import UNKNOWN_ID, Counters, FinishReason, Origin, Tells, Token
from ds4chat.servers.dialect import (
    OPEN_TURN,
    SAMPLING,
    About,
    Asked,
    Block,
    End,
    Piece,
    PromptProgress,
    Request,
    Spoken,
    first,
    ids_of,
    number,
    of_origin,
    raise_for,
    refusal,
    step_of,
    table,
    text_of,
    whole,
)
from ds4chat.servers.http import Endpoint, ServerError, said

_AT_START = "llama-server reads it only at its start: start it with "
_CHANNELS = ("<|channel|>", "<|START_THINKING|>", "<start_of_turn>thought")
"""Thinking between control tokens, which the native completion leaves out of its text: chat keeps it
apart."""
_RANDOM_SEED = 4294967295


class LlamaServer:
    """llama-server: the native completion, or chat where it has no template of its own."""

    kind = "llama-server"
    tells: Tells = "exact"
    why = "it names neither rejected drafts nor probabilities, so there is no ratio and no gap"
    sampling: Mapping[str, str] = SAMPLING
    fixed: Mapping[str, str] = {
        "depth": f"{_AT_START}--spec-draft-n-max N, and with --spec-type none for no drafts",
        "gate": f"{_AT_START}--spec-draft-p-min P, which is a probability there",
        "margin": "llama-server accepts nothing but the target's own choice",
        "strict": "llama-server verifies in batches: there is no strict mode",
    }
    goes_on = True

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        health = endpoint.ask("/health")
        ours = health.headers.get("server", "").lower() == "llama.cpp"
        if health.status == 503 and (ours or "load" in said(health.json())[0].lower()):
            raise ServerError(
                f"The server at {endpoint.url} is still loading its model. Wait until it has.",
                "refused",
                503,
                "loading",
            )
        answer = endpoint.ask("/props")
        props = table(answer.json())
        if not ours and "default_generation_settings" not in props:
            return None
        if answer.status in (401, 403):
            raise refusal(endpoint, "/props", answer.status, answer.json())
        offered = table(endpoint.ask("/v1/models").json()).get("data")
        listed = [m for m in offered if isinstance(m, dict)] if isinstance(offered, list) else []
        meta = table(listed[0].get("meta")) if listed else {}
        slots = endpoint.ask("/slots").json()
        slot = first(slots)
        path = text_of(props.get("model_path"))
        router = text_of(props.get("role")) == "router"
        names = tuple(text_of(m.get("id")) for m in listed)
        return About(
            model=(model or (names[0] if names else "")) if router else "",
            label=path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf") or model,
            version=text_of(props.get("build_info")),
            answers=text_of(props.get("model_alias")) or path,
            context=whole(slot.get("n_ctx"))
            or whole(table(props.get("default_generation_settings")).get("n_ctx")),
            speculates=slot.get("speculative") if isinstance(slot.get("speculative"), bool) else None,
            models=names if router else (),
            template=bool(props.get("chat_template"))
            and not any(mark in text_of(props.get("chat_template")) for mark in _CHANNELS),
            busy=any(s.get("is_processing") is True for s in slots if isinstance(s, dict))
            if isinstance(slots, list)
            else None,
            parameters=whole(meta.get("n_params")),
            size_bytes=whole(meta.get("size")),
            vocabulary=whole(meta.get("n_vocab")),
            trained_context=whole(meta.get("n_ctx_train")),
        )

    def request(self, asked: Asked) -> Request:
        generate = asked.generate
        body: dict[str, Any] = {
            "stream": True,
            "timings_per_token": True,
            "return_progress": True,
            **asked.sampling(self.sampling),
        }
        if asked.about.model:
            body["model"] = asked.about.model
        if generate.stop:
            body["stop"] = list(generate.stop)
        if generate.ignore_eos:
            body["ignore_eos"] = True
        if generate.prompt is None and not asked.about.template:
            if asked.begun:
                self._rendered(asked)  # to see that it leaves the turn open
            body |= self._conversation(asked) | {"stream_options": {"include_usage": True}}
            if generate.max_tokens >= 0:
                body["max_tokens"] = generate.max_tokens
            asked.marks["chat"] = True
            return Request("/v1/chat/completions", body)
        prompt = generate.prompt
        if prompt is None:
            prompt = self._rendered(asked)
        return Request(
            "/completion",
            body | {"prompt": prompt, "n_predict": generate.max_tokens, "return_tokens": True},
        )

    def _rendered(self, asked: Asked) -> str:
        """The conversation by the server's own template. Raises ServerError."""
        body = self._conversation(asked)
        if asked.about.model:
            body["model"] = asked.about.model
        answer = asked.endpoint.ask("/apply-template", body, timeout=60.0, stop=asked.stop)
        prompt = table(answer.json()).get("prompt")
        if answer.status != 200 or not isinstance(prompt, str):
            raise refusal(asked.endpoint, "/apply-template", answer.status, answer.json())
        asked.check_open(prompt, "Start it without --no-prefill-assistant.")
        asked.marks["prompt"] = prompt
        return prompt

    def _conversation(self, asked: Asked) -> dict[str, Any]:
        """Fields of a request that hold the conversation."""
        return {
            "messages": asked.messages(),
            "chat_template_kwargs": {"enable_thinking": asked.think},
            **(OPEN_TURN if asked.begun else {}),
        }

    def reader(self, asked: Asked) -> LlamaReader:
        if asked.marks.get("chat"):
            return LlamaReader()
        prompt = asked.marks.get("prompt") or asked.generate.prompt or ""
        return LlamaReader(Spoken(prompt))

    def stopped(self, endpoint: Endpoint) -> bool | None:
        slots = endpoint.ask("/slots", timeout=2.0).json()
        if not isinstance(slots, list):
            return None
        return not any(isinstance(s, dict) and s.get("is_processing") is True for s in slots)


class LlamaReader:
    """Reads a stream of /completion, /v1/completions or /v1/chat/completions.

    ``spoken`` finds the model's thinking in the text, for a prompt that may have opened it; in chat the
    server may keep it apart.
    """

    def __init__(self, spoken: Spoken | None = None) -> None:
        self._spoken = spoken or Spoken()
        self._steps = Steps()
        self._held: tuple[tuple[int, float, int, int], int] | None = None
        """A chunk without text, which is the token that ended the reply if nothing follows it."""
        self._timings: Mapping[str, Any] = {}
        self._last: Mapping[str, Any] = {}
        self._reason: FinishReason | None = None
        self._ended_by_token = False
        self._usage: Mapping[str, Any] = {}
        self._model = ""

    def feed(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        raise_for(payload)
        self._timings = table(payload.get("timings")) or self._timings
        if "prompt_progress" in payload:
            progress = table(payload["prompt_progress"])
            yield PromptProgress(
                whole(progress.get("processed")),
                whole(progress.get("total")),
                whole(progress.get("cache")),
                number(progress.get("time_ms")) or 0.0,
            )
            return
        if "choices" in payload:
            yield from self._chat(payload)
        elif payload.get("stop") is True:
            self._last = payload
            self._model = text_of(payload.get("model"))
            stop_type = payload.get("stop_type")
            self._reason = "length" if stop_type == "limit" else "stop"
            self._ended_by_token = stop_type == "eos"
        else:
            text, ids = text_of(payload.get("content")), ids_of(payload.get("tokens"))
            if text or ids:
                yield from self._token(text, ids, thinking=False)

    def _chat(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        """What a chunk in OpenAI's form says."""
        self._model = text_of(payload.get("model")) or self._model
        self._usage = table(payload.get("usage")) or self._usage
        choice = first(payload.get("choices"))
        delta = table(choice.get("delta"))
        ids = ids_of(payload.get("tokens"))
        thought = text_of(delta.get("reasoning_content"))
        text = text_of(delta.get("content")) or text_of(choice.get("text"))
        if thought:
            yield from self._token(thought, ids if not text else (), thinking=True)
        if text or ids:
            yield from self._token(text, ids, thinking=False)
        if reason := choice.get("finish_reason"):
            self._reason = "length" if reason == "length" else "stop"
            self._ended_by_token = reason == "stop"

    def _token(self, text: str, ids: tuple[int, ...], *, thinking: bool) -> list[Block]:
        out = self._release()
        timings = self._timings
        at = (
            whole(timings.get("predicted_n")),
            number(timings.get("predicted_ms")) or 0.0,
            whole(timings.get("draft_n")),
            whole(timings.get("draft_n_accepted")),
        )
        if not text:
            self._held = at, ids[0] if ids else UNKNOWN_ID
            return out
        said, inside = (text, True) if thinking else self._spoken.push(text)
        return out + self._steps.add(*at, Token(ids[0] if ids else UNKNOWN_ID, said, "unknown", inside))

    def _release(self) -> list[Block]:
        if self._held is None:
            return []
        (at, id_), self._held = self._held, None
        return self._steps.add(*at, Token(id_, "", "unknown", self._spoken.inside))

    def finish(self) -> Iterator[Piece]:
        blocks = self._release()
        timings = self._timings
        total = whole(timings.get("predicted_n"))
        counters = Counters(whole(timings.get("draft_n")), whole(timings.get("draft_n_accepted")))
        blocks += self._steps.end(total, number(timings.get("predicted_ms")) or 0.0, *_pair(counters))
        if self._reason and self._ended_by_token and blocks:
            blocks[-1] = replace(blocks[-1], tokens=blocks[-1].tokens[:-1], ended=True)
        yield from blocks
        if self._reason is None:
            return
        settings = table(self._last.get("generation_settings"))
        kinds = text_of(settings.get("speculative.types"))
        seed = whole(settings.get("seed"))
        cached = whole(timings.get("cache_n"))
        detail = (
            "The conversation was cut to fit the server's context." if self._last.get("truncated") else ""
        )
        end = End(
            reason=self._reason,
            detail=detail,
            prompt_tokens=cached + whole(timings.get("prompt_n")) or whole(self._usage.get("prompt_tokens")),
            reused_tokens=cached,
            prefill_ms=number(timings.get("prompt_ms")),
            decode_ms=number(timings.get("predicted_ms")),
            counters=counters if counters.drafted else None,
            seed=0 if seed == _RANDOM_SEED else seed,
            drafter="" if kinds == "none" else kinds,
            model=self._model,
        )
        yield self._spoken.finish(end)


def _pair(counters: Counters) -> tuple[int, int]:
    return counters.drafted, counters.accepted


# ------------------------------------------------------------------------------------------------ steps


@dataclass(slots=True)
class _Step:
    """The step whose tokens are coming."""

    drafted: int
    accepted: int
    ms: float
    tokens: list[Token] = field(default_factory=list)
    lead: int = 0
    """Tokens without a chunk at the beginning of ``tokens`` of which it is not known whether they are of this
    step, of one before it, or of steps of their own. With 0 the step's beginning is known."""
    out: bool = False
    """Its tokens went out: what still comes at the same time is a replay's one more token."""

    @property
    def whole(self) -> bool:
        return len(self.tokens) >= self.accepted + 1

    def block(self, *, unknown: bool = False) -> Block:
        """What is known of it, its tokens with their origins."""
        if unknown:
            return Block(tuple(self.tokens), ms=self.ms)
        return step_of(self.tokens, self.drafted, self.accepted, self.ms)


class Steps:
    """Counters of chunks in, steps with the origin of every token out, in order."""

    def __init__(self) -> None:
        self._n = 0
        self._ms = 0.0
        self._drafted = 0
        self._accepted = 0
        self._step: _Step | None = None
        self._counters_only = False

    def add(self, n: int, ms: float, drafted: int, accepted: int, token: Token) -> list[Block]:
        """The blocks that the chunk of one token completes; ``n`` and the rest are its cumulative
        counters."""
        if self._counters_only:
            return [Block((token,))]
        if n <= self._n:
            return self._repeated(n, token)
        out: list[Block] = []
        if self._step is None:
            # The first token comes with the prompt's own batch.
            first_token = token if n == 1 else _hidden()
            self._step = _Step(0, 0, ms if n == 1 else 0.0, [first_token])
            out += self._send()
            self._n = 1
            self._ms = ms if n == 1 else 0.0
            if n == 1:
                return out
        hidden = n - self._n - 1
        if (ms, drafted, accepted) == (self._ms, self._drafted, self._accepted):
            out += self._grow([_hidden() for _ in range(hidden)] + [token])
        else:
            out += self._begin(hidden, ms, drafted - self._drafted, accepted - self._accepted, token)
        self._n, self._ms, self._drafted, self._accepted = n, ms, drafted, accepted
        return out

    def end(self, n: int, ms: float, drafted: int, accepted: int) -> list[Block]:
        """The blocks that are left when the stream is over, the token that ended it included."""
        if self._counters_only or self._step is None:
            return []
        hidden = max(0, n - self._n)
        out: list[Block] = []
        if hidden and (ms, drafted, accepted) == (self._ms, self._drafted, self._accepted):
            out = self._grow([_hidden() for _ in range(hidden)])
        elif hidden:
            out = self._begin(hidden - 1, ms, drafted - self._drafted, accepted - self._accepted, _hidden())
        # The reply may have ended inside the step.
        return out + self._send(followed_by=1)

    # -- parts

    def _repeated(self, n: int, token: Token) -> list[Block]:
        """Text at an unchanged count: an older server, whose jump was a whole step, or two parts of one
        token."""
        step = self._step
        if n == self._n and (step is None or not step.lead):
            return [Block((token,))]
        self._counters_only = True
        held: list[Block] = []
        if step is not None and not step.out:
            # What seemed to be hidden comes as text now.
            shown = [t for t in step.tokens if t.text or t.id != UNKNOWN_ID]
            held = [Block(tuple(shown), ms=step.ms)] if shown else []
        return [*held, Block((token,))]

    def _grow(self, tokens: list[Token]) -> list[Block]:
        """Further tokens at the same time and counters: of the step that is coming."""
        step = self._step
        assert step is not None
        if step.out:
            return [Block((token,), ms=0.0) for token in tokens]
        step.tokens += tokens
        return self._send() if not step.lead and step.whole else []

    def _begin(self, hidden: int, ms: float, drafted: int, accepted: int, token: Token) -> list[Block]:
        """The first chunk of another step, after ``hidden`` tokens without one."""
        old = self._step
        assert old is not None
        unclear = bool(old.lead)
        own = 0
        if not old.out and not unclear:
            # An emitted step is complete, so its missing tokens are among the hidden ones.
            own = old.accepted + 1 - len(old.tokens)
            if own > hidden or drafted < 0 or not 0 <= accepted <= drafted:
                self._counters_only = True
                old.out = True
                left = [_hidden() for _ in range(hidden)]
                return [old.block(unknown=True), Block((*left, token))]
            old.tokens += [_hidden() for _ in range(own)]
        out = self._send(followed_by=hidden)
        lead = hidden - own
        replayed = old.accepted < old.drafted
        self._step = step = _Step(drafted, accepted, ms - self._ms)
        if drafted == 0:
            # Steps without drafts, but for what may be left of an unclear step or of a replay.
            for i in range(lead):
                known = not unclear and not (replayed and i == 0)
                out.append(Block((_hidden("plain"),), 0, 0, 0.0) if known else Block((_hidden(),), ms=0.0))
            lead = 0
        step.lead = lead
        step.tokens = [*(_hidden() for _ in range(lead)), token]
        return out + (self._send() if not lead and step.whole else [])

    def _send(self, *, followed_by: int = 0) -> list[Block]:
        """The step's block, unless it went out already. ``followed_by``: hidden tokens that may still be
        its."""
        step = self._step
        assert step is not None
        if step.out:
            return []
        step.out = True
        if not step.lead:
            return [step.block()]
        # As many tokens as one step can have with all that was accepted since: it is one step, and all of it.
        if not followed_by and len(step.tokens) == step.accepted + 1:
            step.lead = 0
            return [step.block()]
        # The chunks at one time are of one step, and at most its last two are not accepted drafts.
        known = len(step.tokens) - step.lead - 2
        tokens = [
            of_origin(t, "accepted") if step.lead <= i < step.lead + known else t
            for i, t in enumerate(step.tokens)
        ]
        return [Block(tuple(tokens), ms=step.ms)]


def _hidden(origin: Origin = "unknown") -> Token:
    """A token of which no chunk told."""
    return Token(UNKNOWN_ID, "", origin)
