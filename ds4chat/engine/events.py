"""The engine's protocol: commands in, events out.

It is all that the rest of ds4chat knows of the engine. Messages are frozen, so that no state is shared. Times
are milliseconds, rates tokens per second, token ids those of the target's vocabulary; positions in a draft
count from 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Annotated, Literal

from msgspec import Meta

from ds4chat.errors import UserFacingError
from ds4chat.models.naming import display_name
from ds4chat.text import one_line

Origin = Literal["accepted", "corrected", "bonus", "plain", "unknown"]
"""Where an emitted token comes from: a verified draft, the target's token instead of a rejected draft, the
target's token after a fully accepted draft, or a step that judged no draft; unknown where a server does not
say."""

Outcome = Literal["full", "partial", "miss", "gated", "plain", "fallback", "unknown"]
"""How a step ended: all drafts accepted; some; the first one rejected; the gate left no draft; no draft was
asked for or possible; the step could not be verified and one token was decoded instead; a server does not
say."""
Tells = Literal["exact", "exact at the end", "by step", "counters", "nothing"]
"""What a server tells of its speculation: every token's origin; the same once the reply has ended; how many
of a step's tokens were accepted; a reply's totals; nothing."""

Mode = Literal["exact", "approximate", "strict"]
FinishReason = Literal["stop", "length", "context", "cancelled", "error"]
Level = Literal["info", "warning", "error"]

MAX_DEPTH = 16
UNKNOWN_ID = -1
"""The id of a token that a server does not name."""
Depth = Annotated[int, Meta(ge=0, le=MAX_DEPTH)] | Literal["auto"]
Count = Annotated[int, Meta(ge=0, le=2**32 - 1)]
TokenId = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Large = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Position = Annotated[int, Meta(ge=1, le=2**16)]
"""These ranges are checked wherever a step is decoded: from the engine, a database, or a file."""
CONTEXT_LENGTH = "the context length (-c, or /ctx in the chat)"
"""How sentences name this setting."""


# ---------------------------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class Tuning:
    """What may change while a reply runs, from one step to the next. Every Step carries the one in force."""

    depth: Depth = 1
    """Most drafts a step: 0 (speculation paused) to 16, or "auto"."""
    margin: float = 1.0
    """Probability ratio from which a draft is accepted; 1.0 is exact."""
    gate: float = 0.0
    """Drafting stops where the drafter's top-1 minus top-2 logit is below this; 0 is off."""
    strict: bool = False
    probe: bool = False
    """Draft and compare, never use."""
    full_logits: bool = False
    """Fill Judged.full: probabilities, entropy and the five likeliest tokens."""
    temp: float = 0.0
    top_k: Large = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: Large = -1
    """-1: a fresh seed for every reply."""

    @property
    def mode(self) -> Mode:
        """How drafts are judged; strict ignores the margin."""
        if self.strict:
            return "strict"
        return "approximate" if self.margin < 1.0 else "exact"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, as the chat template takes it."""

    role: Literal["system", "user", "assistant"]
    content: str
    thinking: str = ""
    """The assistant's thinking before its content, without tags, for templates that ask for it."""


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token."""

    id: TokenId
    """UNKNOWN_ID where a server does not name it."""
    text: str
    """What this token adds to the text. Empty when it ends inside a UTF-8 character (the token that
    completes the character carries it), and for the marks around the thinking. The texts of a reply's tokens
    outside the thinking, joined, are the answer; those inside it, the thinking."""
    origin: Origin
    thinking: bool = False
    """The token belongs to the model's thinking, including its marks."""


