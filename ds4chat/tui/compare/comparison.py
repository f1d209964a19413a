"""A prompt that is answered under two settings by turns, and the figures of both. Pure: the controller asks
the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from ds4chat.engine.events import Ended, Event, Generate, Revised, Step, Tuning
from ds4chat.engine.stats import Stats

ORDER = (0, 1, 1, 0)
"""The side of each answer: a load that grows or fades affects both sides equally."""
TOKENS = 128
"""Most tokens of an answer."""
SHOWN = 24
"""Characters of each text that are quoted from where they differ."""


@dataclass(slots=True)
class Side:
    """One of the two settings, and its figures."""

    label: str
    tuning: Tuning
    stats: Stats = field(default_factory=Stats)
    """Of all its answers."""
    answers: int = 0
    """Complete ones."""
    text: str = ""
    """The first answer."""

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds of its steps per token; None before the first token."""
        return self.stats.ms["total"] / self.stats.emitted if self.stats.emitted else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of its steps; None before the first token."""
        ms = self.ms_per_token
        return 1000 / ms if ms else None


class Comparison:
    """Which answer to ask for next, and the answers so far. ``request``: the prompt and everything else that
    both sides share, its seed included."""

    def __init__(self, request: Generate, a: Side, b: Side) -> None:
        self.sides = (a, b)
        self.state: Literal["checking", "comparing"] = "comparing"
        self.number = 0
        """The reply number of the last answer asked for."""
        self.stopped = False
        """By the user, or with the engine."""
        self.trouble = ""
        """Why an answer failed, as a sentence."""
        self._request = request
        self._text: dict[int, str] = {}
        """The text of the running answer by step."""

    @property
    def over(self) -> bool:
        """No further answer is needed."""
        return self.stopped or bool(self.trouble) or self.done == len(ORDER)

    @property
    def done(self) -> int:
        """Complete answers, of len(ORDER)."""
        return sum(side.answers for side in self.sides)

    def next_command(self, new_number: Callable[[], int]) -> Generate:
        """The request for the next answer."""
        self.number = new_number()
        tuning = replace(self._side.tuning, seed=self._request.tuning.seed)
        limit = self._request.max_tokens
        return replace(
            self._request,
            reply=self.number,
            tuning=tuning,
            max_tokens=TOKENS if limit < 0 else min(limit, TOKENS),
            baseline=False,
            trial=True,
        )

    @property
    def _side(self) -> Side:
        return self.sides[ORDER[self.done]]

    def stop(self) -> None:
        """Ask for no further answer."""
        self.stopped = True

    def handle(self, event: Event) -> bool:
        """Add an event of the running answer to its side; True if it ended the answer."""
        if not isinstance(event, Step | Revised | Ended) or event.reply != self.number:
            return False
        side = self._side
        side.stats.fold(event)
        if isinstance(event, Step):
            self._text[event.index] = "".join(token.text for token in event.tokens)
        elif isinstance(event, Revised):
            self._text = {step.index: "".join(t.text for t in step.tokens) for step in event.steps}
        if not side.answers:
            side.text = "".join(self._text.values())
        if not isinstance(event, Ended):
            return False
        self._text = {}
        if event.finish_reason == "error":
            self.trouble = event.detail
        elif event.finish_reason == "cancelled":
            self.stopped = True
        else:
            if not side.answers:
                side.text += event.thinking_tail + event.tail
            side.answers += 1
        return True

    @property
    def speedup(self) -> float | None:
        """The speed of the second side over that of the first; None before both have a token."""
        a, b = (side.ms_per_token for side in self.sides)
        return a / b if a and b else None

    @property
    def verdict(self) -> str:
        """A sentence on whether both texts are the same, or where they differ."""
        a, b = (side.text for side in self.sides)
        n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        both_complete = all(side.answers for side in self.sides)
        if a == b and both_complete:
            return f"Both write the same {len(a):,} characters."
        if n < min(len(a), len(b)) or both_complete:
            return f"They differ after {n:,} characters: {_from(a, n)} or {_from(b, n)}."
        return f"Both are the same so far, {n:,} characters." if n else ""


def _from(text: str, at: int) -> str:
    """The text from a character on, shortened and in quotes, or that it ends there."""
    rest = text[at : at + SHOWN]
    return f"{rest!r}{' …' if len(text) > at + SHOWN else ''}" if rest else "the end"
