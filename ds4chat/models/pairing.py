"""Whether a file can be the target, and whether a support file fits it, before llama.cpp sees either.

llama.cpp aborts the process, or computes garbage, on many pairs that do not fit; each check here mirrors
one of these cases.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ds4chat.models import tokenizer
from ds4chat.models.architectures import abilities
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header, read_header
from ds4chat.models.kinds import KINDS, OTHER, describe, kind_of
from ds4chat.models.nextn import check_inside
from ds4chat.models.requirements import check_trunk
from ds4chat.models.sanity import check_metadata, check_tables, check_vocabulary
from ds4chat.text import one_line, shortened

EMBEDDED = "embedded"
"""Used instead of a support file's path: the NextN block inside the target."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target's drafter that fits, ``kind`` one of kinds.DRAFTERS.

    ``support`` is None for the embedded block. ``n_heads``: NextN blocks, 0 for kinds without.
    ``notes``: warnings, each a sentence. ``off_reason``: why the pair must not be run although it fits, "".
    """

    kind: str
    support: Header | None = None
    n_heads: int = 0
    notes: tuple[str, ...] = ()
    off_reason: str = ""


def check_target(path: str | os.PathLike[str]) -> Header:
    """The header of a whole model that can chat. Raises ModelFileError, also for a support file given as the
    model, on which llama.cpp aborts."""
    header = read_header(path)
    check_metadata(header)
    kind = kind_of(header)
    if not kind.whole:
        raise ModelFileError(f"{one_line(header.path)} is {describe(header)}. {kind.as_target}")
    for key in ("block_count", "embedding_length", "context_length"):
        if header.own_integer(key) is None:
            header.incomplete(f"it lacks the metadata key {shortened(header.own(key))}")
    if not tokenizer.vocabulary_size(header) or not tokenizer.has_tokenizer(header):
        raise ModelFileError(
            f"{one_line(header.path)} has no tokenizer, so it cannot read a prompt. Convert it again with "
            "its tokenizer files beside it."
        )
    check_trunk(header)
    check_vocabulary(header)
    check_tables(header)
    return header


def check_pair(target: Header, support: str | os.PathLike[str]) -> Pair:
    """The pair of a checked target and a support file, or the block inside the target for "embedded".

    Raises ModelFileError with the reason for which they do not fit.
    """
    off_reason = _off_reason(target)
    if support == EMBEDDED:
        return Pair(KINDS["nextn-embedded"].inside, None, *check_inside(target), off_reason)
    header = read_header(support)
    check_metadata(header)
    _refuse_target_itself(target, header)
    kind = kind_of(header)
    if kind.check is None:
        raise ModelFileError(f"{one_line(header.path)} is {describe(header)}. {kind.as_support}")
    check_vocabulary(header)
    check_tables(header)
    return Pair(kind.drafts, header, *kind.check(target, header), off_reason)


def _off_reason(target: Header) -> str:
    if abilities(target.architecture).rollback != "none":
        return ""
    return (
        f"{target.architecture} models keep a recurrent state that llama.cpp cannot roll back: each rejected "
        "draft would cost a second pass over the target, which costs more than drafts save"
    )


def _refuse_target_itself(target: Header, support: Header) -> None:
    try:
        if not os.path.samefile(target.path, support.path):
            return
    except OSError:
        return  # one of the two is gone; the next read reports it
    hint = (
        "Use --mtp without a file for the NextN block inside it."
        if kind_of(target).inside
        else OTHER.as_support
    )
    raise ModelFileError(f"{one_line(support.path)} is the target itself. {hint}")