@dataclass(frozen=True, slots=True)
class FullRow:
    """The whole distribution of one judged target row, in a few figures."""

    p_draft: float
    p_target: float
    entropy: float
    """In nats."""
    top: Annotated[tuple[tuple[TokenId, str, float], ...], Meta(max_length=5)]
    """The five likeliest tokens: id, text, probability."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One draft judged by the target's row: a line of the confidence log."""

    position: Position
    """1 is the step's first draft."""
    draft: TokenId
    """UNKNOWN_ID where a server does not name a draft that it rejected."""
    draft_text: str
    target: TokenId
    """The target's own choice in this row (argmax, or the token sampled from it)."""
    target_text: str
    accepted: bool
    by: Literal["match", "ratio", "server", ""]
    """Why it was accepted: it is the target's choice; its ratio reaches the margin; a server's own rule; ""
    where it was not."""
    ratio: float | None
    """exp(l[draft] - max l) over the target's logits l, 0..1; None where a server does not say."""
    gap: float | None
    """The target's top-1 minus top-2 logit; None where a server does not say."""
    draft_gap: float | None = None
    """The drafter's top-1 minus top-2 logit; None where the drafter has no logits (lookup)."""
    draft_prob: float | None = None
    """The drafter's probability of its draft, softmax over its ten best logits as in llama.cpp."""
    full: FullRow | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """Wall milliseconds of one step. ``other``: the rest of ``total`` beside the four phases."""

    draft: float
    verify: float
    accept: float
    rollback: float
    other: float
    total: float


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a loaded model."""

    path: str
    name: str
    architecture: str
    quantisation: str
    parameters: int
    size_bytes: int
    n_ctx_train: int
    n_layer: int
    n_embd: int
    n_vocab: int
    sampling: tuple[tuple[str, float], ...] = ()
    """The sampling that the file asks for: name of the option, value."""

    @property
    def title(self) -> str:
        """The model's name on a screen, as one printable line."""
        return one_line(self.name or PurePath(self.path).stem)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server that answers instead of an engine on this machine, and what it tells."""

    url: str
    name: str
    """As the user named it, or its host and port."""
    kind: str
    """Its dialect, such as llama-server."""
    version: str
    tells: Tells
    why: str
    """What it does not tell, and why, as a sentence; empty where it tells everything."""
    speculates: bool | None
    """None where it does not say."""
    live: tuple[str, ...]
    """Fields of a Tuning that are sent with each request."""
    fixed: tuple[tuple[str, str], ...]
    """Fields of a Tuning that no request changes, each with where to change it."""
    chosen: tuple[str, ...]
    """Those of them that the user set; the others keep the server's own defaults."""
    has_key: bool
    """A key is sent with each request."""
    exposed: bool
    """The conversation can be read on the way: plain http to another machine."""
    goes_on: bool = True
    """It can go on with a reply that was cut; else it always begins a new turn."""


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """The drafter in use. ``kind`` is one of the kinds of spec section 1, or two joined by "+"."""

    kind: str
    path: str
    """The support file; empty for lookup and for a NextN block inside the target."""
    max_depth: int
    note: str = ""
    """Why max_depth is less than MAX_DEPTH; follows "at most N tokens are drafted,"."""


# ---------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server to ask, and how to reach it. The key itself is read where it is used."""

    url: str
    name: str = ""
    """As the user named it; empty: its host and port."""
    model: str = ""
    """The model to ask for, where it has several; empty: its own choice."""
    key_file: str = ""
    key_env: str = ""
    ca_file: str = ""
    chosen: tuple[str, ...] = ()
    """Fields of the Tuning that the user set; the others keep the server's own defaults."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a target and its drafter instead of whatever is loaded; or go to a server instead."""

    model: str
    """Path of the target GGUF; empty for a server."""
    support: str = ""
    """Path of the support GGUF, "embedded" for the NextN block inside the target, "" for none."""
    lookup: bool = False
    ctx: int = 0
    """Context length in tokens; 0: the model's own, at most 8192."""
    threads: int = 0
    """0: chosen by the engine."""
    gpu_layers: int = -1
    """Layers to offload; -1: all of them, where the build has a GPU backend."""
    split_mode: Literal["none", "layer", "row", "tensor"] = "layer"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: Literal["auto", "on", "off"] = "auto"
    strict: bool = False
    """Load with the settings under which strict mode can be bit-equal."""
    convert: bool = False
    """A support file in ds4's layout is converted into the cache folder, instead of refused."""
    chat_template: str = ""
    """File of a Jinja template, or name of one that llama.cpp knows; empty: the model's own."""
    template: bool = True
    """Off: conversations as plain lines, without any template."""
    rpc: tuple[str, ...] = ()
    """RPC servers, host:port each, whose memory and compute hold a part of the models."""
    server: ServerAddress | None = None
    """Answers instead of an engine here; the other fields mean nothing then."""
    keep_states: bool = False
    """The engine process keeps conversations' KV states in the cache folder; off, it deletes those there."""
    depth: Depth = MAX_DEPTH
    """The deepest draft that can be asked for until the next load, where each drafted token takes a copy of
    a recurrent state; "auto": as many as take little memory."""

    @property
    def title(self) -> str:
        """The name to show until the model's own is known."""
        if self.server is not None:
            return self.server.name or self.server.url
        return display_name(self.model)


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer ``messages`` through the chat template, or ``prompt`` as it is."""

    reply: int
    """The caller's number for this reply, which all its events carry."""
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    tuning: Tuning = field(default_factory=Tuning)
    max_tokens: int = -1
    """-1: until the model stops or the context is full."""
    think: bool = True
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    keep_accepted: bool = True
    conversation: int = 0
    """The number under which the conversation, and so its KV state, is stored; 0 where it is not."""
    baseline: bool = False
    """Decode a plain step now and then, to compare the speed with plain decoding's (ds4chat.engine.baseline).
    Off where plain decoding is measured separately, as in the bench."""
    end_loops: bool = False
    """End the reply once it only repeats itself (ds4chat.engine.loops)."""
    trial: bool = False
    """Part of a measurement, not of the conversation: a Replay still means the reply before."""


