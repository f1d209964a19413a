"""The prompt: queued prompts, completions and the text field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import TextArea

from ds4chat.tui.kit.lines import Line, LinesView, style_sheet
from ds4chat.tui.prompt.completion import suggest
from ds4chat.tui.prompt.history import PromptHistory
from ds4chat.tui.prompt.menu import CompletionMenu
from ds4chat.tui.prompt.text import PromptText

QUEUE_ROWS = 3


class QueueView(LinesView):
    """Prompts that wait for their turn, the next one first."""

    def show(self, prompts: Sequence[str], why: str) -> None:
        """Show these prompts, and why they wait; without any it is hidden."""
        self.display = bool(prompts)
        lines: list[Line] = []
        for prompt in list(prompts)[:QUEUE_ROWS]:
            first = prompt.strip().splitlines()[0] if prompt.strip() else ""
            lines.append((("  ⋯ ", "mark"), (first, "muted")))
        more = len(prompts) - QUEUE_ROWS
        hint = f"{f'and {more} more · ' if more > 0 else ''}{why} · ↑ edits the last, /unqueue drops all"
        lines.append(((f"    {hint}", "muted"),))
        self.set_lines(lines)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(PromptText.QueueRecalled())


class PromptArea(Vertical):
    """The text field, with the completions and the queue above it."""

    DEFAULT_CSS = style_sheet(__package__, "area.tcss")

    def __init__(self, prompts: Iterable[str] = (), *, id: str | None = None) -> None:
        """``prompts`` of earlier sessions, oldest first."""
        super().__init__(id=id)
        self.menu = CompletionMenu(id="completions")
        self.queue_view = QueueView(id="queue")
        self.queue_view.display = False
        self.text_field = PromptText(self.menu, PromptHistory(prompts), id="prompt")
        self.text_field.look_again = self.offer
        self.themes: Callable[[], Iterable[str]] = tuple
        """Gives the names that complete /theme."""
        self._dismissed: str | None = None
        """The text for which the user closed the completions."""

    def compose(self) -> ComposeResult:
        yield self.queue_view
        yield self.menu
        yield self.text_field

    @property
    def text(self) -> str:
        """The text of the prompt, with folded texts written out."""
        return self.text_field.folds.expand(self.text_field.text)

    def show_queue(self, prompts: Sequence[str], why: str = "") -> None:
        """Show the prompts that wait."""
        self.text_field.queued = len(prompts)
        self.queue_view.show(prompts, why)

    def put_back(self, texts: Sequence[str]) -> None:
        """Insert prompts before the text of the prompt; the one sent last with its texts folded again."""
        sent, folded = self.text_field.last_sent
        parts = [folded if text == sent else text for text in texts]
        if self.text_field.text.strip():
            parts.append(self.text_field.text)
        self.text_field.put("\n\n".join(parts))
        self.text_field.restored = self.text_field.text if len(parts) == len(texts) else ""
        self.text_field.focus()

    def refuse(self, text: str, problem: str) -> None:
        """Say why a line cannot be sent, and put it back."""
        self.notify(problem, severity="warning", markup=False)
        self.put_back([text])

    def begin(self, text: str) -> None:
        """Begin a line for the user to complete; a draft in the prompt goes into the history."""
        self.remember(self.text_field.text)
        self.text_field.put(text)
        self.text_field.focus()

    def close_menu(self) -> bool:
        """Close the completions; False if none are shown."""
        if not self.menu.is_open:
            return False
        self._dismissed = self.text_field.before_cursor
        self.menu.offer(())
        return True

    @on(TextArea.Changed)
    def text_changed(self, event: TextArea.Changed) -> None:
        """Offer what may complete the text."""
        event.stop()
        self.offer()

    def offer(self) -> None:
        """Offer what may complete the current text."""
        before = self.text_field.before_cursor
        if before in (self._dismissed, self.menu.completed):
            return
        self._dismissed = None
        wanted = before.startswith("/") or "@" in before[before.rfind("\n") + 1 :]
        found = suggest(before, self.themes()) if wanted else []
        if any(s.final and before[s.start :] == s.insert for s in found):
            # Written in full: Enter must send it, not take another one that has it as a part.
            found = []
        self.menu.offer(found, before)

    @on(CompletionMenu.Picked)
    def completion_clicked(self, event: CompletionMenu.Picked) -> None:
        """Write the suggestion that was clicked."""
        event.stop()
        self.text_field.accept()
        self.text_field.focus()

    def remember(self, text: str) -> None:
        """Add a prompt to the history."""
        self.text_field.history_list.add(text)
