"""Turns of a conversation as rows of styled text, independent of the screen. Pure.

A row is a tuple of (text, role); a role is the part after ``transcript--`` of a component class, or a style
where a renderer chose one. Every row begins with a gutter of GUTTER cells, which is never copied.
"""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, NamedTuple

from ds4chat.engine.events import Level
from ds4chat.text import counted, drawn
from ds4chat.tui.conversation import Reply, Turn, UserTurn
from ds4chat.tui.kit.charts import changes
from ds4chat.tui.transcript.flow import Flow
from ds4chat.tui.transcript.page import Page, Row, Source, StyledSpan
from ds4chat.tui.transcript.pieces import code_blocks
from ds4chat.tui.transcript.summary import header_spans, summary_lines

GUTTER = 3
INDENT: StyledSpan = (" " * GUTTER, "")
MARGIN = 1
"""Cells kept free at the right."""

KINDS = ("plain", "accepted", "corrected", "bonus", "approximate", "unknown")
"""Role of a token by its kind in a Flow."""

FALLBACK = "corrected"
"""With two colours, how every token looks that is no accepted draft."""

FOLD_FROM = 14
"""A prompt of more rows is folded."""
FOLD_TO = 8


class Hit(NamedTuple):
    """What a click on a place in a block is meant for: a token, a fold, another version, or nothing."""

    what: str
    """"token", "fold", "version" or ""."""
    token: int = -1
    by: int = 0
    """To an older version (-1) or a newer one (1)."""


NOTHING = Hit("")


class Spot(NamedTuple):
    """A stretch of a block's text."""

    start: int
    stop: int
    thinking: bool = False


Place = tuple[int, int]
"""Row and column."""


def found_in(text: str, pattern: re.Pattern[str], *, thinking: bool = False) -> list[Spot]:
    """Where a pattern is found in a text."""
    return [Spot(*match.span(), thinking) for match in pattern.finditer(text)]


def place_in(flow: Flow, spot: Spot, above: int) -> tuple[Place, Place]:
    """Row and column of both ends of a stretch of a flow that begins at row ``above``."""
    first, last = flow.row_of(spot.start), flow.row_of(max(spot.start, spot.stop - 1))
    return (above + first, spot.start - flow.row(first)[0]), (above + last, spot.stop - flow.row(last)[0])


class Block:
    """Base: a piece of the transcript with a height and rows."""

    height: int = 0
    turn: Turn | None = None
    """What it shows; None for sentences of ds4chat itself."""

    def resize(self, width: int) -> None:
        """Lay out for a width in cells, gutter and margin included."""
        raise NotImplementedError

    def row(self, index: int) -> Row:
        """One row, gutter included. ``index`` is below ``height``."""
        raise NotImplementedError

    def text(self, index: int) -> str:
        """One row as plain text, gutter included."""
        return "".join(text for text, _ in self.row(index))

    def joins(self, index: int) -> bool:
        """The next row continues this one's line."""
        return False

    def margin(self, index: int) -> int:
        """Characters at the left of a row that are decoration and not part of its text."""
        return 0

    def source(self, index: int) -> Source | None:
        """The text as it was written of a part that begins at this row and is rendered."""
        return None

    def hit(self, index: int, column: int) -> Hit:
        """What is at a row and a character of its text, not counting the gutter."""
        return NOTHING

    def toggle(self) -> bool:
        """Open or close its fold; False if it has none."""
        return False

    def measure(self) -> None:
        """Lay out again what surrounds the text, such as the number of versions."""

    # -- finding

    def find(self, pattern: re.Pattern[str]) -> list[Spot]:
        """Where a pattern is found, in order, also in what is folded."""
        return []

    def hides(self, spot: Spot) -> bool:
        """The spot is in what is folded."""
        return False

    def place_of(self, spot: Spot) -> tuple[Place, Place]:
        """Row and column of a spot's first character and of its end, not counting the gutter."""
        raise NotImplementedError


def versions_text(turn: Turn) -> str:
    """Which version of a turn is shown, as in ``‹ 2/3 ›``; empty if it is the only one."""
    if turn.key is None or turn.key not in turn.versions:
        return ""
    return f"‹ {turn.versions.index(turn.key) + 1}/{len(turn.versions)} ›"


def versions_hit(shown: str, column: int) -> Hit:
    """The left half of that text goes to an older version, the right half to a newer one."""
    if not 0 <= column < len(shown):
        return NOTHING
    return Hit("version", by=-1 if column < len(shown) / 2 else 1)


