"""What every dialect consists of: how it makes requests, and what the answers say in common terms.

A dialect is a table of facts (what it tells, which settings it takes) and a function that turns a Generate
into a path, a JSON body, and the reader of the answer. A reader turns the payloads of the answer into
PromptProgress, Blocks and an End. Readers are pure: they know neither clock nor socket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ds4chat.engine.events import Counters, FinishReason, Generate, Origin, Tells, Token
from ds4chat.engine.reply_text import ReplyFormat, ReplyText
from ds4chat.engine.thinking import THINKING_FIELDS
from ds4chat.servers.http import Answer, Endpoint, ServerError, error_of, exceeds_context


@dataclass(frozen=True, slots=True)
class About:
    """What a server says about itself and the model that answers. 0 and "": it does not say."""

    model: str
    """The name to request; empty where the server needs none."""
    label: str = ""
    """The model's name for people; empty: ``model``."""
    version: str = ""
    context: int = 0
    """Tokens."""
    speculates: bool | None = None
    """Whether a drafter is in use; None where it does not say."""
    drafter: str = ""
    """The drafter's kind by the server's name for it."""
    answers: str = ""
    """The model's name in replies; a reply with another name comes from another model."""
    template: bool = True
    """The server has a chat template of its own, and the prompt that it makes can be used."""
    parameters: int = 0
    size_bytes: int = 0
    vocabulary: int = 0
    trained_context: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A POST, and what reads the answer to it."""

    path: str
    body: dict[str, Any]
    reader: Reader


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Tokens of the prompt that were read so far; ``reused`` of them came from a cache."""

    done: int
    total: int
    reused: int
    ms: float


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens of one of the server's steps, and what is known about it.

    ``drafted`` and ``accepted`` are None where the server does not tell them; then only the tokens' origins
    are known. ``ms`` is the step's time by the server's clock; None where only the clock here can tell.
    """

    tokens: tuple[Token, ...]
    drafted: int | None = None
    accepted: int | None = None
    ms: float | None = None
    ended: bool = False
    """The token that ended the reply follows ``tokens``. Without it, a step with no more tokens than accepted
    drafts was cut."""


def with_origin(token: Token, origin: Origin) -> Token:
    """The token, now that its origin is known."""
    return Token(token.id, token.text, origin, token.thinking)


def verified_block(tokens: Sequence[Token], drafted: int, accepted: int, ms: float | None = None) -> Block:
    """The block of a step with this many drafts, its tokens with their origins: the accepted ones, the
    target's own, and any that follow as unknown. A reply that ends within the step leaves accepted drafts
    that were counted and never sent."""
    own: Origin = "plain" if not drafted else "bonus" if accepted == drafted else "corrected"
    accepted = min(accepted, len(tokens))
    before: list[Origin] = ["accepted"] * accepted
    after: list[Origin] = ["unknown"] * (len(tokens) - accepted - 1)
    return Block(tuple(map(with_origin, tokens, [*before, own, *after])), drafted, accepted, ms)


@dataclass(frozen=True, slots=True)
class Revision:
    """The steps of the whole reply as they are now known, instead of all blocks before."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Why and how the reply ended, by the server."""

    reason: FinishReason | None
    """None: the stream was cut before the server said why."""
    detail: str = ""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_ms: float | None = None
    decode_ms: float | None = None
    counters: Counters | None = None
    seed: int = 0
    drafter: str = ""
    model: str = ""
    """The model that answered, where the server names it."""
    tail: str = ""
    """Text of the answer that was held back until now."""
    thinking_tail: str = ""
    """Text of the thinking that was held back."""

    def with_rest_of(self, text: ReplyText) -> End:
        """This end with what ``text`` held back."""
        tail, thinking_tail = text.finish()
        return replace(self, tail=tail, thinking_tail=thinking_tail)


Piece = PromptProgress | Block | Revision | End


