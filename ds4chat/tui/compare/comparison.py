"""A prompt answered under two settings by turns, and the figures of both. Pure: who asks the engine is the
controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from ds4chat.engine.events import Ended, Event, Generate, Revised, Step, Tuning
from ds4chat.engine.stats import Stats

ORDER = (0, 1, 1, 0)
"""Which side answers when: a load that grows or fades away weighs on both alike."""
TOKENS = 128
"""Most tokens of an answer."""
SHOWN = 24
"""Characters of each text from where they part."""


@dataclass(slots=True)
class Side:
    """One of the two settings, and what came of it."""

    label: str
    tuning: Tuning
    stats: Stats = field(default_factory=Stats)
    """Of all its answers."""
    answers: int = 0
    """Whole ones."""
    text: str = ""
    """Of its first answer."""
    complete: bool = False
    """The first answer is over, and not because it was stopped."""

    @property
    def ms_a_token(self) -> float | None:
        """Milliseconds of its steps for each token; None before the first."""
        return self.stats.ms["total"] / self.stats.emitted if self.stats.emitted else None

    @property
    def tokens_per_s(self) -> float | None:
        """The same the other way round."""
        ms = self.ms_a_token
        return 1000 / ms if ms else None


class Comparison:
    """What is asked next, and what came. ``request``: the prompt with all that both sides share; its seed, if
    it has one, holds for both."""

    def __init__(self, request: Generate, a: Side, b: Side) -> None:
        self.sides = (a, b)
        self.state: Literal["checking", "comparing"] = "comparing"
        self.number = 0
        """Of the answer asked for last."""
        self.stopped = False
        """By the user, or with the engine."""
        self.trouble = ""
        """Why an answer failed, as a sentence."""
        self._request = request
        self._asked = 0
        self._text: dict[int, str] = {}
        """Of the running answer, by step."""

    @property
    def over(self) -> bool:
        """Nothing more is to be asked."""
        return self.stopped or bool(self.trouble) or self.done == len(ORDER)

    @property
    def done(self) -> int:
        """Answers that are over, of len(ORDER)."""
        return sum(side.answers for side in self.sides)

    def next_command(self, new_number: Callable[[], int]) -> Generate:
        """The next answer to ask for."""
        self.number = new_number()
        tuning = replace(self._now.tuning, seed=self._request.tuning.seed)
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
    def _now(self) -> Side:
        return self.sides[ORDER[self.done]]

    def stop(self) -> None:
        """No more is asked; the figures are of what came."""
        self.stopped = True

    def handle(self, event: Event) -> bool:
        """Take in what came of the answer asked for last; True where it is over."""
        if not isinstance(event, Step | Revised | Ended) or event.reply != self.number:
            return False
        side = self._now
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
                side.complete = True
            side.answers += 1
        return True

    @property
    def speedup(self) -> float | None:
        """How many times as fast the second side is; None before both have answered something."""
        a, b = (side.ms_a_token for side in self.sides)
        return a / b if a and b else None

    @property
    def verdict(self) -> str:
        """Whether both sides write the same, as far as they came, or where they part; a sentence."""
        a, b = (side.text for side in self.sides)
        n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        both_complete = all(side.complete for side in self.sides)
        if a == b and both_complete:
            return f"Both write the same {len(a):,} characters."
        if n < min(len(a), len(b)) or both_complete:
            return f"They part after {n:,} characters: {_from(a, n)} or {_from(b, n)}."
        return f"The same as far as both came, {n:,} characters." if n else ""


def _from(text: str, at: int) -> str:
    """A few words of a text from a character on, in quotes; its end where there are none."""
    rest = text[at : at + SHOWN]
    return f"{rest!r}{' …' if len(text) > at + SHOWN else ''}" if rest else "the end"
