"""What the constructed target says after each token, and what the constructed drafters propose.

The target sees one token back: its next token is a function of the last one. So a reply is a chain of
tokens, and the last token of the prompt chooses the chain:

=============  ============================================================================================
last token     reply
=============  ============================================================================================
``<think>``    " let me see this" ``</think>`` " yes it is fine." EOS
``</think>``   " yes it is fine." EOS
" ponder"      ``<think>``, then as above: the model opens the thinking itself
" emoji"       " look" U+1F600 (4 byte tokens) U+20AC (3) " wow" U+00E9 (2) EOS
" broken"      a lone continuation byte, " ok", the first byte of a 4-byte character, EOS
" stop"        " all done" EOS; the drafter knows the end: it drafts EOS inside a block
" cut"         " off here" EOS; the drafter does not: it drafts on past the end
any other      the 24 words of CYCLE_WORDS over and over, entered at " we" (or where that word stands)
=============  ============================================================================================
"""

from __future__ import annotations

from itertools import pairwise

from tiny.vocab import (
    ANSWER_WORDS,
    CYCLE_WORDS,
    END_THINK,
    EOS,
    FIRST_BYTE,
    N_VOCAB,
    THINK,
    THINKING_WORDS,
    byte,
    word,
    words,
)

CYCLE: tuple[int, ...] = tuple(words(CYCLE_WORDS))
"""Ids of the endless cycle; position i of it is CYCLE[i]."""

_ANSWER = [END_THINK, *words(ANSWER_WORDS), byte(ord(".")), EOS]
_CHAINS: tuple[list[int], ...] = (
    [*CYCLE, CYCLE[0]],
    [word("loop"), CYCLE[0]],
    [word("ponder"), THINK, *words(THINKING_WORDS), END_THINK],
    _ANSWER,
    [
        word("emoji"),
        word("look"),
        *(byte(b) for b in "\U0001f600€".encode()),
        word("wow"),
        *(byte(b) for b in "é".encode()),
        EOS,
    ],
    [word("broken"), byte(0xBF), word("ok"), byte(0xF1), EOS],
    [word("stop"), word("all"), word("done"), EOS],
    [word("cut"), word("off"), word("here"), EOS],
)
_NEXT: dict[int, int] = {a: b for chain in _CHAINS for a, b in pairwise(chain)}

N_CLASSES = 64
"""Width of the one-hot class embedding: one class a chain token, the rest share SHARED."""
SHARED = 0
_CLASSES: dict[int, int] = {token: i + 1 for i, token in enumerate(_NEXT)}
assert len(_CLASSES) < N_CLASSES


def next_token(token: int) -> int:
    """The target's greedy choice after ``token``; defined for every id, EOS included."""
    return _NEXT.get(token, CYCLE[0])


def reply(last: int, n_tokens: int) -> list[int]:
    """Greedy reply after a prompt that ends with ``last``: at most ``n_tokens``, without the EOS."""
    tokens: list[int] = []
    while len(tokens) < n_tokens and (last := next_token(last)) != EOS:
        tokens.append(last)
    return tokens


_SUCCESSORS: dict[int, int] = {SHARED: CYCLE[0]} | {_CLASSES[a]: b for a, b in _NEXT.items()}


def class_of(token: int) -> int:
    """Class (row of the one-hot embedding) of a token."""
    return _CLASSES.get(token, SHARED)


def tokens() -> list[int]:
    """All tokens that have a class of their own."""
    return list(_CLASSES)


def successors() -> dict[int, int]:
    """Class -> the target's next token, for all classes in use."""
    return dict(_SUCCESSORS)


def successor_class(class_: int, wrong_every: int = 0) -> int | None:
    """The drafter's map of a hidden row's class to the class of the token after it.

    None for the shared class: after BOS, a role mark or an unknown byte a drafter goes by its token alone.
    A head that errs here, after ``draft_token``'s rule, sees another word instead of the one after
    which it is wrong: the word before the wrong token.
    """
    if class_ == SHARED:
        return None
    following = _SUCCESSORS[class_]
    if wrong_every and draft_token(following, wrong_every) != next_token(following):
        wrong = draft_token(following, wrong_every)
        return class_of(CYCLE[CYCLE.index(wrong) - 1])
    return class_of(following)


def wrong_token(token: int) -> int:
    """What a drafter that is wrong after the cycle's ``token`` proposes: the word seven further on."""
    return CYCLE[(CYCLE.index(token) + 7) % len(CYCLE)]


def draft_token(token: int, wrong_every: int = 4, head: int = 0) -> int:
    """A drafter's choice after ``token``: the target's, but wrong after every Nth word of the cycle.

    With ``wrong_every`` 4 those are the words at cycle positions 3, 7, 11, ...; 0 is never wrong. Of chained
    heads, ``head`` i errs 2 i words earlier. After " here" every drafter misses the end.
    """
    if token == word("here"):
        return CYCLE[0]
    if is_wrong(token, wrong_every, head):
        return wrong_token(token)
    return next_token(token)


def is_wrong(token: int, wrong_every: int, head: int = 0) -> bool:
    """True where a drafter with this parameter errs on the cycle."""
    return wrong_every > 0 and token in CYCLE and (CYCLE.index(token) + 2 * head + 1) % wrong_every == 0


def ends_draft(token: int) -> bool:
    """True for a control token: drafting stops there, and it is kept as the last draft."""
    return 0 <= token < FIRST_BYTE


assert all(0 <= t < N_VOCAB for t in _NEXT)
