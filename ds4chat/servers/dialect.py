"""What every dialect is made of: what it is asked, and what its answers say in common terms.

A dialect is a table of facts (what it tells, which settings it takes) and two functions: ``request`` turns a
Generate into a path and a JSON body, and ``reader`` gives an object that turns the payloads of the answer
into PromptProgress, Blocks and an End. Readers are pure: they know neither clock nor socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ds4chat.engine.events import Counters, FinishReason, Generate, Origin, Tells, Token
from ds4chat.engine.reply_text import ReplyFormat, ReplyText
from ds4chat.servers.http import Endpoint, ServerError, said


@dataclass(frozen=True, slots=True)
class About:
    """What a server says of itself and of the model that answers."""

    model: str
    """The name that requests give; empty where the server needs none."""
    label: str = ""
    """The model's name as people say it; empty: ``model``."""
    version: str = ""
    context: int = 0
    """Tokens; 0 where it is not told."""
    speculates: bool | None = None
    """Whether a drafter is in use; None where it is not told."""
    drafter: str = ""
    """Its kind in the server's words; empty where it is not told."""
    models: tuple[str, ...] = ()
    """All models that it offers, where there are several."""
    answers: str = ""
    """The name that its replies give; a reply with another one comes from another model."""
    template: bool = True
    """The server has a chat template of its own."""
    busy: bool | None = None
    """It answers somebody else now; None where it is not told."""
    parameters: int = 0
    size_bytes: int = 0
    vocabulary: int = 0
    trained_context: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One POST."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The prompt is being read: tokens done of all, ``reused`` of them from a cache."""

    done: int
    total: int
    reused: int
    ms: float


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens of one step of the server, with what is known of it.

    ``drafted`` and ``accepted`` are None where the server does not tell them; then the tokens' origins are
    all that is known. ``ms`` is the server's own time of the step; None where only the clock here can tell.
    """

    tokens: tuple[Token, ...]
    drafted: int | None = None
    accepted: int | None = None
    ms: float | None = None
    ended: bool = False
    """The token that ended the reply follows ``tokens``. Else a step with no more tokens than accepted drafts
    was cut."""


def of_origin(token: Token, origin: Origin) -> Token:
    """The token, its origin being known now."""
    return Token(token.id, token.text, origin, token.thinking)


def step_of(tokens: Sequence[Token], drafted: int, accepted: int, ms: float | None = None) -> Block:
    """The step in which so many drafts were verified and accepted, its tokens with their origins: those
    accepted, one of the target's own, and none of which anything is known after it. A reply that ends inside
    the step leaves accepted drafts counted and never sent."""
    own: Origin = "plain" if not drafted else "bonus" if accepted == drafted else "corrected"
    accepted = min(accepted, len(tokens))
    return Block(
        tuple(
            of_origin(t, "accepted" if i < accepted else own if i == accepted else "unknown")
            for i, t in enumerate(tokens)
        ),
        drafted,
        accepted,
        ms,
    )


@dataclass(frozen=True, slots=True)
class Revision:
    """The steps of the whole reply as they are known now, in place of the blocks before."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The server says why its reply is over. A stream without one was cut."""

    reason: FinishReason
    detail: str = ""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_ms: float | None = None
    decode_ms: float | None = None
    counters: Counters | None = None
    seed: int = 0
    drafter: str = ""
    model: str = ""
    """The model that answered, where the server says so."""
    tail: str = ""
    """Text of the answer that was held back until now."""
    thinking_tail: str = ""
    """The same of the thinking."""
    emitted: int = 0
    """Tokens of the reply by the server's count, the one that ended it included; 0 where it is not told."""


Piece = PromptProgress | Block | Revision | End


