"""What a support file of any kind must share with its target."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from ds4chat.models import tokenizer
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header
from ds4chat.models.summary import trunk_layers
from ds4chat.text import one_line, shortened

LOW_BITS = 4.0
"""A head with fewer bits per weight loses most of its acceptance."""


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
    difference = tokenizer.first_difference(target, support, start)
    if difference:
        token, ours, theirs = difference
        misfit(support, target, f'token {token} of its vocabulary is "{theirs}", the target\'s is "{ours}"')


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


def low_bit_notes(header: Header) -> tuple[str, ...]:
    """A warning if the NextN block's own matrices are stored in too few bits. Routed experts, of which each
    token uses a few, are not affected."""
    first = f"blk.{trunk_layers(header)}."
    low = [
        t
        for t in header.tensors.values()
        if t.name.startswith(first) and len(t.dims) == 2 and t.type.bits < LOW_BITS
    ]
    if not low:
        return ()
    worst = min(low, key=lambda t: t.type.bits)
    return (
        f"The drafting head of {one_line(header.path)} is stored in {worst.type.name} "
        f"({worst.type.bits:.1f} bits a weight); below {LOW_BITS:g} bits most drafts tend to be rejected.",
    )