SAMPLING: Mapping[str, str] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "seed": "seed",
}
"""Fields of a Tuning, and the names that most servers have for them."""
OPEN_TURN: Mapping[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
"""Fields of a chat request that leave its last message open, by the names that most servers have for them."""


WITHOUT: Mapping[str, str] = {
    "stream": "its replies come in one piece",
    "stream_options": "the number of tokens in the prompt and the context is unknown",
    "return_token_ids": "the ids of tokens, and which of them were drafted, are unknown",
    "return_tokens": "the ids of tokens are unknown",
    "logprobs": "the tokens of one chunk have no texts of their own",
    "timings_per_token": "which tokens were drafted is unknown",
    "return_progress": "its progress in the prompt is unknown",
    "chat_template_kwargs": "it decides whether the model thinks",
    "think": "it decides whether the model thinks",
    "ignore_eos": "its replies end at end tokens",
    "stop": "its replies do not end at stop strings",
    "max_tokens": "its replies have no limit",
    "n_predict": "its replies have no limit",
}
"""Fields of a request that a server may refuse, besides the sampling settings, and what follows without them.
What is left then is the model and the conversation."""


class Reader(Protocol):
    """Reads one answer."""

    def feed(self, payload: Mapping[str, Any]) -> Iterable[Piece]:
        """What one event of the answer says. Raises ServerError for an error that the server reports in
        it."""

    def finish(self) -> Iterable[Piece]:
        """What can be said when the stream is over, complete or not; an End last."""


class Dialect(Protocol):
    """One kind of server."""

    kind: str
    """Its name."""
    tells: Tells
    """What its replies tell about speculation."""
    why: str
    """A sentence on what it does not tell."""
    sampling: Mapping[str, str]
    """Fields of a Tuning that each request can set, and the server's names for them."""
    fixed: Mapping[str, str]
    """Fields of a Tuning that no request can change, and where to change them."""
    goes_on: bool = False
    """Its interface can leave the assistant's turn open."""

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        """What the server says about itself, ``model`` being the one that is wanted ("": its own choice);
        None if it speaks another dialect. Raises ServerError."""

    def request(self, query: Query) -> Request:
        """What to send. May ask the server first, as for its chat template. Raises ServerError."""

    def stopped(self, endpoint: Endpoint) -> bool | None:
        """After a cancel: whether the server has stopped; None where it does not tell. Raises ServerError."""
        return None


@dataclass(frozen=True, slots=True)
class Query:
    """What a server is asked for: a reply, with all that a dialect needs to request it."""

    generate: Generate
    about: About
    endpoint: Endpoint
    chosen: frozenset[str]
    """Fields of the Tuning that the user set; the server's own defaults hold for the others."""
    stop: Callable[[], bool]

    def settings(self, sampling: Mapping[str, str], max_tokens: str) -> dict[str, Any]:
        """The sampling settings that the user chose, the limit and the stop strings, by the server's names;
        ``sampling``: as in Dialect, ``max_tokens``: its name for the limit."""
        generate = self.generate
        found: dict[str, Any] = {
            theirs: getattr(generate.tuning, ours)
            for ours, theirs in sampling.items()
            if ours in self.chosen and not (ours == "seed" and generate.tuning.seed < 0)
        }
        if generate.max_tokens >= 0:
            found[max_tokens] = generate.max_tokens
        if generate.stop:
            found["stop"] = list(generate.stop)
        return found

    def messages(self) -> list[dict[str, str]]:
        """The conversation as OpenAI's interface takes it."""
        return [{"role": m.role, "content": m.content} for m in self.generate.messages]

    @property
    def begun(self) -> str:
        """The unfinished answer that the reply continues; empty if the reply begins a turn."""
        for last in self.generate.messages[-1:]:
            if last.role == "assistant" and last.content.strip():
                return last.content
        return ""

    @property
    def think(self) -> bool:
        """Whether the model is to think first: not once its answer has begun."""
        return self.generate.think and not self.begun

    @property
    def template_options(self) -> dict[str, Any]:
        """The field of a chat request that tells the template whether to think, as most servers name it."""
        return {"chat_template_kwargs": {"enable_thinking": self.think}}

    def check_open(self, prompt: str, instead: str) -> None:
        """Make sure that the server's prompt for the conversation ends within the unfinished answer. Raises
        ServerError; ``instead`` is a sentence that says what to do."""
        if not prompt.endswith(self.begun):
            raise cannot_continue(f"The server at {self.endpoint.url}", instead)


def refused_fields(answer: Answer, optional: Collection[str]) -> list[str]:
    """The fields, of the ``optional`` ones in a request, without which it is worth another try: the first
    that the refusal names, since it may go on with those that the server knows. If it names none, all of
    them, and ``stream`` once nothing else is left: a reply in one piece is the greatest loss."""
    if answer.status not in (400, 422) or not optional:
        return []
    names = "|".join(map(re.escape, optional))
    named = re.search(rf"(?<!\w)({names})(?!\w)", answer.body.decode("utf-8", "replace"))
    return [named[1]] if named else [*({*optional} - {"stream"})] or ["stream"]


def cannot_continue(server: str, instead: str) -> ServerError:
    """The refusal to continue a reply over a server that would begin a new turn; ``instead`` is a sentence
    that says what to do."""
    return ServerError(
        f"{server} closes the assistant's turn instead of continuing it, so the reply stays as it is. "
        f"{instead}",
        "refused",
    )


def reply_text(prompt: str = "") -> ReplyText:
    """What separates a reply's thinking from its answer by the tags that models write. ``prompt``: the
    rendered prompt, whose end may open a thought."""
    form = ReplyFormat({})
    return ReplyText(form, opened_by=form.opened_by(prompt), turns=False)


def raise_for(payload: Mapping[str, Any]) -> None:
    """Raise the ServerError that a payload reports; nothing if it reports none."""
    # A reply has neither as a text; what has both a message and choices is a chunk of a gateway.
    unframed = "choices" not in payload and (
        text_of(payload.get("message")) or text_of(payload.get("detail"))
    )
    if payload.get("error") or payload.get("object") == "error" or unframed:
        message, kind = error_of(payload)
        if exceeds_context(message, kind):
            raise ServerError(
                f"The server has too small a context for this conversation ({message or kind}). Begin a new "
                "one, or start the server with a larger context.",
                "refused",
                "context",
            )
        raise ServerError(
            f"The server reported an error in its reply: {message or 'it did not say which'}. Look at its "
            "log, then retry.",
            "refused",
            kind,
        )


def ending(reason: str | None) -> tuple[FinishReason | None, str]:
    """Why a reply ended, by a server's name for it, and a sentence where the server did not complete it. Any
    name that is not listed means that the model stopped; None, that the stream was cut."""
    if reason is None:
        return None, ""
    name = reason.lower().replace("-", "_")
    if name in _LIMITS:
        return "length", ""
    if name in _FILTERS:
        return "error", "The server's content filter cut the reply."
    if name in _FAILURES:
        return "error", "The server gave up on the reply. Look at its log, then retry."
    return "stop", ""


_LIMITS = {"length", "max_tokens", "limit", "model_length", "max_length", "token_limit"}
_FILTERS = {"content_filter", "safety", "recitation", "prohibited_content", "blocklist", "sensitive"}
_FAILURES = {
    *("abort", "aborted", "cancelled", "canceled", "error", "network_error", "timeout", "time_limit"),
    "insufficient_system_resource",
}


def said_in(choice: Mapping[str, Any], *, streams: bool) -> tuple[str, str]:
    """The thinking and the answer in a choice of OpenAI's interface: a chunk's delta, or the whole message of
    a server that does not stream; one that ``streams`` may repeat the message at its end. A call of a tool,
    although none was offered, is not for the user."""
    message = object_of(choice.get("delta")) or ({} if streams else object_of(choice.get("message")))
    content = message.get("content")
    thought = next(filter(None, map(message.get, (*THINKING_FIELDS, "reasoning_details"))), "")
    thinking = [thought, *(part.get("thinking") for part in objects_of(content))]
    answer = content or message.get("refusal") or choice.get("text")
    return "".join(map(_joined, thinking)) + calls_in(message), _joined(answer)


def _joined(value: object) -> str:
    """The text in a text, in a typed part, or in a list of both, as Mistral's contents are."""
    parts = value if isinstance(value, list) else [value]
    return "".join(text_of(part.get("text") if isinstance(part, dict) else part) for part in parts)


def calls_in(message: Mapping[str, Any]) -> str:
    """The calls of tools in a message, or the parts of them in a chunk, as text."""
    calls = [object_of(call.get("function")) for call in objects_of(message.get("tool_calls"))]
    found = ""
    for call in (*calls, object_of(message.get("function_call"))):
        arguments = call.get("arguments")
        name = text_of(call.get("name"))
        found += f"{name} " if name else ""
        found += json.dumps(arguments) if isinstance(arguments, dict) else text_of(arguments)
    return found


# -- fields of JSON objects, which servers leave out or send as null


_MOST_COUNT = 1 << 48
"""Above all counts, seeds and sizes of real servers, and far below what the wire and the database hold."""
_MOST_ID = 1 << 31


def count_of(value: object) -> int:
    """``value`` as a count; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_COUNT else 0


def number_of(value: object) -> float | None:
    """``value`` as a number of no less than 0, such as a time; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_COUNT:
        return float(value)
    return None


def text_of(value: object) -> str:
    """``value`` as text; "" for anything else."""
    return value if isinstance(value, str) else ""


def object_of(value: object) -> Mapping[str, Any]:
    """``value`` as an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def first_of(value: object) -> Mapping[str, Any]:
    """The first item of a list, as an object; an empty one for anything else, as in ``choices: []``."""
    return object_of(value[0]) if isinstance(value, list) and value else {}


def ids_of(value: object) -> tuple[int, ...]:
    """Token ids; () for anything else."""
    if isinstance(value, list) and all(isinstance(i, int) and 0 <= i < _MOST_ID for i in value):
        return tuple(value)
    return ()
