"""The conversation as the chat holds it: prompts and replies, the replies with their tokens and steps.

Nothing here draws or stores.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Literal

from ds4chat.engine.events import (
    Ended,
    EngineDied,
    FinishReason,
    Judged,
    Message,
    Prefill,
    Revised,
    Step,
    Token,
)
from ds4chat.engine.stats import Stats

ReplyState = Literal["waiting", "streaming", "complete", "limited", "stopped", "failed", "crashed"]
"""waiting: no token yet. complete: the model ended it. limited: it reached its token or context limit.
stopped: by the user. failed: the engine could not go on. crashed: the engine died."""

RUNNING: frozenset[ReplyState] = frozenset({"waiting", "streaming"})


@dataclass(slots=True)
class UserTurn:
    """What the user wrote."""

    text: str
    key: int | None = None
    """The recorder's number for it."""
    versions: tuple[int, ...] = ()
    """The recorder's numbers of it and its siblings in the tree, oldest first; empty without siblings."""


@dataclass(frozen=True, slots=True)
class Place:
    """A token's place in its reply's steps, and the row that decided it."""

    step: Step
    index: int
    """Index among the step's tokens."""
    judged: Judged | None
    """None for a token that was compared with no draft."""


@dataclass(slots=True)
class Reply:
    """One reply, from the request on."""

    number: int
    model: str
    """Name of the model that answers."""
    state: ReplyState = "waiting"
    tokens: list[Token] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    """Empty for a reply from the store whose steps were not read."""
    tail: str = ""
    """The answer's text after the last token's."""
    thinking_tail: str = ""
    """The thinking's."""
    prefill: Prefill | None = None
    """How far its prompt was read; None before that begins, and for a stored reply."""
    ended: Ended | None = None
    trouble: str = ""
    """A sentence that says why it is not complete."""
    stats: Stats = field(default_factory=Stats)
    lossy: bool = False
    """The mode was approximate: tokens may have been accepted only by their ratio."""
    thinking_tokens: int = 0
    key: int | None = None
    """The recorder's number for it."""
    versions: tuple[int, ...] = ()
    """The recorder's numbers of it and its siblings in the tree, oldest first; empty without siblings."""
    before: Reply | None = None
    """The cut or stopped reply that this one continues."""
    _first: list[int] = field(default_factory=list)
    """Index in ``tokens`` of each step's first token."""

    @property
    def running(self) -> bool:
        """More may come."""
        return self.state in RUNNING

    @property
    def can_go_on(self) -> bool:
        """It was cut or stopped after its answer began."""
        return not self.running and self.state != "complete" and bool(self.answer.strip())

    @property
    def text(self) -> str:
        """Everything the model wrote, its thinking included."""
        return "".join(token.text for token in self.tokens) + self.thinking_tail + self.tail

    @property
    def answer(self) -> str:
        """What the model wrote outside its thinking."""
        if not self.thinking_tokens:
            return "".join(t.text for t in self.tokens) + self.tail
        return "".join(t.text for t in self.tokens if not t.thinking).lstrip("\n") + self.tail

    @property
    def whole_answer(self) -> str:
        """The answer, preceded by those of the replies that it continues."""
        return (self.before.whole_answer if self.before else "") + self.answer

    @property
    def thinking(self) -> str:
        """What the model thought."""
        if not self.thinking_tokens:
            return self.thinking_tail
        return "".join(t.text for t in self.tokens if t.thinking) + self.thinking_tail

    def add_step(self, step: Step) -> None:
        """Append a step's tokens."""
        self.state = "streaming"
        self._append(step)
        self.stats.fold(step)

    def revise(self, revised: Revised) -> None:
        """Replace all steps: a server reported only at the end what they were."""
        self.steps, self.tokens, self._first, self.thinking_tokens = [], [], [], 0
        for step in revised.steps:
            self._append(step)
        self.stats.fold(revised)

    def _append(self, step: Step) -> None:
        self._first.append(len(self.tokens))
        self.steps.append(step)
        self.tokens += step.tokens
        self.thinking_tokens += sum(token.thinking for token in step.tokens)
        self.lossy |= step.tuning.mode == "approximate"

    def end(self, ended: Ended) -> None:
        """The engine ended the reply."""
        self.ended = ended
        self.tail, self.thinking_tail = ended.tail, ended.thinking_tail
        states: dict[str, ReplyState] = {"stop": "complete", "cancelled": "stopped", "error": "failed"}
        self.state = states.get(ended.finish_reason, "limited")
        self.trouble = ended.detail
        self.stats.fold(ended)

    def crash(self, died: EngineDied) -> None:
        """The engine died; the text so far stays."""
        self.state = "crashed"
        self.trouble = died.message

    def own_end(self, reason: FinishReason, detail: str = "") -> Ended:
        """The end of this reply as far as the chat knows it, for one that the engine did not end."""
        stats = self.stats
        return Ended(
            reply=self.number,
            finish_reason=reason,
            detail=detail,
            prompt_tokens=stats.prompt_tokens,
            reused_tokens=stats.reused_tokens,
            prefill_ms=stats.prefill_ms,
            decode_ms=stats.ms["total"],
            first_token_ms=stats.first_token_ms,
            context_used=stats.context_used,
            seed=self.steps[-1].tuning.seed if self.steps else 0,
            tail=self.tail,
            thinking_tail=self.thinking_tail,
        )

    def place(self, token: int) -> Place | None:
        """A token's place; None if this reply's steps are unknown. Raises IndexError."""
        if not self.steps:
            return None
        position = bisect_right(self._first, range(len(self.tokens))[token]) - 1
        # A step that emitted nothing has the same first token as the one after it.
        step, index = self.steps[position], token - self._first[position]
        return Place(step, index, step.judged[index] if index < len(step.judged) else None)

    def token_at(self, character: int) -> int | None:
        """Index of the token that holds a character of this reply, its thinking counted first; None if none
        does."""
        for thinking in (True, False):
            tokens = [(index, t) for index, t in enumerate(self.tokens) if t.thinking is thinking]
            for index, token in tokens:
                if character < len(token.text):
                    return index
                character -= len(token.text)
            if thinking and character < len(self.thinking_tail):
                return tokens[-1][0] if tokens else None
            character -= len(self.thinking_tail) if thinking else 0
        return None

    def token_of(self, step: int, index: int) -> int | None:
        """Index in ``tokens`` of a step's token; None if there is no such step or token."""
        guess = step - self.steps[0].index if self.steps else 0
        if not 0 <= guess < len(self.steps) or self.steps[guess].index != step:
            return None
        return self._first[guess] + index if index < len(self.steps[guess].tokens) else None


