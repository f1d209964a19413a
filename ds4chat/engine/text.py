"""From token bytes to text: incremental UTF-8, stop strings, and the model's thinking."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Bytes of tokens in, text out, one token at a time.

    Text that may still turn out to begin a stop string is held back and comes with a later token, so that
    the joined text never shows a part of a stop string that then completes.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(s for s in stop if s)
        self._held = ""
        self.stopped = False
        """A stop string has completed; the text before it is out, it and what follows it is not."""

    def push(self, piece: bytes) -> str:
        """The text that this token adds. Bytes that are not UTF-8 come out as U+FFFD."""
        text = self._held + self._decoder.decode(piece)
        self._held = ""
        if not self._stop or self.stopped:
            return text
        hits = [i for s in self._stop if (i := text.find(s)) >= 0]
        if hits:
            self.stopped = True
            return text[: min(hits)]
        keep = max(_overlap(text, s) for s in self._stop)
        if keep:
            text, self._held = text[:-keep], text[-keep:]
        return text

    def flush(self) -> str:
        """What was held back or left incomplete, at the end of a reply that no stop string ended."""
        text, self._held = self._held, ""
        return text + self._decoder.decode(b"", True)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with, the whole of stop left out."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0


OPEN_TAGS = ("<think>", "<seed:think>", "[THINK]")
CLOSE_TAGS = ("</think>", "</seed:think>", "[/THINK]")
_LONGEST = max(map(len, OPEN_TAGS + CLOSE_TAGS))


class Thinking:
    """Tells which tokens belong to the model's thinking, its tags included.

    A tag may be one special token or be spread over ordinary ones, and it may end anywhere in a verified
    block: it is looked for token by token. A tag spread over tokens marks from the token that completes it.
    """

    def __init__(self, *, open_at_start: bool) -> None:
        self.inside = open_at_start
        self._tail = ""

    def push(self, text: str) -> bool:
        """True when the token with this text is part of the thinking."""
        seen, old = self._tail + text, len(self._tail)
        touched = self.inside
        while (end := _first_end(seen, CLOSE_TAGS if self.inside else OPEN_TAGS, old)) is not None:
            self.inside = not self.inside
            touched = touched or self.inside
            seen, old = seen[end:], max(old - end, 0)
        self._tail = seen[-(_LONGEST - 1) :]
        return touched


def _first_end(text: str, tags: Sequence[str], old: int) -> int | None:
    """Where the first of these tags that completes after ``old`` characters ends; None without one."""
    ends = [i + len(tag) for tag in tags if (i := text.find(tag)) >= 0 and i + len(tag) > old]
    return min(ends, default=None)


def opens_thinking(prompt: str) -> bool:
    """True when a rendered prompt ends inside an open thinking tag, as some templates leave it."""
    tail = prompt.rstrip()
    return any(tail.endswith(tag) for tag in OPEN_TAGS)