@dataclass(frozen=True, slots=True)
class Retune:
    """Use this tuning from the next step on, in every reply that was asked for before."""

    tuning: Tuning


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop this reply, or its Replay, within one llama.cpp call; what came stays."""

    reply: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Decode a finished reply's prompt again without speculation and compare (the lossless check)."""

    reply: int


@dataclass(frozen=True, slots=True)
class Quit:
    """Leave the process."""

    seconds: float = 2.0
    """How long the client waits for that; writing a state to disk is given up before."""


Command = Load | Generate | Retune | Cancel | Replay | Quit


# ---------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of a load: ``fraction`` (0..1) of the stage that ``stage`` names."""

    stage: str
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The models are ready for a Generate. Within a reply: what a server's answer told besides."""

    target: ModelInfo
    drafter: DrafterInfo | None
    off_reason: str
    """Why speculation is off; empty when there is a drafter."""
    n_ctx: int
    threads: int
    device: str
    plain_ms: float
    """Median milliseconds of a one-token decode just after the load, the baseline until a reply has measured
    its own; 0 where it was not measured."""
    strict_note: str = ""
    """What strict mode does here: bit-equal batches, or verification one token at a time."""
    server: ServerInfo | None = None
    """Where the models are; None: in the engine's own process."""
    llama_cpp: str = ""
    """Version of the llama.cpp that runs them; empty with a server."""

    def without_drafter(self, off: SpeculationOff) -> Loaded:
        """The same models after the drafter was given up."""
        return replace(self, drafter=None, off_reason=off.reason)


@dataclass(frozen=True, slots=True)
class SpeculationOff:
    """The drafter of the loaded models was given up: plain decoding goes on."""

    reason: str
    """Follows "MTP is off:", without a full stop."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Nothing is loaded. ``message`` is a sentence for the user: what happened and what to do."""

    message: str


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompt tokens in the KV cache so far, of which ``reused`` were there before. With ``again`` it is the
    conversation that is decoded again within a reply, because the cache or the drafter lost it."""

    reply: int
    done: int
    total: int
    reused: int
    ms: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One cycle of draft, verify, accept, rollback."""

    reply: Large
    index: Count
    """0 for the reply's first step."""
    tokens: tuple[Token, ...]
    """Emitted, in order. Token i < len(judged) was decided by judged[i]."""
    drafted: Count
    judged: tuple[Judged, ...]
    outcome: Outcome
    ms: Phases
    tuning: Tuning
    depth: Count
    """Drafts asked for: tuning.depth, or what auto chose, within the limits of context and budget. A fixed
    depth is given for a step that is plain for the baseline, too."""
    drafter: str
    """Kind of the drafter that made this step's draft; empty without one."""
    context_used: Count
    """Tokens in the target's KV cache after the step; 0 where a server does not tell."""
    baseline: bool = False
    """A pass that the baseline is measured by: its batch had one row and did not pay for a change of size. A
    plain step takes ms.total - ms.draft here."""

    @property
    def accepted(self) -> int:
        """Drafts that were accepted: ``tokens`` of that origin, and that of ``accepted_end``; of a probe, the
        hits, which are not used."""
        return sum(row.accepted for row in self.judged)

    @property
    def accepted_end(self) -> bool:
        """The last accepted draft was the token that ended the reply, which is not emitted."""
        return self.accepted > len(self.tokens)