Turn = UserTurn | Reply


@dataclass(slots=True)
class Conversation:
    """The turns on the screen: one path through the conversation's tree."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    title: str = ""
    key: int | None = None
    """The recorder's number for it."""
    dropped: int = 0
    """Number of the oldest prompts that are left out, with their replies, of requests to the engine."""

    def messages(self) -> tuple[Message, ...]:
        """The messages of a request: all turns so far, with a reply and its continuation as one. Replies
        without an answer are left out, and so are prompts at which the engine died, which would kill it
        again; only a retry sends such a prompt."""
        found = [Message("system", self.system)] if self.system.strip() else []
        prompts = 0
        for turn in self._standing():
            prompts += isinstance(turn, UserTurn)
            if prompts <= self.dropped:
                continue
            if isinstance(turn, UserTurn):
                found.append(Message("user", turn.text))
            elif turn.answer:
                content, thinking = turn.answer, turn.thinking
                if turn.before is not None and found and found[-1].role == "assistant":
                    begun = found.pop()
                    content, thinking = begun.content + content, begun.thinking + thinking
                found.append(Message("assistant", content, thinking))
        return tuple(found)

    def messages_to_last_prompt(self) -> tuple[Message, ...]:
        """The messages of the newest prompt's request; empty without one."""
        prompts = [i for i, turn in enumerate(self.turns) if isinstance(turn, UserTurn)]
        if not prompts:
            return ()
        return replace(self, turns=self.turns[: prompts[-1] + 1]).messages()

    def _standing(self) -> list[Turn]:
        """The turns without crashed replies and their prompts. A crashed reply that was continued stays."""
        found: list[Turn] = []
        after: Turn | None = None
        died = False
        for turn in reversed(self.turns):
            if isinstance(turn, Reply):
                gone_on = isinstance(after, Reply) and after.before is turn
                died = turn.state == "crashed" and (died or not gone_on)
            if not died:
                found.append(turn)
            died = died and isinstance(turn, Reply)
            after = turn
        return found[::-1]

    @property
    def last_reply(self) -> Reply | None:
        """The newest reply."""
        return next((turn for turn in reversed(self.turns) if isinstance(turn, Reply)), None)

    def reply(self, number: int) -> Reply | None:
        """The reply with this number."""
        return next((t for t in reversed(self.turns) if isinstance(t, Reply) and t.number == number), None)

    def drop_reply(self) -> bool:
        """Remove the newest reply, so that its prompt can be answered again; False without one."""
        if self.turns and isinstance(self.turns[-1], Reply):
            self.turns.pop()
        return bool(self.turns)

    def drop_exchange(self) -> str | None:
        """Remove the newest prompt and its reply; the prompt's text, or None without one."""
        while self.turns and isinstance(self.turns[-1], Reply):
            self.turns.pop()
        last = self.turns.pop() if self.turns else None
        return last.text if isinstance(last, UserTurn) else None

    def cut_before(self, turn: Turn) -> None:
        """Remove this turn and all after it, if it is here."""
        del self.turns[next((i for i, t in enumerate(self.turns) if t is turn), len(self.turns)) :]
