"""Pictures of the chat in its main states, with every source of chance switched off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kits.chat import PIECES, ReplayEngine, SettledRecorder, ended, loaded, steps_of
from textual.pilot import Pilot

from ds4chat.engine.events import EngineDied, Generate, Loading, Prefill, Tuning
from ds4chat.settings.schema import Settings
from ds4chat.tui.app import ChatApp
from ds4chat.tui.chat.screen import ChatScreen

# Pictures of whole screens; what they show is tested without them, too.
pytestmark = pytest.mark.slow

ANSWER = """# Speculative decoding

A **small** model *drafts*, the `target` judges:

1. draft `k` tokens
2. verify them in one pass

```python
def accepted(drafts, target):
    return next((i for i, d in enumerate(drafts) if d != target[i]), len(drafts))
```

> Lossless at margin 1.
"""


class Thinker(ReplayEngine):
    """Thinks first, then answers in Markdown; some drafts are taken by their ratio alone."""

    def send(self, command: Any) -> None:
        self._answer = False
        super().send(command)
        if isinstance(command, Generate):
            origins = ("accepted", "accepted", "bonus", "corrected")
            words = ANSWER.replace("\n", "\n\0").replace(" ", "\0 ").split("\0")
            pieces = [(word, origins[n % 4]) for n, word in enumerate(words)]
            thought = [
                ("", "plain"),
                ("Be", "accepted"),
                (" brief.", "bonus"),
                ("", "plain"),
            ]
            first = steps_of(command.reply, thought, thinking=True)  # type: ignore[arg-type]
            tuning = Tuning(depth=4, margin=0.8)
            then = steps_of(command.reply, pieces, tuning=tuning, first=len(first), by_ratio=(5, 12))  # type: ignore[arg-type]
            ms = sum(step.ms.total for step in (*first, *then))
            self.push(Prefill(command.reply, 40, 40, 0, 80.0), *first, *then, ended(command.reply, ms=ms))


Play = Callable[[ChatScreen, ReplayEngine, Pilot[int]], Awaitable[None]]


async def ask(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int], text: str = "What is it?") -> None:
    screen.prompt.text_field.insert(text)
    await pilot.pause()
    await pilot.press("enter")
    screen.draw_frame()
    await pilot.pause()


async def nothing(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int]) -> None:
    """As it opens."""


async def markdown(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int]) -> None:
    await ask(screen, engine, pilot)
    await pilot.press("f3")


async def thinking(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int]) -> None:
    await ask(screen, engine, pilot)
    await pilot.press("ctrl+o")
    screen.transcript.action_top()


async def cursor(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int]) -> None:
    await ask(screen, engine, pilot)
    await pilot.press("f4", "left", "left")


async def died(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int]) -> None:
    engine._answer = False
    await ask(screen, engine, pilot)
    await ask(screen, engine, pilot, "And then?")
    message = "The engine stopped: it was killed (SIGKILL), most often because memory ran out."
    engine.push(*steps_of(1, PIECES[:9]), EngineDied(1, None, "SIGKILL", message, ()))
    screen.draw_frame()


async def completing(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int]) -> None:
    screen.prompt.text_field.insert("/m")
    await pilot.pause()


async def panels(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int]) -> None:
    await ask(screen, engine, pilot)
    await pilot.press("f2")


async def off(screen: ChatScreen, engine: ReplayEngine, pilot: Pilot[int]) -> None:
    await ask(screen, engine, pilot)
    screen.retune(Tuning(depth=2, margin=0.9))
    screen.legend_row.legend.note("")


SMALL, LARGE = (80, 24), (140, 45)

STATES: dict[str, tuple[Play, type[ReplayEngine], object]] = {
    "welcome": (nothing, ReplayEngine, None),
    "loading": (nothing, ReplayEngine, Loading("reading tiny.gguf", 0.4)),
    "answer": (ask, ReplayEngine, None),
    "markdown": (markdown, Thinker, None),
    "thinking": (thinking, Thinker, None),
    "cursor": (cursor, ReplayEngine, None),
    "died": (died, ReplayEngine, None),
    "completing": (completing, ReplayEngine, None),
    "off": (off, ReplayEngine, loaded(off_reason="The target has no NextN block. /mtp chooses a drafter.")),
    "panels": (panels, ReplayEngine, None),
}

PICTURES = [
    *((state, SMALL, "ds4-dark") for state in STATES),
    *((state, LARGE, "ds4-dark") for state in ("welcome", "answer", "thinking", "cursor")),
    *((state, SMALL, "ds4-light") for state in ("answer", "thinking", "off")),
    ("answer", LARGE, "high-contrast"),
    ("answer", (20, 5), "ds4-dark"),
]


@pytest.mark.parametrize(
    ("state", "size", "theme"), PICTURES, ids=[f"{s}-{w}x{h}-{t}" for s, (w, h), t in PICTURES]
)
def test_picture(
    snap_compare: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    size: tuple[int, int],
    theme: str,
) -> None:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    monkeypatch.setattr("ds4chat.tui.panels.dock.DRAW_SECONDS", 0.0)
    play, kind, load = STATES[state]
    engine = kind(load=load)  # type: ignore[arg-type]
    settings = Settings(model="/models/tiny.gguf", mtp_draft=2, theme=theme)
    app = ChatApp(settings, engine, SettledRecorder())

    async def run_before(pilot: Pilot[int]) -> None:
        await pilot.pause()
        app.chat_screen.draw_frame()
        await play(app.chat_screen, engine, pilot)
        await pilot.pause()
        app.chat_screen.draw_frame()
        app.chat_screen.show_status()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=run_before)
