"""What a support file of any kind must share with its target."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from ds4chat.models import tokenizer
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header
from ds4chat.text import one_line, shortened


class Fit(NamedTuple):
    """How a support file that fits drafts. ``n_heads``: NextN blocks, 0 for kinds without; ``notes``:
    warnings, each a sentence."""

    n_heads: int = 0
    notes: tuple[str, ...] = ()


def misfit(support: Header, target: Header, what: str) -> NoReturn:
    """Raise the error for two files that do not belong together."""
    raise ModelFileError(
        f"{one_line(support.path)} does not fit {one_line(target.path)}: {what}. "
        "Give the support file that was made for this model."
    )


def times(dims: tuple[int, ...]) -> str:
    """A tensor's shape in words: "64 x 32"."""
    return " x ".join(str(d) for d in dims)


def check_vocabulary(target: Header, support: Header) -> None:
    """Check for as many tokens as the target's and, if the support file contains them, the same texts."""
    ours, theirs = tokenizer.vocabulary_size(target), tokenizer.vocabulary_size(support)
    if theirs is not None and ours != theirs:
        misfit(support, target, f"its vocabulary has {theirs:,} tokens, the target's {ours:,}")
    if tokenizer.has_tokenizer(support):
        check_texts(target, support, 0)


def check_texts(target: Header, support: Header, start: int) -> None:
    """Check that the tokens from ``start`` on have the same texts, as far as both vocabularies go."""
    ours, theirs = ((h.array(tokenizer.TOKENS) or [])[start:] for h in (target, support))
    for token, (a, b) in enumerate(zip(ours, theirs), start):
        if a != b:
            a, b = shortened(a, 24), shortened(b, 24)
            misfit(support, target, f'token {token} of its vocabulary is "{b}", the target\'s is "{a}"')


def check_checkpoint(target: Header, support: Header) -> None:
    """Check that the files do not name different checkpoints of one model."""
    for key, word in (
        ("deepseek4.checkpoint_variant", "checkpoint"),
        ("general.source.revision", "revision"),
    ):
        ours, theirs = target.metadata.get(key), support.metadata.get(key)
        if isinstance(ours, str | int) and isinstance(theirs, str | int) and ours != theirs:
            made = f"it was made from the {word} {shortened(theirs)}, the target from {shortened(ours)}"
            misfit(support, target, made)
