"""The text field of the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from ds4chat.text import without_controls
from ds4chat.tui.messages import PromptSubmitted
from ds4chat.tui.prompt.files import Folds
from ds4chat.tui.prompt.history import PromptHistory
from ds4chat.tui.prompt.menu import CompletionMenu

FOLD_LINES = 10
"""A paste of more lines is folded to one mark."""
FOLD_CHARACTERS = 4000
MENU_KEYS = ("enter", "tab", "up", "down")


class PromptText(TextArea):
    """Enter posts PromptSubmitted; the newline keys, or a backslash before Enter, begin a new line.

    Up and down go through the history from the first and last row. A long paste is shown as one mark, which
    one backspace removes and Tab writes out.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"prompt--fold"}
    BINDINGS: ClassVar[list[BindingType]] = [
        # A text area takes these keys before bindings are looked at, so _on_key looks them up itself. Of
        # the newline keys, ctrl+j is the one that every terminal sends.
        Binding("enter", "submit", "Send", id="prompt.send"),
        Binding("ctrl+j,shift+enter,alt+enter,ctrl+enter", "newline", "New line", id="prompt.newline"),
        Binding("tab", "complete", "Complete, or write out a folded paste", show=False, id="prompt.complete"),
        Binding("up", "cursor_up", "Line up, or an earlier prompt", show=False, id="prompt.older"),
        Binding("down", "cursor_down", "Line down, or a later prompt", show=False, id="prompt.newer"),
        Binding("pageup", "scroll_transcript(-1)", "Scroll the text up", show=False, id="prompt.page_up"),
        Binding(
            "pagedown", "scroll_transcript(1)", "Scroll the text down", show=False, id="prompt.page_down"
        ),
        Binding("end,ctrl+e", "cursor_line_end", "End of the line, or follow the text", id="prompt.end"),
    ]

    class SentBlank(Message):
        """Enter was pressed on a blank prompt."""

    @dataclass
    class ScrollRequested(Message):
        """The transcript should scroll by pages, or (0) follow its end."""

        by: int

    class QueueRecalled(Message):
        """The user wants to edit the newest queued prompt."""

    def __init__(self, menu: CompletionMenu, history: PromptHistory, *, id: str | None = None) -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            highlight_cursor_line=False,
            show_line_numbers=False,
            tab_behavior="focus",
        )
        self.cursor_blink = False
        self._menu = menu
        self.look_again: Callable[[], None] = lambda: None
        """Updates the completions at once: a key may come before the message about the last change."""
        self.history_list = history
        self.folds = Folds()
        self.last_sent = ("", "")
        """The prompt sent last: written out, and as it was in the field."""
        self.restored = ""
        """The text that was put back, if nothing else was in the field."""
        self.queued = 0
        """Number of queued prompts; up in an empty prompt brings back the newest."""

    # -- text

    @property
    def before_cursor(self) -> str:
        """The text up to the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    def put(self, text: str) -> None:
        """Replace the text, with the cursor at its end."""
        self.load_text(text)
        self.restored = ""
        self.move_cursor(self.document.end)

    def insert_folded(self, text: str, name: str = "", lines: int = 0) -> None:
        """Insert a text as one mark. ``name``, ``lines``: those of the file in it."""
        start, end = self.selection
        self._replace_via_keyboard(self.folds.add(text, name, lines), start, end)

    def get_line(self, line_index: int) -> Text:
        line = super().get_line(line_index)
        for match in Folds.MARK.finditer(line.plain):
            if self.folds.text_of(match.group()) is not None:
                line.stylize(self.get_component_rich_style("prompt--fold"), *match.span())
        return line

    # -- keys

    async def _on_key(self, event: events.Key) -> None:
        if event.character == "/" and self.text and self.text == self.restored:
            # A command begins, such as a second /undo: it must not be sent as part of the text.
            self.history_list.add(self.folds.expand(self.text))
            self.put("")
        if event.key in MENU_KEYS:
            self.look_again()
        if not (self._menu.is_open and self._menu_key(event.key)):
            name = self._action_of(event.key)
            if name == "prompt.send":
                self.action_submit()
            elif name == "prompt.newline":
                self.action_newline()
            elif name == "prompt.complete" and self._fold_at_cursor() is not None:
                self.action_complete()
            else:
                return  # on to the text area's own handler
        event.stop()
        event.prevent_default()

    def _action_of(self, key: str) -> str:
        """The name of the action that the user's keymap gives to a key here; may be empty."""
        bindings = self._bindings.copy()
        if self.app._keymap:
            bindings.apply_keymap(self.app._keymap)
        return next((b.id for b in bindings.key_to_bindings.get(key, ()) if b.id), "")

    def _menu_key(self, key: str) -> bool:
        """Handle a key while completions are shown; False if they do not change what it does."""
        chosen = self._menu.chosen
        if key in ("up", "down"):
            self._menu.move(-1 if key == "up" else 1)
        elif key == "tab" and chosen is not None:
            self.accept()
        elif (
            key == "enter"
            and chosen is not None
            and self.before_cursor[chosen.start :] != chosen.insert.strip()
        ):
            self.accept()
            if self.text.startswith("/") and chosen.final and chosen.insert == self.text:
                self.action_submit()
        else:
            return False
        return True

    def accept(self) -> None:
        """Write the chosen completion."""
        chosen = self._menu.chosen
        if chosen is None:
            return
        row, column = self.cursor_location
        length = len(self.before_cursor) - chosen.start
        self.replace(chosen.insert, (row, column - length), (row, column))
        self.move_cursor((row, column - length + len(chosen.insert)))

    def action_submit(self) -> None:
        """Send, or begin a new line after a backslash. The field is emptied at once: what is typed before the
        prompt is handled belongs to the next one."""
        row, column = self.cursor_location
        if self.document[row][:column].endswith("\\") and column == len(self.document[row]):
            self.replace("\n", (row, column - 1), (row, column))
            return
        text = self.folds.expand(self.text)
        if text.strip():
            self._menu.offer(())
            self.last_sent = (text, self.text)
            self.put("")
            self.post_message(PromptSubmitted(text))
        else:
            self.post_message(self.SentBlank())

    def action_newline(self) -> None:
        """Begin a new line."""
        start, end = self.selection
        self._replace_via_keyboard("\n", start, end)

    def action_complete(self) -> None:
        """Write out the folded text at the cursor."""
        span = self._fold_at_cursor()
        if span is None:
            raise SkipAction
        row = self.cursor_location[0]
        text = self.folds.text_of(self.document[row][slice(*span)])
        if text is not None:
            self.replace(text, (row, span[0]), (row, span[1]))

    def action_scroll_transcript(self, by: int) -> None:
        """Scroll the transcript by pages."""
        self.post_message(self.ScrollRequested(by))

    def action_cursor_line_end(self, select: bool = False) -> None:
        if self.cursor_at_end_of_line and not select:
            self.post_message(self.ScrollRequested(0))
        super().action_cursor_line_end(select)

    def action_cursor_up(self, select: bool = False) -> None:
        if select or self._row_of_cursor() > 0:
            super().action_cursor_up(select)
        elif self.queued and not self.text:
            self.post_message(self.QueueRecalled())
        elif (older := self.history_list.older(self.text)) is not None:
            self.put(older)

    def action_cursor_down(self, select: bool = False) -> None:
        if select or self._row_of_cursor() < self.wrapped_document.height - 1:
            super().action_cursor_down(select)
        elif (newer := self.history_list.newer()) is not None:
            self.put(newer)

    def action_delete_left(self) -> None:
        if not self._delete_fold(ending=True):
            super().action_delete_left()

    def action_delete_right(self) -> None:
        if not self._delete_fold(ending=False):
            super().action_delete_right()

    def _row_of_cursor(self) -> int:
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    def _fold_at_cursor(self) -> tuple[int, int] | None:
        row, column = self.cursor_location
        return self.folds.around(self.document[row], column)

    def _delete_fold(self, *, ending: bool) -> bool:
        """Delete the mark that ends (or begins) at the cursor; False if there is none."""
        span = self._fold_at_cursor() if self.selection.is_empty else None
        row, column = self.cursor_location
        if span is None or column == (span[0] if ending else span[1]):
            return False
        self.delete((row, span[0]), (row, span[1]))
        return True

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.paste(event.text)

    def paste(self, text: str) -> None:
        """Insert a pasted text: a long one as one mark."""
        text = without_controls(text)
        if text.count("\n") + 1 > FOLD_LINES or len(text) > FOLD_CHARACTERS:
            self.insert_folded(text)
        elif result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)
        self.focus()
