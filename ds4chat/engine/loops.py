"""Whether a text only repeats itself. Pure: tokens in, a verdict out."""

from __future__ import annotations

from collections.abc import Hashable

from ds4chat.engine.events import UNKNOWN_ID, Token


def identity(token: Token) -> Hashable | None:
    """What makes two tokens equal: id and text, of which a server may give only one. None where it gives
    neither."""
    return (token.id, token.text) if token.id != UNKNOWN_ID or token.text else None


class LoopDetector:
    """Follows a reply token by token and knows whether its end is one passage over and over.

    The reply repeats itself once each of its last LEAST tokens, or of its last (TIMES - 1) periods where
    those are more, equals the token one period before it. A period is found by the last occurrence of the
    same GRAM tokens, and kept as long as it continues: each token takes O(1) and one entry of memory. None is
    an unknown token: it may be part of a passage, but does not make one.
    """

    GRAM = 8
    """Tokens that must occur again before a period is considered."""
    LEAST = 64
    """Repeated tokens: a row of a table or a list of zeros is no loop yet."""
    TIMES = 3
    """How often a passage must occur."""
    _NOTHING = (None,) * GRAM

    __slots__ = ("_matched", "_places", "_tokens", "period")

    def __init__(self) -> None:
        self._tokens: list[Hashable | None] = []
        self._places: dict[tuple[Hashable | None, ...], int] = {}
        """Number of tokens up to the end of the last occurrence of GRAM tokens."""
        self.period = 0
        """Tokens of the passage that may be repeating; 0 while there is none."""
        self._matched = 0
        """How many of the last tokens equal those one period before."""

    def push(self, token: Hashable | None) -> bool:
        """Add the next token; whether the text repeats itself now."""
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
        return self.period > 0 and self._matched >= max(self.LEAST, (self.TIMES - 1) * self.period)

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
