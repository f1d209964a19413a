"""An engine that replays events, and builders of steps whose figures a test can work out by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import (
    Cancel,
    Command,
    DrafterInfo,
    Ended,
    Event,
    Generate,
    Judged,
    Load,
    Loaded,
    ModelInfo,
    Origin,
    Phases,
    Prefill,
    Retune,
    ServerInfo,
    Step,
    Token,
    Tuning,
)
from ds4chat.store import Store
from ds4chat.tui.conversation import Conversation, Reply
from ds4chat.tui.recorder import Recorder

MODEL = ModelInfo(
    path="/models/tiny.gguf",
    name="Tiny Chat",
    architecture="llama",
    quantisation="Q4_1",
    parameters=135_000_000,
    size_bytes=90_000_000,
    n_ctx_train=8192,
    n_layer=30,
    n_embd=576,
    n_vocab=49152,
)


def loaded(*, off_reason: str = "", plain_ms: float = 20.0, n_ctx: int = 2048) -> Loaded:
    """A loaded pair, or a target alone with the reason why speculation is off."""
    drafter = None if off_reason else DrafterInfo("eagle3", "/models/eagle3.gguf", 16)
    return Loaded(MODEL, drafter, off_reason, n_ctx, 2, "CPU", plain_ms)


def server_info(**more: Any) -> ServerInfo:
    """A llama-server that speculates; ``more``: other values of its fields."""
    info = ServerInfo(
        url="http://box:8080",
        name="box",
        kind="llama-server",
        version="b1",
        tells="exact",
        why="it reports neither rejected drafts nor probabilities",
        speculates=True,
        live=("temp", "top_k", "top_p", "min_p", "repeat_penalty", "seed"),
        fixed=(("depth", "start it with --spec-draft-n-max N"),),
        chosen=(),
        has_key=False,
        exposed=False,
    )
    return replace(info, **more)


def served(**more: Any) -> Loaded:
    """A model that a server has loaded; ``more``: as for ``server_info``."""
    info = server_info(**more)
    drafter = DrafterInfo("draft-eagle3", "", 0) if info.speculates else None
    return replace(loaded(plain_ms=0.0), drafter=drafter, server=info, threads=0)


PIECES: tuple[tuple[str, Origin], ...] = (
    ("Spec", "plain"),
    ("ulative", "accepted"),
    (" decoding", "accepted"),
    (" lets", "bonus"),
    (" a", "accepted"),
    (" small", "corrected"),
    (" model", "accepted"),
    (" guess", "accepted"),
    (" a", "bonus"),
    (" few", "accepted"),
    (" tokens", "accepted"),
    (",", "bonus"),
    (" which", "corrected"),
    (" the", "accepted"),
    (" large", "accepted"),
    (" one", "bonus"),
    (" judges", "accepted"),
    (" in", "accepted"),
    (" a", "bonus"),
    (" single", "corrected"),
    (" pass", "accepted"),
    (".", "bonus"),
)
"""A sentence whose tokens have every origin."""


def steps_of(
    reply: int,
    pieces: Sequence[tuple[str, Origin]],
    *,
    tuning: Tuning | None = None,
    first: int = 0,
    thinking: bool = False,
    by_ratio: Iterable[int] = (),
    step_ms: float = 25.0,
) -> list[Step]:
    """Steps that emit these tokens: each ends with its first token that is no accepted draft."""
    tuning = tuning or Tuning(depth=2)
    ratio = set(by_ratio)
    steps: list[Step] = []
    tokens: list[Token] = []
    judged: list[Judged] = []
    for number, (text, origin) in enumerate(pieces):
        tokens.append(Token(number, text, origin, thinking))
        if origin in ("accepted", "corrected"):
            match = origin == "accepted"
            lossy = number in ratio
            judged.append(
                Judged(
                    position=len(judged) + 1,
                    draft=number if match else 9000 + number,
                    draft_text=text if match else " wrong",
                    target=number if not lossy else 8000,
                    target_text=text if not lossy else " other",
                    accepted=match,
                    by=("ratio" if lossy else "match") if match else "",
                    ratio=1.0 if match and not lossy else 0.25,
                    gap=2.5,
                    draft_gap=1.25,
                    draft_prob=0.75,
                )
            )
        if origin != "accepted" or number == len(pieces) - 1:
            outcome = "plain" if not judged else "full" if all(j.accepted for j in judged) else "partial"
            steps.append(
                Step(
                    reply=reply,
                    index=first + len(steps),
                    tokens=tuple(tokens),
                    drafted=len(judged),
                    judged=tuple(judged),
                    outcome=outcome,  # type: ignore[arg-type]
                    ms=Phases(4.0, step_ms - 6.0, 0.5, 0.5, 1.0, step_ms),
                    tuning=tuning,
                    depth=2,
                    drafter="eagle3",
                    context_used=40 + number + 1,
                )
            )
            tokens, judged = [], []
    return steps


def ended(
    reply: int, *, reason: str = "stop", detail: str = "", tokens: int = 22, ms: float = 250.0
) -> Ended:
    """The end of a reply of 40 prompt tokens."""
    return Ended(
        reply=reply,
        finish_reason=reason,  # type: ignore[arg-type]
        detail=detail,
        prompt_tokens=40,
        reused_tokens=0,
        prefill_ms=80.0,
        decode_ms=ms,
        first_token_ms=95.0,
        context_used=40 + tokens,
        seed=1,
    )


class ReplayEngine:
    """Takes commands down and hands out what ``push`` was given, or what ``on_generate`` answers."""

    def __init__(self, *, answer: bool = True, load: Event | None = None) -> None:
        self.sent: list[Command] = []
        self.alive = False
        self.starts = 0
        self.killed = 0
        self.closed = False
        self._answer = answer
        self._load = load or loaded()
        self._events: deque[Event] = deque()

    def start(self) -> None:
        """Runs."""
        if not self.alive:
            self.alive = True
            self.starts += 1

    def send(self, command: Command) -> None:
        """Answers a Load with what was given, a Generate with the sentence, a Cancel with its end."""
        self.sent.append(command)
        if isinstance(command, Load):
            self._events.append(self._load)
        elif isinstance(command, Generate) and self._answer:
            self.push(Prefill(command.reply, 40, 40, 0, 80.0))
            self.push(*steps_of(command.reply, PIECES, tuning=command.tuning), ended(command.reply))
        elif isinstance(command, Cancel):
            self.push(ended(command.reply, reason="cancelled"))

    def on_load(self, answer: Event) -> None:
        """What the next loads are answered with."""
        self._load = answer

    def push(self, *events: Event) -> None:
        """These come with the next drain."""
        self._events.extend(events)

    def drain(self) -> list[Event]:
        """Everything pushed since the last call."""
        events = list(self._events)
        self._events.clear()
        return events

    def kill(self) -> None:
        """Counted."""
        self.killed += 1
        self.alive = False

    def close(self) -> None:
        """Noted."""
        self.closed = True
        self.alive = False

    @property
    def generates(self) -> list[Generate]:
        """The requests for replies so far."""
        return [c for c in self.sent if isinstance(c, Generate)]

    @property
    def retunes(self) -> list[Tuning]:
        """The tunings sent so far."""
        return [c.tuning for c in self.sent if isinstance(c, Retune)]


class SettledRecorder(Recorder):
    """Stores in memory, and waits until a prompt is stored: the engine is asked at once on any machine."""

    def __init__(self) -> None:
        super().__init__(Store.in_memory())

    def started(self, conversation: Conversation, reply: Reply) -> None:
        super().started(conversation, reply)
        assert self.settle(60)
