"""Blocks on top of each other: where each row is, and the text of a selection. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import overload

from textual.selection import Selection

from ds4chat.tui.conversation import Reply, Turn
from ds4chat.tui.transcript.blocks import GUTTER, Block, ReplyBlock


class Stack:
    """A list of blocks and the row at which each begins."""

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._blocks = list(blocks)
        self._tops = array("Q", [0])
        self.measure(0)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    def __getitem__(self, index: int) -> Block:
        return self._blocks[index]

    @property
    def height(self) -> int:
        """Rows of all blocks."""
        return self._tops[-1]

    @property
    def replies(self) -> list[ReplyBlock]:
        """The blocks that are replies, from top to bottom."""
        return [block for block in self._blocks if isinstance(block, ReplyBlock)]

    def append(self, block: Block) -> None:
        """Add a block at the end."""
        self._blocks.append(block)
        self._tops.append(self._tops[-1] + block.height)

    def measure(self, first: int) -> None:
        """Update the places of the blocks from ``first`` on, whose heights may have changed."""
        del self._tops[first + 1 :]
        at = self._tops[first]
        for block in self._blocks[first:]:
            at += block.height
            self._tops.append(at)

    def top(self, index: int) -> int:
        """The first row of the block at this index."""
        return self._tops[index]

    def top_of(self, block: Block) -> int:
        """The first row of a block."""
        return self.top(self.index(block))

    def at(self, y: int) -> tuple[int, int]:
        """The block at a row and the row inside it; the last row for rows beyond. There must be a block."""
        y = min(max(0, y), self.height - 1)
        index = bisect_right(self._tops, y) - 1
        return index, y - self._tops[index]

    def index(self, block: Block) -> int:
        """Index of a block. Raises ValueError."""
        return self._blocks.index(block)

    @overload
    def find(self, turn: Reply) -> ReplyBlock | None: ...

    @overload
    def find(self, turn: Turn) -> Block | None: ...

    def find(self, turn: Turn) -> Block | None:
        """The block of a turn; None if it is not shown."""
        return next((block for block in reversed(self._blocks) if block.turn is turn), None)

    def selected(self, selection: Selection) -> str:
        """The text of a selection, without decoration and with wrapped lines joined. A rendered block that is
        selected whole is copied as it was written."""
        if not self._blocks:
            return ""
        first = selection.start.y if selection.start is not None else 0
        last = min(self.height - 1, selection.end.y if selection.end is not None else self.height - 1)
        parts: list[str] = []
        done = first
        for y in range(first, last + 1):
            span = selection.get_span(y)
            if span is None or y < done:
                continue
            index, row = self.at(y)
            block = self._blocks[index]
            text = block.text(row)
            start, end = span
            source = block.source(row)
            if source is not None and start <= GUTTER and self._reaches(selection, y + source.stop - row - 1):
                parts.append(source.text + "\n")
                done = y + source.stop - row
                continue
            left = GUTTER + block.margin(row)
            piece = text[max(left, start) : len(text) if end < 0 else max(left, end)]
            parts.append(piece if block.joins(row) and y < last else piece.rstrip() + "\n")
        return "".join(parts).removesuffix("\n")

    def _reaches(self, selection: Selection, y: int) -> bool:
        """The selection includes the end of a row's text."""
        span = selection.get_span(y)
        index, row = self.at(y)
        end = len(self._blocks[index].text(row).rstrip())
        return span is not None and (span[1] < 0 or span[1] >= end)
