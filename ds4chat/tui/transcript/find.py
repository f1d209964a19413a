"""Finding words in the conversation, and showing them."""

from __future__ import annotations

import re
from typing import NamedTuple

from ds4chat.tui.transcript.blocks import Block
from ds4chat.tui.transcript.focus import in_sight, mark
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
        self._pattern = re.compile(r"\s+".join(map(re.escape, words.split())), re.IGNORECASE)
        self.places = [
            Found(block, number)
            for block in (transcript.stack if words.strip() else ())
            for number in range(len(block.find(self._pattern)))
        ]

    def nearest(self) -> int:
        """Index of the last place that is not below the screen; of the first if all are."""
        stack = self._transcript.stack
        bottom = self._transcript.scroll_offset.y + self._transcript.size.height
        above = [i for i, place in enumerate(self.places) if stack.top_of(place.block) < bottom]
        return above[-1] if above else 0

    def show(self, index: int) -> None:
        """Bring a place into sight and select it, unfolding what hides it."""
        (block, number), transcript = self.places[index], self._transcript
        if not in_sight(transcript, block, 0, block.height - 1):
            transcript.scroll_to(y=transcript.stack.top_of(block), animate=False, immediate=True)
        # Markdown that comes into sight is rendered now, which may move the words or remove them.
        transcript.render_in_sight()
        spots = block.find(self._pattern)
        if not spots:
            return
        spot = spots[min(number, len(spots) - 1)]
        if block.hides(spot):
            transcript.toggle(block)
        mark(transcript, block, *block.place_of(spot), above=transcript.size.height // 3)
