"""Runs the real engine on the constructed models, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiny

from ds4chat.engine.control import Control
from ds4chat.engine.events import Ended, Event, Generate, Load, Loaded, Notice, Replayed, Step, Token, Tuning
from ds4chat.engine.llama import Context
from ds4chat.engine.opening import open_session
from ds4chat.engine.session import Session
from ds4chat.engine.stats import Stats

END_NOW = " end now"

PAIRS: dict[str, tuple[str, str]] = {
    "deepseek4-support": ("deepseek4", "deepseek4-support"),
    "deepseek4-nextn": ("deepseek4-nextn", "embedded"),
    "qwen35-nextn": ("qwen35-nextn", "embedded"),
    "eagle3": ("llama", "eagle3"),
    "llama-draft": ("llama", "llama-draft"),
    "mimo2-nextn": ("mimo2-nextn", "embedded"),
    "gemma4-assistant": ("gemma4", "gemma4-assistant"),
}
"""Name of the drafter in tiny.simulate -> the target's kind and the support's."""


def load_of(folder: Path, name: str, *, wrong_every: int = 4, **more: Any) -> Load:
    """A Load of one of PAIRS."""
    target, support = PAIRS[name]
    parameters = {"wrong_every": wrong_every} if support == "embedded" else {}
    path = tiny.build(target, folder, **parameters)
    if support != "embedded":
        support = str(tiny.build(support, folder, wrong_every=wrong_every))
    return Load(**{"model": str(path), "support": support, "ctx": 512, "threads": 1, **more})


@dataclass
class Answer:
    """What a request came to."""

    events: list[Event] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def collect(self, event: Event) -> None:
        self.events.append(event)
        self.stats.fold(event)

    @property
    def steps(self) -> list[Step]:
        return [e for e in self.events if isinstance(e, Step)]

    @property
    def tokens(self) -> list[Token]:
        return [t for step in self.steps for t in step.tokens]

    @property
    def ids(self) -> list[int]:
        return [t.id for t in self.tokens]

    @property
    def text(self) -> str:
        return "".join(t.text for t in self.tokens) + self.ended.tail

    @property
    def ended(self) -> Ended:
        last = self.events[-1]
        assert isinstance(last, Ended)
        return last

    @property
    def notices(self) -> list[str]:
        return [e.message for e in self.events if isinstance(e, Notice)]

    @property
    def restored(self) -> int:
        """Tokens that came from disk, as the notice says."""
        said = [n for n in self.notices if "restored from disk" in n]
        assert len(said) <= 1
        return int(said[0].split()[0]) if said else 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """steps, drafted, judged, accepted"""
        s = self.stats
        return s.steps, s.drafted, s.judged, s.accepted

    @property
    def by_position(self) -> list[tuple[int, int]]:
        return [(p.judged, p.accepted) for p in self.stats.by_position]


def cancel_at(step: int) -> Callable[[Event, Control], None]:
    """A hook that cancels after this step."""
    return lambda event, control: (
        control.cancel() if isinstance(event, Step) and event.index == step else None
    )


class Bench:
    """A session and the questions put to it."""

    def __init__(self, session: Session, loaded: Loaded) -> None:
        self.session = session
        self.loaded = loaded

    def ask(
        self,
        prompt: str = END_NOW,
        n: int = -1,
        *,
        hook: Callable[[Event, Control], None] | None = None,
        tuning: Tuning | None = None,
        **more: Any,
    ) -> Answer:
        """Put a raw prompt. Fields of Tuning may be given by name; ``hook`` sees every event as it comes."""
        known = Tuning.__dataclass_fields__
        tuning = tuning or Tuning(**{k: more.pop(k) for k in list(more) if k in known})
        request = Generate(**{"reply": 1, "prompt": prompt, "tuning": tuning, "max_tokens": n, **more})
        answer, control = Answer(), Control(tuning)

        def emit(event: Event) -> None:
            answer.collect(event)
            if hook:
                hook(event, control)

        self.session.generate(request, control, emit)
        return answer

    def cancelled_in(
        self, nth: int, monkeypatch: pytest.MonkeyPatch, *, drafting: bool = False, **more: Any
    ) -> Answer:
        """An answer that is cancelled during the target's, or the drafter's, ``nth`` decode for rows."""
        real, controls, left = Context.decode, [], nth

        def decode(context: Context, tokens: Any, pos: int, **how: Any) -> None:
            nonlocal left
            is_target = context is self.session.caches.target
            if is_target is not drafting and how.get("outputs") != "none":
                left -= 1
                if left == 0:
                    controls[0].cancel()
            real(context, tokens, pos, **how)

        with monkeypatch.context() as patch:
            patch.setattr(Context, "decode", decode)
            return self.ask(hook=lambda event, control: controls.append(control), **more)

    def check(self, reply: int = 1) -> Replayed:
        """The lossless check of a reply."""
        events: list[Event] = []
        self.session.replay(reply, Control(Tuning()), events.append)
        answer = events[-1]
        assert isinstance(answer, Replayed), answer
        return answer


@contextmanager
def opened(load: Load) -> Iterator[Bench]:
    """A session for ``load``, freed at the end."""
    session, loaded = open_session(load, lambda event: None, forgiving=False)
    try:
        yield Bench(session, loaded)
    finally:
        session.close()
