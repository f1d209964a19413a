"""The legend of the transcript's colours, and the chip that says how to follow the end again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.timer import Timer
from textual.widgets import Static

from ds4chat.tui.kit.lines import Line, LinesView, Span, style_sheet
from ds4chat.tui.messages import CommandRequested

ORIGINS: tuple[Span, ...] = tuple((name, name) for name in ("accepted", "corrected", "bonus", "plain"))
UNKNOWN: Span = ("unknown", "unknown")
TWO: tuple[Span, ...] = (("accepted", "accepted"), ("fallback", "corrected"))
APPROXIMATE: Span = ("by ratio alone", "approximate")
MARKDOWN: Span = ("finished replies are rendered Markdown", "muted")
HINT: Span = ("F1 help", "muted")


def legend_words(
    *,
    two_colours: bool = False,
    approximate: bool = False,
    unknown: bool = False,
    markdown: bool = False,
) -> list[Span]:
    """The looks of the tokens, each with its meaning."""
    if markdown:
        return [MARKDOWN]
    return [
        *(TWO if two_colours else ORIGINS),
        *([APPROXIMATE] if approximate else []),
        *([UNKNOWN] if unknown else []),
    ]


def legend_line(words: Sequence[Span], width: int, note: str = "") -> Line:
    """As many of the words as fit and the hint if there is room, beside the note at the right."""
    if note:
        beside = width - cell_len(note) - 2
        left = legend_line(words, beside)
        room = beside - sum(cell_len(text) for text, _ in left)
        return (*left, (" " * room, ""), (f" {note} ", "note"))
    line: list[Span] = [(" ", "")]
    used = 1
    for word in words:
        if used + 2 + cell_len(word[0]) > width:
            break
        line += [("  ", ""), word]
        used += 2 + cell_len(word[0])
    room = width - used - cell_len(HINT[0])
    if room >= 3:
        line += [(" " * (room - 1), ""), HINT]
    return tuple(line)


class Legend(LinesView):
    """The looks of the tokens, and for a few seconds a note about the last change."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"lines--{role}"
        for role in ("accepted", "corrected", "bonus", "plain", "approximate", "unknown", "note")
    }

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._words: Sequence[Span] = ORIGINS
        self._note = ""

    def show(self, words: Sequence[Span]) -> None:
        """Show these."""
        self._words = words
        self.on_resize()

    def note(self, text: str) -> None:
        """Show this at the right; nothing there if it is empty."""
        self._note = text
        self.on_resize()

    def on_resize(self) -> None:
        self.set_lines([legend_line(self._words, self.size.width, self._note)])

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(CommandRequested("/help"))


class FollowChip(Static):
    """Shown while the transcript does not follow its end."""

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        await self.app.run_action("screen.follow", default_namespace=self)


class LegendRow(Horizontal):
    """The legend with the chip at its right."""

    SAY_SECONDS = 4.0

    DEFAULT_CSS = style_sheet(__package__, "legend.tcss")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.legend = Legend(id="legend")
        self.chip = FollowChip(" ▼ End: follow ", id="follow-chip")
        self.chip.display = False
        self.said = ""
        """The note that is shown now."""
        self._hiding: Timer | None = None

    def compose(self) -> ComposeResult:
        yield self.legend
        yield self.chip

    def say(self, text: str) -> None:
        """Show a note at the right for a while; as a notice if the screen is too low for this row."""
        self.said = text
        if self._hiding is not None:
            self._hiding.stop()
        self._hiding = self.set_timer(self.SAY_SECONDS, self.unsay)
        if self.display:
            self.legend.note(text)
        else:
            self.notify(text, timeout=self.SAY_SECONDS)

    def unsay(self) -> None:
        """Take the note away."""
        self.said = ""
        self.legend.note("")