def text_width(width: int) -> int:
    """Cells for text in a row."""
    return max(1, width - GUTTER - MARGIN)


class UserBlock(Block):
    """A prompt. A long one is folded to its first rows."""

    BAR: ClassVar[StyledSpan] = ("▌  ", "user-bar")

    def __init__(self, turn: UserTurn, width: int) -> None:
        self.turn: UserTurn = turn
        self._flow = Flow(text_width(width))
        self._flow.append((turn.text, 0))
        self._folded = self._flow.height > FOLD_FROM
        self.measure()

    def measure(self) -> None:
        rows = max(1, self._flow.height)
        self._shown = FOLD_TO if self._folded and rows > FOLD_FROM else rows
        self._hidden = rows - self._shown
        self._foldable = rows > FOLD_FROM
        self._versions = versions_text(self.turn)
        self.height = self._shown + self._foldable + bool(self._versions) + 1

    def resize(self, width: int) -> None:
        self._flow.resize(text_width(width))
        self.measure()

    def row(self, index: int) -> Row:
        if index < self._shown:
            text = self._flow.row_text(index) if index < self._flow.height else ""
            return self.BAR, (text, "user")
        if index == self._shown and self._foldable:
            more = f"▸ {self._hidden} more lines" if self._folded else "▾ fold"
            return self.BAR, (more, "fold")
        if index == self._shown + self._foldable and self._versions:
            return self.BAR, (self._versions, "fold")
        return ()

    def joins(self, index: int) -> bool:
        return index < self._shown - 1 and self._flow.continues(index)

    def find(self, pattern: re.Pattern[str]) -> list[Spot]:
        return found_in(self._flow.text, pattern)

    def hides(self, spot: Spot) -> bool:
        return self._flow.row_of(spot.start) >= self._shown

    def place_of(self, spot: Spot) -> tuple[Place, Place]:
        return place_in(self._flow, spot, 0)

    def hit(self, index: int, column: int) -> Hit:
        if self._foldable and index == self._shown:
            return Hit("fold")
        return versions_hit(self._versions, column) if index == self._shown + self._foldable else NOTHING

    def toggle(self) -> bool:
        if not self._foldable:
            return False
        self._folded = not self._folded
        self.measure()
        return True


class NoteBlock(Block):
    """Sentences of ds4chat itself, such as the answer to a command."""

    def __init__(self, text: str, level: Level, width: int) -> None:
        self._text = drawn(text)
        self._role = {"info": "note", "warning": "warning", "error": "error"}[level]
        self._lines: list[str] = []
        self.resize(width)

    def resize(self, width: int) -> None:
        room = text_width(width)
        self._lines = [
            piece for line in self._text.split("\n") for piece in (textwrap.wrap(line, room) or [""])
        ]
        self.height = len(self._lines) + 1

    def row(self, index: int) -> Row:
        if index >= len(self._lines):
            return ()
        return ("·  " if index == 0 else "   ", self._role), (self._lines[index], self._role)


class TokenFlow(Flow):
    """The tokens of a reply's answer or of its thinking."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.numbers: list[int] = []
        """Index in the reply of each token."""

    def index(self, number: int) -> int:
        """Index here of a token of the reply."""
        return bisect_left(self.numbers, number)

    def hit(self, row: int, column: int) -> Hit:
        """The token at a character of a row; nothing at the text after the reply's last token."""
        found = self.token_at(row, column)
        return NOTHING if found is None or found >= len(self.numbers) else Hit("token", self.numbers[found])


Renderer = Callable[[str, int], Page]
"""Markdown text and a width in cells -> rows without gutter."""


