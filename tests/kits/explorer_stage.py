"""What the explorer's tests share: made-up rows with known figures, and an app that opens one explorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from kits.screen_stage import work_done
from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Static

from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.analysis.times import StepTimes
from ds4chat.engine.events import Judged, Outcome, Phases, Step, Token, Tuning
from ds4chat.tui import themes
from ds4chat.tui.conversation import Reply
from ds4chat.tui.explorer.listing import Listing
from ds4chat.tui.explorer.screen import ExplorerScreen
from ds4chat.tui.explorer.source import Source

WORDS = (" the", " small", " model", ",", " drafts", "\n", " what", " target", " would", " say")


def judged(number: int, position: int, accepted: bool, by_ratio: bool = False) -> Judged:
    """Row ``number``: an accepted one has ratio 1; a rejected or lossy one has 0.05 + number % 8 / 10."""
    match = accepted and not by_ratio
    return Judged(
        position=position,
        draft=number,
        draft_text=WORDS[number % 10],
        target=number if match else 9000 + number,
        target_text=WORDS[number % 10] if match else WORDS[(number + 3) % 10],
        accepted=accepted,
        by="match" if match else "ratio" if accepted else "",
        ratio=1.0 if match else 0.05 + number % 8 / 10,
        gap=0.25 + number % 13 / 2,
        draft_gap=0.5 + number % 7,
        draft_prob=min(0.99, 0.15 + 0.1 * (number % 5) + (0.4 if accepted else 0.0)),
    )


def steps_from(verdicts: Sequence[str], tuning: Tuning | None = None, reply: int = 1) -> list[Step]:
    """Steps of depth 2 from strings such as "+-" (one accepted, one rejected), "" a plain one, which is a
    pass. A step takes 20 ms and 10 for each draft."""
    tuning = tuning or Tuning(depth=2)
    steps, number = [], 0
    for index, marks in enumerate(verdicts):
        rows = []
        for position, mark in enumerate(marks, start=1):
            rows.append(judged(number, position, mark in "+~", mark == "~"))
            number += 1
        accepted = sum(row.accepted for row in rows)
        outcome: Outcome = (
            "plain" if not rows else "full" if accepted == len(rows) else "partial" if accepted else "miss"
        )
        drafted = 2 if rows else 0
        ms = Phases(2.0 * drafted, 18.0 + 8.0 * drafted, 1.0, 0.5, 0.5, 20.0 + 10.0 * drafted)
        tokens = tuple(Token(n, " x", "plain") for n in range(accepted + 1))
        steps.append(
            Step(
                reply,
                index,
                tokens,
                drafted,
                tuple(rows),
                outcome,
                ms,
                tuning,
                drafted,
                "eagle3",
                100,
                baseline=not rows,
            )
        )
    return steps


VERDICTS = ("++", "-", "+-", "", "++", "++", "-", "+-", "++", "~+") * 6
"""60 steps, 6 of them plain; 102 rows, of which 12 miss, 12 are the second of a partial step, 6 lossy."""


def source(rows: JudgedRows | None = None, *, in_chat: bool = True, note: str = "") -> Source:
    """The rows of VERDICTS, or others."""
    if rows is None:
        return Source.of("this conversation", [reply_of(steps_from(VERDICTS))], in_chat=in_chat, note=note)
    return Source("this conversation", Listing(rows), StepTimes(rows), in_chat=in_chat, note=note)


def reply_of(steps: Sequence[Step]) -> Reply:
    """The reply that these steps made."""
    reply = Reply(steps[0].reply, "tiny")
    for step in steps:
        reply.add_step(step)
    return reply


def many_rows(count: int) -> JudgedRows:
    """``count`` rows in steps of two drafts, drawn from a fixed stream."""
    small = rows_from_steps(steps_from(("++", "+-")))
    dice = np.random.default_rng(7)
    steps = count // 2
    accepted = dice.random(count) < 0.7
    texts = tuple(WORDS[i] for i in dice.integers(0, 10, count).tolist())
    ones = np.ones(steps, np.int64)
    return replace(
        small,
        step=np.repeat(np.arange(steps), 2),
        position=np.tile(np.array([1, 2]), steps),
        draft=np.arange(count),
        target=np.where(accepted, np.arange(count), -1),
        accepted=accepted,
        ratio=np.where(accepted, 1.0, dice.random(count)),
        gap=dice.exponential(2, count),
        draft_gap=dice.exponential(2, count),
        draft_prob=dice.random(count),
        draft_text=texts,
        target_text=texts,
        step_reply=ones,
        step_index=np.arange(steps),
        step_first=np.arange(steps) * 2,
        step_judged=ones * 2,
        step_accepted=accepted.reshape(-1, 2).sum(axis=1),
        step_drafted=ones * 2,
        step_emitted=ones * 2,
        step_depth=ones * 2,
        step_outcome=dice.integers(0, 3, steps),
        step_margin=np.ones(steps),
        step_gate=np.zeros(steps),
        step_ms=np.full((steps, 6), 10.0),
    )


class Stage(App[None]):
    """Opens an explorer over an empty screen; ``seen`` are the messages that reached the app."""

    def __init__(self, load: Callable[[], Source], tuning: Tuning | None = None) -> None:
        super().__init__()
        self.explorer = ExplorerScreen(load, lambda: tuning or Tuning(depth=2))
        self.seen: list[Message] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.variable_defaults()

    def compose(self) -> ComposeResult:
        yield Static("under")

    def on_mount(self) -> None:
        for theme in themes.load_themes(None)[0]:
            self.register_theme(theme)
        self.theme = themes.DEFAULT_THEME
        self.push_screen(self.explorer)

    def keep(self, message: Message) -> None:
        """Remember a message."""
        self.seen.append(message)

    on_tuning_changed = on_token_picked = keep

    def of(self, kind: type[Any]) -> list[Any]:
        """The messages of one kind, oldest first."""
        return [message for message in self.seen if isinstance(message, kind)]


async def settled(pilot: Pilot[Any]) -> None:
    """Until the rows are read, the charts drawn and the what-if worked out."""
    app = pilot.app
    assert isinstance(app, Stage)
    await work_done(pilot)


def shown(app: Stage) -> str:
    """The screen as text."""
    screen = app.screen
    lines = screen._compositor.render_strips(screen.size)
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in lines)