@dataclass(frozen=True, slots=True)
class Revised:
    """The steps of a reply, instead of those so far: a server told only at the end what they did. The tokens'
    texts joined are the same."""

    reply: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Alive:
    """A server is at work on the reply and has nothing to show yet."""

    reply: int


@dataclass(frozen=True, slots=True)
class Counters:
    """A server's own totals of one reply."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A reply is over. No event of it follows."""

    reply: int
    finish_reason: FinishReason
    detail: str = ""
    """A sentence where the reason needs one (context full, an error), else empty."""
    prompt_tokens: int = 0
    """0 where a server does not tell."""
    reused_tokens: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    first_token_ms: float = 0.0
    """From the Generate to the first emitted token."""
    context_used: int = 0
    seed: int = 0
    tail: str = ""
    """Text of the answer that was held back until the reply ended: it follows the last token's."""
    thinking_tail: str = ""
    """The same of the thinking."""
    counters: Counters | None = None
    """A server's totals; None where the steps tell everything."""


def limit_words(reason: FinishReason | None, *, any_text: bool) -> str:
    """How a reply that a limit ended is described; empty where none did."""
    if reason == "context":
        return "cut: the context is full" if any_text else "the prompt does not fit into the context"
    return "cut at its limit" if reason == "length" else ""


def refused(reply: int, detail: str, reason: FinishReason = "error") -> Ended:
    """The end of a reply that never began; ``detail`` is a sentence that says why."""
    return Ended(reply, reason, detail)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The end of a Replay: the reply's tokens against plain decoding under the same settings."""

    reply: int
    equal: bool | None
    """None where nothing was compared, as ``detail`` says: the check was stopped, or not possible."""
    compared: int = 0
    """Tokens compared, including the one that ended the reply, which emits nothing."""
    first_difference: int = -1
    """Index of the first token that differs, the reply's length where its end does; -1 when equal."""
    spec_token: int = -1
    plain_token: int = -1
    spec_text: str = ""
    plain_text: str = ""
    gap: float = 0.0
    """Plain decoding's top-1 minus top-2 logit at the difference: near 0 it is a rounding tie."""
    detail: str = ""
    plain_ms: float = 0.0
    """Milliseconds that plain decoding of an equal reply's tokens took; 0 where it did not finish."""

    @property
    def plain_speed(self) -> str:
        """The speed of plain decoding, as a sentence; empty where it was not measured."""
        if not self.plain_ms:
            return ""
        ms = self.plain_ms / self.compared
        return f"Plain decoding took {ms:.1f} ms a token, {1000 / ms:.1f} tok/s."


def uncompared(reply: int, why: str) -> Replayed:
    """The end of a Replay that compared nothing; ``why`` is a sentence for the user."""
    return Replayed(reply, None, detail=why)


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user that ends nothing."""

    level: Level
    message: str


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine process is gone. The client makes this event; what was emitted before stays valid."""

    reply: int | None
    """The reply that was in flight."""
    exit_code: int | None
    signal: str
    """Name of the signal that ended it, such as SIGKILL; empty for an exit code."""
    message: str
    """A sentence: what happened and what to do."""
    log_tail: tuple[str, ...]
    """The engine's last log lines."""


Event = (
    Loading
    | Loaded
    | LoadFailed
    | SpeculationOff
    | Prefill
    | Step
    | Revised
    | Alive
    | Ended
    | Replayed
    | Notice
    | EngineDied
)

Emit = Callable[[Event], None]
"""Takes the events of a session, in order."""


class LoadError(UserFacingError):
    """Nothing was loaded."""
