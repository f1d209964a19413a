"""The transcript widget: one line-API list for the whole conversation, whatever its length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import get_character_cell_size
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip

from ds4chat.engine.events import Level
from ds4chat.tui.conversation import Reply, Turn, UserTurn
from ds4chat.tui.kit.drawn import DrawnLines, overlay
from ds4chat.tui.kit.lines import style_sheet
from ds4chat.tui.kit.scrolling import GrowingView
from ds4chat.tui.messages import TokenPicked
from ds4chat.tui.transcript import cursor as moves
from ds4chat.tui.transcript.blocks import GUTTER, Block, NoteBlock, ReplyBlock, UserBlock
from ds4chat.tui.transcript.cursor import Cursor
from ds4chat.tui.transcript.stack import Stack

ROLES = (
    "plain",
    "accepted",
    "corrected",
    "bonus",
    "unknown",
    "approximate",
    "user",
    "user-bar",
    "name",
    "note",
    "warning",
    "error",
    "fold",
    "mark",
    "thinking-bar",
)
"""Looks of the rows: component classes ``transcript--<name>``."""
MD_ROLES = (
    "heading",
    "code",
    "quote",
    "bullet",
    "rule",
    "link",
    "url",
    "em",
    "strong",
    "strike",
    "code-block",
    "comment",
    "keyword",
    "name",
    "literal",
)
"""Looks of rendered Markdown: ``transcript--md-<name>``."""
RENDER_AHEAD = 1
"""Screens of Markdown that are rendered beyond the ones in sight."""


class Transcript(GrowingView, DrawnLines, can_focus=True):
    """Blocks of rows, drawn only where they are in sight.

    It follows its end until the user scrolls away, and again from End on. Posts TokenPicked when a token is
    picked, and FollowChanged.
    """

    DEFAULT_CSS = style_sheet(__package__, "view.tcss")
    STYLES = "transcript"
    PARTIAL = frozenset({"cursor", "md-em", "md-strong", "md-strike"})
    SELECT_FROM = GUTTER
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"transcript--{role}" for role in ROLES),
        *(f"transcript--md-{role}" for role in MD_ROLES),
        "transcript--cursor",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "token(-1)", "Previous token", show=False, id="transcript.previous_token"),
        Binding("right", "token(1)", "Next token", show=False, id="transcript.next_token"),
        Binding("up", "line(-1)", "Line or token above", show=False, id="transcript.up"),
        Binding("down", "line(1)", "Line or token below", show=False, id="transcript.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="transcript.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="transcript.page_down"),
        Binding("home", "top", "Beginning of the conversation", show=False, id="transcript.top"),
        Binding("end", "follow", "Follow the end", show=False, id="transcript.follow"),
        Binding("enter,space", "toggle_fold", "Open or fold", show=False, id="transcript.fold"),
    ]

    class CursorLeft(Message):
        """The token cursor was removed."""

    @dataclass
    class VersionWanted(Message):
        """A click asked for another version of a turn."""

        turn: Turn
        by: int
        """To an older version (-1) or a newer one (1)."""

    def __init__(self, *, markdown: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.stack = Stack()
        self._markdown = markdown
        self._two_colours = False
        self._cursor: Cursor | None = None
        self._width = 0

    # -- content

    def show_turns(self, turns: Iterable[Turn]) -> None:
        """Show a conversation instead of what is shown."""
        self._cursor = None
        self.stack = Stack(self._block(turn) for turn in turns)
        self._settle(0)
        self.refresh()  # also below the end: what was shown may have been longer
        self.action_follow()

    def add_turn(self, turn: Turn) -> None:
        """Append a prompt or a reply, and follow it."""
        self.stack.append(self._block(turn))
        self._settle(len(self.stack) - 1)
        self.action_follow()

    def add_note(self, text: str, level: Level = "info") -> None:
        """Append sentences of ds4chat itself."""
        self.stack.append(NoteBlock(text, level, self._layout_width))
        self._settle(len(self.stack) - 1)
        self.action_follow()

    def grow(self, reply: Reply) -> None:
        """Draw what the reply gained since the last call."""
        block = self.stack.find(reply)
        if block is not None:
            first = block.grow()
            self._settle(self.stack.index(block), first)

    def recolour(self, reply: Reply) -> None:
        """Draw a reply again whose tokens were revised."""
        block = self.stack.find(reply)
        if block is not None:
            block.rebuild()
            self._settle(self.stack.index(block))

    def shows(self, turn: Turn) -> bool:
        """This turn is in the transcript."""
        return self.stack.find(turn) is not None

    def measure(self) -> None:
        """Lay out again what surrounds the turns' texts, such as their versions."""
        with self._top_kept():
            for block in self.stack:
                block.measure()

    def _block(self, turn: Turn) -> Block:
        if isinstance(turn, UserTurn):
            return UserBlock(turn, self._layout_width)
        return ReplyBlock(turn, self._layout_width, markdown=self._markdown, two_colours=self._two_colours)

    @property
    def is_empty(self) -> bool:
        """Nothing is shown."""
        return not self.stack.height

    # -- views

    @property
    def markdown(self) -> bool:
        """Finished answers are shown as Markdown."""
        return self._markdown

    def show_markdown(self, on: bool) -> None:
        """Show finished answers as rendered Markdown, or as tokens. What is at the top stays there."""
        self._markdown = on
        self._restyle(lambda block: block.show_markdown(on))
        if self._cursor is not None and on:
            self.leave_cursor()

    @property
    def two_colours(self) -> bool:
        """Accepted drafts against the rest, instead of one look for each origin."""
        return self._two_colours

    def show_two_colours(self, on: bool) -> None:
        """Colour by accepted drafts against the rest, or by all origins."""
        self._two_colours = on
        self._restyle(lambda block: block.colour(on))

    def toggle_thinking(self) -> bool:
        """Open all thinking if any is folded, else fold all; False where there is none."""
        replies = [block for block in self.stack.replies if block.reply.thinking]
        opening = any(not block.thinking_open for block in replies)
        self._restyle(lambda block: block.toggle() if block.thinking_open != opening else None)
        return bool(replies)

    def _restyle(self, change: Callable[[ReplyBlock], object]) -> None:
        with self._top_kept():
            for block in self.stack.replies:
                change(block)

    # -- layout

    @property
    def _layout_width(self) -> int:
        return self._width or 80

    def _settle(self, first: int, row: int = 0) -> None:
        """Update the heights from block ``first`` on, and draw from its row ``row`` on."""
        before = self.stack.height
        self.stack.measure(first)
        size = Size(self._layout_width, self.stack.height)
        if size != self.virtual_size:
            self.grow_to(size)
        if self._markdown:
            self.render_in_sight()
        self.refresh_rows(self.stack.top(first) + row, max(before, self.stack.height))

    @contextmanager
    def _top_kept(self) -> Iterator[None]:
        """Lay blocks out again inside; the row at the top of the screen stays there."""
        anchor = None if self.is_empty else self.stack.at(self.scroll_offset.y)
        yield
        self._settle(0)
        if anchor is not None and not self.following:
            index, row = anchor
            y = self.stack.top(index) + min(row, self.stack[index].height - 1)
            self.scroll_to(y=y, animate=False, immediate=True)

    def blocks_in_sight(self, beyond: int = 0) -> list[Block]:
        """The blocks that are at least partly on the screen, or within ``beyond`` rows of it."""
        if self.is_empty:
            return []
        top = self.scroll_offset.y
        first, _ = self.stack.at(top - beyond)
        last, _ = self.stack.at(top + self.size.height - 1 + beyond)
        return [self.stack[index] for index in range(first, last + 1)]

    def render_in_sight(self) -> None:
        """Render the Markdown of the blocks in sight and a little beyond, without moving what is in sight.

        Until then a block has the height of its tokens.
        """
        if not self.size.height:
            return
        beyond = self.size.height * RENDER_AHEAD
        replies = [block for block in self.blocks_in_sight(beyond) if isinstance(block, ReplyBlock)]
        waiting = [block for block in replies if block.needs_rendering]
        if not waiting:
            return
        from ds4chat.tui.transcript.markdown import markdown_page

        styles = {role: self.style_of(f"md-{role}") for role in MD_ROLES}
        with self._top_kept():
            for block in waiting:
                block.render_with(lambda text, width: markdown_page(text, width, styles))

    def on_resize(self) -> None:
        width = self.scrollable_content_region.width
        if width and width != self._width:
            self._width = width
            with self._top_kept():
                for block in self.stack:
                    block.resize(width)
        elif self.following:
            self.scroll_end(animate=False, immediate=True, x_axis=False)

    # -- scrolling

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._markdown and round(new_value) != round(old_value):
            self.call_after_refresh(self.render_in_sight)

    def action_top(self) -> None:
        """The beginning of the conversation."""
        self.scroll_home(animate=False, immediate=True, x_axis=False)

    def action_page(self, by: int) -> None:
        """Scroll by pages."""
        step = max(1, self.size.height - 2)
        self.scroll_to(y=self.scroll_offset.y + by * step, animate=False, immediate=True)

    def action_line(self, by: int) -> None:
        """Move the token cursor by rows, or scroll by a line while there is none."""
        if self._cursor is None:
            self.scroll_to(y=self.scroll_offset.y + by, animate=False, immediate=True)
        else:
            self._move(moves.by_rows(self.stack, self._cursor, by))

    # -- token cursor

    @property
    def cursor(self) -> tuple[Reply, int] | None:
        """The reply and the index of its token under the cursor."""
        return None if self._cursor is None else (self._cursor.block.reply, self._cursor.token)

    def enter_cursor(self) -> bool:
        """Put the cursor on the last token in sight; False where no token is in sight."""
        top = self.scroll_offset.y
        return self._move(moves.last_between(self.stack, top, top + self.size.height - 1))

    def leave_cursor(self) -> None:
        """Remove the cursor."""
        if self._cursor is not None:
            self._cursor = None
            self.refresh()
            self.post_message(self.CursorLeft())

    def action_token(self, by: int) -> None:
        """Move the cursor by tokens; the first press puts it on the last token in sight."""
        if self._cursor is None:
            self.enter_cursor()
        else:
            self._move(moves.by_tokens(self.stack, self._cursor, by))

    def pick(self, reply: Reply, token: int) -> bool:
        """Put the cursor on a token of a reply and bring it into sight; False where it is not shown."""
        block = self.stack.find(reply)
        if block is None:
            return False
        if reply.tokens[token].thinking and not block.thinking_open:
            self.toggle(block)
        if not block.shows(token):
            return False
        self._put_cursor(Cursor(block, token))
        return True

    def _move(self, found: Cursor | None) -> bool:
        """Move the cursor to a place, if one was found, and post TokenPicked."""
        if found is None:
            return False
        self._put_cursor(found)
        place = found.block.reply.place(found.token)
        if place is not None:
            self.post_message(TokenPicked(found.block.reply.number, place.step.index, place.index))
        return True

    def _put_cursor(self, cursor: Cursor) -> None:
        self._cursor = cursor
        places = cursor.block.locate(cursor.token)
        if places:
            y = self.stack.top_of(cursor.block) + places[0][0]
            region = Region(0, y, 1, len(places))
            self.scroll_to_region(region, animate=False, immediate=True, force=True, x_axis=False)
        self.refresh()

    # -- folds and clicks

    def action_toggle_fold(self) -> None:
        """Open or fold the lowest thinking or long prompt on the screen; with a cursor, its reply's."""
        blocks = self.blocks_in_sight() if self._cursor is None else [self._cursor.block]
        for block in reversed(blocks):
            if self.toggle(block):
                break

    def toggle(self, block: Block) -> bool:
        """Open or fold in a block; the row at the top of the screen stays there."""
        if not block.toggle():
            return False
        if self._cursor is not None and not self._cursor.block.shows(self._cursor.token):
            self.leave_cursor()
        y = self.scroll_offset.y
        following = self.following
        self.following = False
        self._settle(self.stack.index(block))
        self.scroll_to(y=min(y, self.max_scroll_y), animate=False, immediate=True)
        self.following = following
        self.set_following(y >= self.max_scroll_y)
        self.refresh()
        return True

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        y = offset.y + self.scroll_offset.y
        if y >= self.stack.height:
            return
        index, row = self.stack.at(y)
        block = self.stack[index]
        hit = block.hit(row, _character_at(block.text(row), offset.x) - GUTTER)
        if hit.what == "fold":
            self.toggle(block)
        elif hit.what == "token" and isinstance(block, ReplyBlock):
            self._move(Cursor(block, hit.token))
        elif hit.what == "version" and block.turn is not None:
            self.post_message(self.VersionWanted(block.turn, hit.by))

    # -- selection

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it is shown."""
        return self.stack.selected(selection), "\n"

    # -- drawing

    def notify_style_update(self) -> None:
        if self._markdown:
            for block in self.stack.replies:
                block.show_markdown(True)
            self.call_after_refresh(self._settle, 0)
        super().notify_style_update()

    def lines_drawn(self) -> range:
        return range(self.stack.height)

    def draw_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y >= self.stack.height:
            return self.strip_of((), width)
        index, row = self.stack.at(y)
        block = self.stack[index]
        own = self.style_of("")
        parts = [(text, self.style_of(r) if isinstance(r, str) else own + r) for text, r in block.row(row)]
        if self._cursor is not None and self._cursor.block is block:
            for at, start, end in self._cursor.block.locate(self._cursor.token):
                if at == row:
                    end = max(end, start + 1)
                    parts = overlay(parts, GUTTER + start, GUTTER + end, self.style_of("cursor"))
        return self.strip_of(parts, width)


def _character_at(text: str, cell: int) -> int:
    """Index of the character that covers a cell of a row."""
    at = 0
    for index, char in enumerate(text):
        at += get_character_cell_size(char)
        if cell < at:
            return index
    return len(text)
