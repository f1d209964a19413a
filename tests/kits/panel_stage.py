"""What the panel tests share: made-up steps with known counts, and an app that holds one dock."""

from __future__ import annotations

from typing import Any

from textual.app import App, ComposeResult
from textual.message import Message

from ds4chat.engine.events import (
    DrafterInfo,
    Judged,
    Loaded,
    ModelInfo,
    Outcome,
    Phases,
    Step,
    Token,
    Tuning,
)
from ds4chat.tui import themes
from ds4chat.tui.panels.dock import PanelDock

TARGET = ModelInfo(
    "/m/t.gguf", "Target", "llama", "Q4_1", 135_000_000, 98_000_000, 8192, 30, 576, 49152, True
)
LOADED = Loaded(TARGET, DrafterInfo("eagle3", "/m/e.gguf", 16), "", 4096, 2, "CPU", plain_ms=50.0)
OFF = Loaded(
    TARGET, None, "the target has no NextN block; give a support file with --mtp.", 4096, 2, "CPU", 50.0
)


def judged(position: int, accepted: bool, draft: str = " the", target: str = " the") -> Judged:
    """A row; a rejected one has ratio 0.25 and another target token."""
    return Judged(
        position,
        draft=5,
        draft_text=draft,
        target=5 if accepted else 6,
        target_text=target,
        accepted=accepted,
        by="match" if accepted else "",
        ratio=1.0 if accepted else 0.25,
        gap=3.5,
        draft_gap=2.25,
        draft_prob=0.875,
    )


def step(index: int, accepted: int, drafted: int, tuning: Tuning | None = None, reply: int = 1) -> Step:
    """A step that takes 40 ms: drafts are judged up to the first rejected one."""
    rows = [judged(p, p <= accepted) for p in range(1, min(drafted, accepted + 1) + 1)]
    tokens = [Token(5, " the", "accepted")] * accepted
    tokens.append(Token(6, " a", "bonus" if accepted == drafted else "corrected"))
    outcome: Outcome = "full" if accepted == drafted else "partial" if accepted else "miss"
    tuning = tuning or Tuning(depth=drafted)
    ms = Phases(draft=4.0, verify=32.0, accept=1.0, rollback=1.0, other=2.0, total=40.0)
    return Step(
        reply, index, tuple(tokens), drafted, tuple(rows), outcome, ms, tuning, drafted, "eagle3", 100
    )


class Stage(App[None]):
    """One dock over the whole screen; ``seen`` are the messages that reached the app."""

    CSS = "PanelDock { width: 1fr; }"

    def __init__(self, panels: str = "acceptance timings confidence tuning") -> None:
        super().__init__()
        self.dock = PanelDock(panels)
        self.seen: list[Message] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.variable_defaults()

    def compose(self) -> ComposeResult:
        yield self.dock

    def on_mount(self) -> None:
        loaded, _ = themes.load_themes(None)
        for theme in loaded:
            self.register_theme(theme)
        self.theme = themes.DEFAULT_THEME
        self.set_interval(0.05, self.dock.draw_if_due)

    def keep(self, message: Message) -> None:
        """Remember a message."""
        self.seen.append(message)

    on_tuning_changed = on_token_picked = keep
    on_settings_changed = on_tuning_panel_preset_saved = keep

    def of(self, kind: type[Any]) -> list[Any]:
        """The messages of one kind, oldest first."""
        return [message for message in self.seen if isinstance(message, kind)]
