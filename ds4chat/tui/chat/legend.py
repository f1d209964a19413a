"""The legend of the transcript's colours, and the chip that says how to follow the end again."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from ds4chat.tui.kit.lines import Line, LinesView, Span, style_sheet
from ds4chat.tui.messages import CommandRequested

ORIGINS: tuple[Span, ...] = (
    ("accepted", "accepted"),
    ("corrected", "corrected"),
    ("bonus", "bonus"),
    ("plain", "plain"),
)
UNKNOWN: Span = ("unknown", "unknown")
TWO: tuple[Span, ...] = (("accepted", "accepted"), ("fallback", "corrected"))
APPROXIMATE: Span = ("by ratio alone", "approximate")


def legend_line(
    width: int, *, two_colours: bool, approximate: bool, unknown: bool, markdown: bool, hint: str
) -> Line:
    """The meaning of the tokens' looks, as many as fit, and a hint if there is room."""
    if markdown:
        words: list[Span] = [("finished replies are rendered Markdown", "muted")]
    else:
        words = list(TWO if two_colours else ORIGINS)
        if approximate:
            words.append(APPROXIMATE)
        if unknown:
            words.append(UNKNOWN)
    line: list[Span] = [("   ", "")]
    used = 3
    for text, role in words:
        gap = "  " if len(line) > 1 else ""
        if used + len(gap) + cell_len(text) > width:
            break
        line += [(gap, ""), (text, role)]
        used += len(gap) + cell_len(text)
    room = width - used - cell_len(hint)
    if hint and room >= 3:
        line += [(" " * (room - 1), ""), (hint, "muted")]
    return tuple(line)


class Legend(LinesView):
    """The looks of the tokens."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"lines--{role}" for role in ("accepted", "corrected", "bonus", "plain", "approximate", "unknown")
    }

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: tuple[bool, bool, bool, bool, str] = (False, False, False, False, "")

    def show(self, *, two_colours: bool, approximate: bool, unknown: bool, markdown: bool, hint: str) -> None:
        """Explain these looks."""
        self._shown = (two_colours, approximate, unknown, markdown, hint)
        self._draw_line()

    def on_resize(self) -> None:
        self._draw_line()

    def on_click(self, event: events.Click) -> None:
        """A click on the hint runs it, one on a look explains it."""
        event.stop()
        self.post_message(CommandRequested("/help"))

    def _draw_line(self) -> None:
        two, approximate, unknown, markdown, hint = self._shown
        line = legend_line(
            self.size.width,
            two_colours=two,
            approximate=approximate,
            unknown=unknown,
            markdown=markdown,
            hint=hint,
        )
        self.set_lines([line])


class FollowChip(Static):
    """Shown while the transcript does not follow its end."""

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        await self.app.run_action("screen.follow", default_namespace=self)


class LegendRow(Horizontal):
    """The legend with the chip at its right, and for a few seconds a note about the last change."""

    SAY_SECONDS = 4.0

    DEFAULT_CSS = style_sheet(__package__, "legend.tcss")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.legend = Legend(id="legend")
        self.chip = FollowChip(" ▼ End: follow ", id="follow-chip")
        self.chip.display = False
        self.word = Static(id="legend-word", markup=False)
        self.word.display = False
        self._said = 0

    def compose(self) -> ComposeResult:
        yield self.legend
        yield self.word
        yield self.chip

    def say(self, text: str) -> None:
        """Show a note at the right for a while; as a notice if the screen is too low for this row."""
        if not self.display:
            self.notify(text, markup=False)
            return
        self._said += 1
        said = self._said
        self.word.update(text)
        self.word.display = True
        self.set_timer(self.SAY_SECONDS, lambda: self._unsay(said))

    def _unsay(self, said: int) -> None:
        if said == self._said:
            self.word.display = False
