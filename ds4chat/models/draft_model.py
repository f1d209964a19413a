"""Checks whether a whole model can draft for a larger one."""

from __future__ import annotations

from ds4chat.models import tokenizer
from ds4chat.models.architectures import abilities
from ds4chat.models.errors import ModelFileError
from ds4chat.models.fit import Fit, check_texts, misfit
from ds4chat.models.gguf_file import Header
from ds4chat.text import one_line, shortened


def check(target: Header, support: Header) -> Fit:
    """Raises ModelFileError if it cannot draft for the target."""
    name = one_line(support.path)
    if abilities(support.architecture).rollback != "kv":
        raise ModelFileError(
            f"{name} keeps a recurrent state ({shortened(support.architecture)}), which a draft model cannot "
            "roll back. Give a draft model whose layers all attend."
        )
    if not tokenizer.has_tokenizer(support):
        misfit(support, target, "it has no tokenizer")
    ours, theirs = (h.text("tokenizer.ggml.model") for h in (target, support))
    if ours != theirs:
        misfit(
            support,
            target,
            f"its tokenizer is of the type {shortened(theirs)}, the target's {shortened(ours)}",
        )
    for word, adds, token in (
        ("begin", tokenizer.adds_bos, tokenizer.bos),
        ("end", tokenizer.adds_eos, tokenizer.eos),
    ):
        if adds(target) != adds(support) or (adds(target) and token(target) != token(support)):
            misfit(support, target, f"their tokenizers treat the {word} token differently")
    sizes = [tokenizer.vocabulary_size(h) or 0 for h in (target, support)]
    if abs(sizes[0] - sizes[1]) > tokenizer.MAX_SIZE_DIFFERENCE:
        misfit(support, target, f"its vocabulary has {sizes[1]:,} tokens, the target's {sizes[0]:,}")
    check_texts(target, support, tokenizer.FIRST_COMPARED)
    notes: tuple[str, ...] = ()
    if support.file_size >= target.file_size:
        notes = (
            f"The draft model {name} is not smaller than the target: drafting costs as much as it can save.",
        )
    return Fit(notes=notes)