class ReplyBlock(Block):
    """A reply: header, folded thinking, text as tokens or as Markdown, and a summary."""

    def __init__(
        self, reply: Reply, width: int, *, markdown: bool = False, two_colours: bool = False
    ) -> None:
        self.reply = self.turn = reply
        self._room = text_width(width)
        self._two = two_colours
        self.thinking_open = False
        self.markdown = markdown
        self._rendered: Page | None = None
        self._footer: list[Row] = []
        self._versions = ""
        """The footer's last row, where there are other versions."""
        self._header: Row = ()
        self.rebuild()

    # -- content

    def rebuild(self) -> None:
        """Lay out the whole reply again, because its tokens were revised."""
        self._flow = TokenFlow(self._room)
        self._thought = TokenFlow(self._room)
        self._tokens_added = 0
        self._steps_added = 0
        self._tail_added = False
        self._marks: dict[int, str] = {}
        """Where the tuning changed: by the first token with the new one, the step and the differences."""
        self.grow()

    def grow(self) -> int:
        """Add what the reply gained; returns the first row that may have changed."""
        reply = self.reply
        before, header = self._top_rows(), self._header
        first = before + max(0, self._flow.height - 1)
        answer: list[tuple[str, int]] = []
        thought: list[tuple[str, int]] = []
        by_ratio = self._ratio_tokens()
        added = self._tokens_added
        for number, token in enumerate(reply.tokens[added:], start=added):
            new, flow = (thought, self._thought) if token.thinking else (answer, self._flow)
            flow.numbers.append(number)
            kind = "approximate" if number in by_ratio else token.origin
            new.append((token.text, KINDS.index(kind)))
        self._tokens_added = len(reply.tokens)
        self._flow.append(*answer)
        self._thought.append(*thought)
        if (reply.tail or reply.thinking_tail) and not self._tail_added:
            self._tail_added = True
            for flow, tail in ((self._flow, reply.tail), (self._thought, reply.thinking_tail)):
                if flow.tokens:
                    flow.extend(tail)
                elif tail:
                    flow.append((tail, KINDS.index("plain")))
        self._note_marks()
        self.measure()
        same_top = self._top_rows() == before and self._header == header
        return first if same_top and not thought and reply.running else 0

    def _ratio_tokens(self) -> set[int]:
        """Of the tokens not yet added, those accepted by their ratio alone."""
        found: set[int] = set()
        number = self._tokens_added
        for step in self.reply.steps[self._steps_added :]:
            found.update(
                number + i
                for i, row in enumerate(step.judged[: len(step.tokens)])
                if row.accepted and row.by == "ratio"
            )
            number += len(step.tokens)
        return found

    def _note_marks(self) -> None:
        """Note where the tuning changed."""
        steps = self.reply.steps
        for before, step in pairwise(steps[max(0, self._steps_added - 1) :]):
            if step.tuning != before.tuning:
                token = self.reply.token_of(step.index, 0)
                if token is not None:
                    self._marks[token] = f"▲ step {step.index}: {changes(before.tuning, step.tuning)}"
        self._steps_added = len(steps)

    def resize(self, width: int) -> None:
        self._room = text_width(width)
        self._flow.resize(self._room)
        self._thought.resize(self._room)
        self._rendered = None
        self.measure()

    def colour(self, two: bool) -> None:
        """Two colours (accepted drafts against the rest) or one for each origin."""
        self._two = two

    def show_markdown(self, on: bool) -> None:
        """Show the answer as Markdown, once it is over, or as tokens."""
        self.markdown = on
        self._rendered = None
        self.measure()

    @property
    def needs_rendering(self) -> bool:
        """It is to be shown as Markdown, but is not rendered for this width yet."""
        return self.markdown and not self.reply.running and self._rendered is None and bool(self.reply.answer)

    def render_with(self, render: Renderer) -> None:
        """Render the Markdown; the height may change."""
        self._rendered = render(drawn(self.reply.answer).strip("\n"), self._room)
        self.measure()

    # -- layout

    @property
    def _has_thought(self) -> bool:
        return bool(self._thought.end)

    def _top_rows(self) -> int:
        return 1 + self._has_thought + (self._thought.height if self.thinking_open else 0)

    def _body_rows(self) -> int:
        return len(self._rendered.rows) if self._rendered is not None else self._flow.height

    def measure(self) -> None:
        self._footer = [] if self.reply.running else self._closing()
        self._header = header_spans(self.reply, self._room)
        self.height = self._top_rows() + self._body_rows() + len(self._footer) + 1

    def _closing(self) -> list[Row]:
        rows: list[Row] = [(INDENT, (text[: self._room], "mark")) for text in self._marks.values()]
        rows += [(INDENT, *line) for line in summary_lines(self.reply, self._room)]
        self._versions = versions_text(self.reply)
        rows += [(INDENT, (self._versions, "fold"))] if self._versions else []
        return rows

    def _flow_row(self, index: int) -> tuple[TokenFlow, int] | None:
        """The flow that a row shows, and the index in it; None for other rows."""
        top = self._top_rows()
        if 2 <= index < top:
            return self._thought, index - 2
        if self._rendered is None and top <= index < top + self._flow.height:
            return self._flow, index - top
        return None

    def row(self, index: int) -> Row:
        if index == 0:
            return INDENT, *self._header
        if index == 1 and self._has_thought:
            mark = "▾" if self.thinking_open else "▸"
            busy = " …" if self.reply.running and not self._flow.end else ""
            return INDENT, (f"{mark} thinking · {counted(self.reply.thinking_tokens, 'token')}{busy}", "fold")
        if found := self._flow_row(index):
            flow, row = found
            gutter = (" ┊ ", "thinking-bar") if flow is self._thought else self._gutter(row)
            return gutter, *((text, self._role(kind)) for text, kind in flow.spans(row))
        index -= self._top_rows()
        if self._rendered is not None and index < len(self._rendered.rows):
            return INDENT, *self._rendered.rows[index]
        index -= self._body_rows()
        return self._footer[index] if index < len(self._footer) else ()

    def _role(self, kind: int) -> str:
        role = KINDS[kind]
        return FALLBACK if self._two and role in ("plain", "bonus") else role

    def _gutter(self, row: int) -> StyledSpan:
        """The mark of a changed tuning, or blanks, for a row of the answer."""
        for token in self._marks:
            if not self.reply.tokens[token].thinking:
                at = self._flow.visible_start(self._flow.index(token))
                if self._flow.row_of(at) == row:
                    return " ▲ ", "mark"
        return INDENT

    def joins(self, index: int) -> bool:
        if found := self._flow_row(index):
            flow, row = found
            return flow.continues(row)
        return self._rendered is not None and index - self._top_rows() in self._rendered.joined

    def find(self, pattern: re.Pattern[str]) -> list[Spot]:
        text = self._rendered.text if self._rendered is not None else self._flow.text
        return [*found_in(self._thought.text, pattern, thinking=True), *found_in(text, pattern)]

    def hides(self, spot: Spot) -> bool:
        return spot.thinking and not self.thinking_open

    def place_of(self, spot: Spot) -> tuple[Place, Place]:
        if spot.thinking:
            return place_in(self._thought, spot, 2)
        top = self._top_rows()
        if self._rendered is None:
            return place_in(self._flow, spot, top)
        first, last = self._rendered.place(spot.start), self._rendered.place(spot.stop)
        return (top + first[0], first[1]), (top + last[0], last[1])

    def margin(self, index: int) -> int:
        return self._rendered.margins.get(index - self._top_rows(), 0) if self._rendered is not None else 0

    def source(self, index: int) -> Source | None:
        top = self._top_rows()
        found = self._rendered.sources.get(index - top) if self._rendered is not None else None
        return None if found is None else Source(top + found.stop, found.text)

    # -- places

    def code_rows(self, code: int) -> tuple[int, int] | None:
        """First and last row of a code block; None if it is not on the page."""
        top = self._top_rows()
        if self._rendered is not None:
            found = self._rendered.codes[code : code + 1]
            return (top + found[0][0], top + found[0][1]) if found else None
        block = code_blocks(self.reply.answer)[code]
        # Newlines before the first character are not shown.
        answer = self.reply.answer
        above = len(answer) - len(answer.lstrip("\n"))
        return top + self._flow.line_row(block.first - above), top + self._flow.line_row(
            block.stop - above
        ) - 1

    def hit(self, index: int, column: int) -> Hit:
        if index == 1 and self._has_thought:
            return Hit("fold")
        if found := self._flow_row(index):
            flow, row = found
            return flow.hit(row, column)
        last = self._top_rows() + self._body_rows() + len(self._footer) - 1
        return versions_hit(self._versions, column) if index == last else NOTHING

    def locate(self, token: int) -> list[tuple[int, int, int]]:
        """Where a token is shown, as (row, first character, end) without the gutter; empty while the token is
        folded or rendered as Markdown."""
        thinking = self.reply.tokens[token].thinking
        if not self.thinking_open if thinking else self._rendered is not None:
            return []
        flow, above = (self._thought, 2) if thinking else (self._flow, self._top_rows())
        return [(above + row, start, end) for row, start, end in flow.places(flow.index(token))]

    def shows(self, token: int) -> bool:
        """The token is shown, neither folded nor rendered as Markdown."""
        return bool(self.locate(token))

    def toggle(self) -> bool:
        if not self._has_thought:
            return False
        self.thinking_open = not self.thinking_open
        self.measure()
        return True