SAMPLING: Mapping[str, str] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "seed": "seed",
}
"""Fields of a Tuning by the names that most servers have for them."""
OPEN_TURN: Mapping[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
"""Fields of a chat request that leave its last message open, by the names that most servers have for them."""


class Reader(Protocol):
    """Reads one answer."""

    def feed(self, payload: Mapping[str, Any]) -> Iterable[Piece]:
        """What one event of the answer says. Raises ServerError for an error that the server reports in
        it."""

    def finish(self) -> Iterable[Piece]:
        """What can be said once the stream is over, ended in order or not; an End last, if there was one."""


class Dialect(Protocol):
    """One kind of server."""

    kind: str
    """Its name."""
    tells: Tells
    """What it tells of its speculation in a reply."""
    why: str
    """A sentence on what it does not tell; empty where it tells all."""
    sampling: Mapping[str, str]
    """Fields of a Tuning that it takes with each request, each with the server's name for it."""
    fixed: Mapping[str, str]
    """Fields of a Tuning that no request changes, each with where to change it."""
    goes_on: bool
    """Its interface can leave the assistant's turn open."""

    def recognise(self, endpoint: Endpoint, model: str) -> About | None:
        """What the server says of itself, ``model`` being the one that is wanted ("" for its own choice);
        None where it speaks another dialect. Raises ServerError."""

    def request(self, asked: Asked) -> Request:
        """What to send. May ask the server first, as for its chat template. Raises ServerError."""

    def reader(self, asked: Asked) -> Reader:
        """What reads the answer."""

    def stopped(self, endpoint: Endpoint) -> bool | None:
        """After a cancel: whether the server has stopped; None where it does not tell. Raises ServerError."""


@dataclass(slots=True)
class Asked:
    """One request on its way."""

    generate: Generate
    about: About
    endpoint: Endpoint
    chosen: frozenset[str]
    """Fields of the Tuning that the user set; the server's own defaults hold for the others."""
    stop: Callable[[], bool]
    marks: dict[str, Any] = field(default_factory=dict)
    """What a dialect keeps between request and reader."""

    def sampling(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The sampling settings that the user chose, by the server's names for a Tuning's fields."""
        tuning = self.generate.tuning
        return {
            theirs: getattr(tuning, ours)
            for ours, theirs in names.items()
            if ours in self.chosen and not (ours == "seed" and tuning.seed < 0)
        }

    def messages(self) -> list[dict[str, str]]:
        """The conversation as OpenAI's interface takes it."""
        return [{"role": m.role, "content": m.content} for m in self.generate.messages]

    @property
    def begun(self) -> str:
        """The answer that the reply goes on with; empty where it begins a turn."""
        last = self.generate.messages[-1] if self.generate.messages else None
        goes_on = last is not None and last.role == "assistant" and last.content.strip()
        return last.content if last is not None and goes_on else ""

    @property
    def think(self) -> bool:
        """The model is to think first. Where it goes on with an answer, that is over."""
        return self.generate.think and not self.begun

    def check_open(self, prompt: str, instead: str) -> None:
        """Make sure that the prompt that the server made of the conversation ends within the answer that is
        to be gone on with. Raises ServerError; ``instead`` says what to do, as a sentence."""
        if not prompt.endswith(self.begun):
            raise no_going_on(f"The server at {self.endpoint.url}", instead)


class Spoken:
    """The text of a reply as it comes, its thinking told apart by the tags that models spell out."""

    def __init__(self, prompt: str = "") -> None:
        """``prompt``: the rendered prompt, whose end may leave a thought open."""
        form = ReplyFormat({})
        self._text = ReplyText(form, opened_by=form.opened_by(prompt), turns=False)

    @property
    def inside(self) -> bool:
        """What comes now belongs to the thinking."""
        return self._text.inside

    def push(self, text: str) -> tuple[str, bool]:
        """What a token's text adds, and whether it belongs to the thinking."""
        return self._text.push_text(text)

    def finish(self, end: End) -> End:
        """The end with the text that was held back."""
        tail, thinking = self._text.finish()
        return replace(end, tail=tail, thinking_tail=thinking)


def raise_for(payload: Mapping[str, Any]) -> None:
    """Raise the ServerError that a payload reports instead of going on; nothing where it reports none."""
    error = payload.get("error")
    if not error:
        return
    message, kind = said(dict(payload))
    raise ServerError(
        f"The server reported an error in its reply: {message or 'without saying which'}. Look at its log, "
        "then "
        "retry.",
        "refused",
        kind=kind,
    )


def no_going_on(server: str, instead: str) -> ServerError:
    """The refusal to go on with a reply over a server that would begin a new turn; ``instead`` says what to
    do, as a sentence."""
    return ServerError(
        f"{server} closes the assistant's turn instead of going on with it, so the reply stays as it is. "
        f"{instead}",
        "refused",
    )


def whole(value: object) -> int:
    """``value`` as a count, 0 for what is none: servers leave fields out or send null."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def number(value: object) -> float | None:
    """``value`` as a number, None for what is none."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if ok else None  # type: ignore[arg-type]


def text_of(value: object) -> str:
    """``value`` where it is text, else ""."""
    return value if isinstance(value, str) else ""


def first(value: object) -> Mapping[str, Any]:
    """The first of a list of objects; empty for anything else, as in ``choices: []``."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return value[0]
    return {}


def table(value: object) -> Mapping[str, Any]:
    """``value`` where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def ids_of(value: object) -> tuple[int, ...]:
    """Token ids; () for anything else."""
    if isinstance(value, list) and all(isinstance(i, int) for i in value):
        return tuple(value)
    return ()


def refusal(endpoint: Endpoint, path: str, status: int, body: object) -> ServerError:
    """What an answer other than 200 means, as a sentence that says what to do."""
    message, kind = said(body)
    words = f": {message}" if message else ""
    at = f"HTTP {status}{words}"
    if status == 200:
        text = f"did not answer {path} as it should. Look whether it is the server that you meant."
    elif 300 <= status < 400:
        text = (
            "redirects to another address, which is not followed: neither key nor conversation goes there "
            "unasked. Name that address with --server if it is the right one."
        )
    elif status in (401, 403) and endpoint.has_key:
        text = f"refused the API key ({at}). Put its own key into {endpoint.key_place}."
    elif status in (401, 403):
        text = f"wants an API key ({at}). Put it into {endpoint.key_place}."
    elif status == 503 and "loading" in message.lower():
        text, kind = "is still loading its model. Wait until it has, then retry.", "loading"
    elif _too_long(kind, message):
        kind = "context"
        text = (
            f"has too small a context for this conversation ({at}). Begin a new one, or start the server "
            "with "
            "a larger context."
        )
    else:
        text = _REFUSALS.get(status, _REFUSALS[500 if status >= 500 else 400]).replace("AT", at)
    return ServerError(f"The server at {endpoint.url} {text}", "refused", status, kind)


_REFUSALS = {
    400: "refused the request (AT). ds4chat inspect --server says what it takes.",
    404: "does not know the model or the path (AT). ds4chat inspect --server says what it has.",
    413: "takes no request of this length (AT). Begin a new conversation.",
    429: "has too many requests (AT). Wait a little, then retry.",
    500: "failed (AT). Look at its log, then retry.",
    503: "is not ready (AT). Wait a little, then retry.",
}


def _too_long(kind: str, message: str) -> bool:
    return kind == "exceed_context_size_error" or "context length" in message or "context size" in message
