"""Finding words in the conversation, and showing them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from textual.geometry import Offset
from textual.selection import Selection

from ds4chat.tui.transcript.blocks import GUTTER, Block
from ds4chat.tui.transcript.view import Transcript


class Found(NamedTuple):
    """A place where the words were found."""

    block: Block
    number: int
    """Index among the block's places."""


class Finder:
    """Finds words in a transcript, in any letter case and with any blanks between them."""

    def __init__(self, transcript: Transcript, words: str) -> None:
        self._transcript = transcript
        parts = [re.escape(part) for part in words.split()]
        self._pattern = re.compile(r"\s+".join(parts), re.IGNORECASE) if parts else None
        self.places = list(self._found())

    def _found(self) -> Iterator[Found]:
        if self._pattern is not None:
            for block in self._transcript._stack:
                for number in range(len(block.find(self._pattern))):
                    yield Found(block, number)

    def nearest(self) -> int:
        """Index of the last place that is not below the screen; of the first if all are."""
        stack = self._transcript._stack
        bottom = self._transcript.scroll_offset.y + self._transcript.size.height
        above = [i for i, place in enumerate(self.places) if stack.top(stack.index(place.block)) < bottom]
        return above[-1] if above else 0

    def show(self, index: int) -> bool:
        """Bring a place into sight and select it, unfolding what hides it; False if it is gone."""
        place, transcript = self.places[index], self._transcript
        stack = transcript._stack
        if self._pattern is None or place.block not in list(stack):
            return False
        at = stack.index(place.block)
        if not _in_sight(transcript, stack.top(at), stack.top(at + 1)):
            transcript.scroll_to(y=stack.top(at), animate=False, immediate=True)
        # Markdown that comes into sight is rendered now, which may move the words.
        transcript.render_in_sight()
        spots = place.block.find(self._pattern)
        if not spots:
            return False
        spot = spots[min(place.number, len(spots) - 1)]
        if place.block.open_at(spot):
            transcript.settle_block(place.block)
        (first, start), (last, stop) = place.block.place_of(spot)
        top = stack.top(at)
        height = transcript.size.height
        if not _in_sight(transcript, top + first, top + last + 1):
            transcript.scroll_to(y=max(0, top + first - height // 3), animate=False, immediate=True)
        begin, end = Offset(GUTTER + start, top + first), Offset(GUTTER + stop, top + last)
        transcript.screen.selections = {transcript: Selection(begin, end)}
        return True


def _in_sight(transcript: Transcript, top: int, stop: int) -> bool:
    seen = transcript.scroll_offset.y
    return seen <= top and stop <= seen + transcript.size.height
