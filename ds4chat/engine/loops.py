"""Whether a text has come to repeat itself. Pure: tokens in, a verdict out."""

from __future__ import annotations

from collections.abc import Hashable

from ds4chat.engine.events import UNKNOWN_ID, Token


def identity(token: Token) -> Hashable | None:
    """What a token is known by when it comes again: its id and its text, of which a server may tell one.
    None where it tells neither."""
    return (token.id, token.text) if token.id != UNKNOWN_ID or token.text else None


class LoopDetector:
    """Follows a reply token by token and knows whether its end is one passage said over and over.

    The reply repeats itself once each of its last LEAST tokens, or of its last (SAID - 1) periods where those
    are more, is the token one period before it. A period is looked for by the last place at which the same
    GRAM tokens stood, and kept as long as it goes on: O(1) for each token, and one entry of memory. None is a
    token of which nothing is known: it may stand in a passage, and is none by itself.
    """

    GRAM = 8
    """Tokens that must come again before a period is looked at."""
    LEAST = 64
    """Tokens said again: a row of a table or a list of zeros is no loop yet."""
    SAID = 3
    """How often a passage has to be said."""
    _NOTHING = (None,) * GRAM

    __slots__ = ("_matched", "_places", "_tokens", "period")

    def __init__(self) -> None:
        self._tokens: list[Hashable | None] = []
        self._places: dict[tuple[Hashable | None, ...], int] = {}
        """Number of tokens up to the end of the last occurrence of GRAM tokens."""
        self.period = 0
        """Tokens of the passage that may be repeating; 0 while there is none."""
        self._matched = 0
        """Of the last tokens, those that are the same as one period before."""

    def push(self, token: Hashable | None) -> bool:
        """Take in the next token; whether the text repeats itself now."""
        tokens = self._tokens
        tokens.append(token)
        n = len(tokens)
        if self.period and tokens[n - 1 - self.period] == token:
            self._matched += 1
        else:
            self.period = self._matched = 0
        gram = tuple(tokens[-self.GRAM :])
        if n >= self.GRAM and gram != self._NOTHING:
            before = self._places.get(gram)
            if before is not None and not self.period:
                self.period, self._matched = n - before, self.GRAM
            self._places[gram] = n
        return self.looping

    def __len__(self) -> int:
        """Tokens so far."""
        return len(self._tokens)

    @property
    def looping(self) -> bool:
        """The text repeats itself up to its end."""
        return self.period > 0 and self._matched >= max(self.LEAST, (self.SAID - 1) * self.period)

    @property
    def why_ended(self) -> str:
        """Why a reply ends here, as sentences; meaningful while ``looping``."""
        return (
            f"The reply repeats itself, the last {self.period} tokens over and over, so it ends here. Ask in "
            "other words, raise the temperature, or set end-loops to off."
        )

    @property
    def since(self) -> int:
        """Index of the first token that only repeats; meaningful while ``looping``."""
        return len(self._tokens) - self._matched
