"""Whether a file can be the target, and whether a support file fits it, before llama.cpp sees either.

llama.cpp ends the process, or runs on with rubbish, on many pairs that do not fit; each check here stands for
one of these cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from ds4chat.models import architectures, eagle3, gemma4, tokenizer
from ds4chat.models.architectures import Rollback
from ds4chat.models.classify import Kind, classify, describe, nextn_layers, trunk_layers
from ds4chat.models.errors import ModelFileError, shown, shown_path
from ds4chat.models.gguf_file import Header, read_header
from ds4chat.models.requirements import check_nextn, check_trunk
from ds4chat.models.sanity import check_metadata, check_tables, check_vocabulary

PairKind = Literal["nextn-embedded", "nextn-support", "eagle3", "draft-model", "gemma4-assistant"]

EMBEDDED = "embedded"
"""In the place of a support file's path: the NextN block inside the target."""

LOW_BITS = 4.0
"""A head below this many bits a weight is known to lose most of its acceptance."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target's drafter that fits.

    ``support`` and ``path`` are None for the embedded block. ``n_heads``: NextN blocks, 0 for kinds without.
    ``notes``: warnings, each a sentence. ``off_reason``: why the pair must not be run although it fits, "".
    """

    kind: PairKind
    support: Header | None = None
    path: Path | None = None
    n_heads: int = 0
    notes: tuple[str, ...] = ()
    off_reason: str = ""


def rollback_class(header: Header) -> Rollback:
    """How far the target's cache can drop rejected drafts: "kv" anywhere, "bounded" within the last batch,
    "none" not at all."""
    return architectures.rollback_of(header.architecture)


def check_target(path: str | os.PathLike[str]) -> Header:
    """The header of a whole model that can chat. Raises ModelFileError, also for a support file given as
    the model: llama.cpp dies of that one."""
    header = read_header(path)
    check_metadata(header)
    kind = classify(header)
    if kind not in ("target", "nextn-embedded"):
        raise ModelFileError(f"{shown_path(header.path)} is {describe(header)}. {_AS_TARGET[kind]}")
    for key in ("block_count", "embedding_length", "context_length"):
        if header.own_integer(key) is None:
            raise ModelFileError(
                f"{shown_path(header.path)} is incomplete: it lacks the metadata key "
                f"{shown(header.own(key))}. Download it again, or convert it again."
            )
    if not tokenizer.vocabulary_size(header) or not tokenizer.has_tokenizer(header):
        raise ModelFileError(
            f"{shown_path(header.path)} has no tokenizer, so it cannot read a prompt. Convert it again with "
            "its tokenizer files beside it."
        )
    check_trunk(header)
    check_vocabulary(header)
    check_tables(header)
    return header


_SUPPORT_USE = "Give the whole model with -m, and this file with --mtp."
_CHAT_MODEL = "Give a chat model with -m."
_AS_TARGET: dict[Kind, str] = {
    "nextn-support": _SUPPORT_USE,
    "eagle3": _SUPPORT_USE,
    "gemma4-assistant": _SUPPORT_USE,
    "ds4-support": (
        "Give the whole model with -m; rewrite this file with `ds4chat convert-mtp MAIN SUPPORT OUT`, and "
        "give OUT with --mtp."
    ),
    "dflash": _CHAT_MODEL,
    "dspark": _CHAT_MODEL,
    "embedding": _CHAT_MODEL,
    "diffusion": _CHAT_MODEL,
    "mmproj": _CHAT_MODEL,
    "lora": "Merge it into its model first, or give that model with -m.",
    "other": _CHAT_MODEL,
}


def check_pair(target: Header, support: str | os.PathLike[str]) -> Pair:
    """The pair of a checked target and a support file, or the block inside the target for "embedded".

    Raises ModelFileError with the reason for which they do not fit.
    """
    off_reason = _off_reason(target)
    if support == EMBEDDED:
        n_heads = _check_embedded(target)
        return Pair("nextn-embedded", None, None, n_heads, _low_bit_notes(target), off_reason)
    header = read_header(support)
    check_metadata(header)
    _refuse_target_itself(target, header)
    kind = classify(header)
    check = _CHECKS.get(kind)
    if check is None:
        raise ModelFileError(f"{shown_path(header.path)} is {describe(header)}. {_AS_SUPPORT[kind]}")
    check_vocabulary(header)
    check_tables(header)
    pair_kind, n_heads, notes = check(target, header)
    return Pair(pair_kind, header, header.path, n_heads, notes, off_reason)


_OTHER_SUPPORT = "Give a NextN support model, an EAGLE-3 model or a draft model with --mtp, or use --lookup."
_AS_SUPPORT: dict[Kind, str] = {
    "ds4-support": (
        "Rewrite it with `ds4chat convert-mtp MAIN SUPPORT OUT` and give OUT with --mtp, or add "
        "--mtp-convert."
    ),
    "dflash": f"ds4chat cannot run those. {_OTHER_SUPPORT}",
    "dspark": f"ds4chat cannot run those. {_OTHER_SUPPORT}",
    "embedding": _OTHER_SUPPORT,
    "diffusion": _OTHER_SUPPORT,
    "mmproj": _OTHER_SUPPORT,
    "lora": _OTHER_SUPPORT,
    "other": _OTHER_SUPPORT,
}


def _off_reason(target: Header) -> str:
    if rollback_class(target) != "none":
        return ""
    return (
        f"{target.architecture} models keep a recurrent state that llama.cpp cannot roll back: each rejected "
        "draft would cost a second pass over the target, which is more than drafts bring"
    )


def _refuse_target_itself(target: Header, support: Header) -> None:
    try:
        if not os.path.samefile(target.path, support.path):
            return
    except OSError:
        return  # one of the two is gone; whoever reads it next says so
    hint = (
        "Use --mtp without a file for the NextN block inside it."
        if classify(target) == "nextn-embedded"
        else _OTHER_SUPPORT
    )
    raise ModelFileError(f"{shown_path(support.path)} is the target itself. {hint}")


def _misfit(support: Header, target: Header, what: str) -> NoReturn:
    """The two files do not belong together."""
    raise ModelFileError(
        f"{shown_path(support.path)} does not fit {shown_path(target.path)}: {what}. "
        "Give the support file that was made for this model."
    )


# -- NextN


def _check_embedded(target: Header) -> int:
    """Number of NextN blocks inside the target. Raises ModelFileError where there are none that can run."""
    if not nextn_layers(target):
        raise ModelFileError(
            f"{shown_path(target.path)} has no NextN block inside, so --mtp needs a file: give its support "
            "model with --mtp FILE, or use --lookup."
        )
    return _check_blocks(target)


def _check_blocks(header: Header) -> int:
    """Number of NextN blocks of a file that llama.cpp can run. Raises ModelFileError."""
    name, architecture = shown_path(header.path), header.architecture
    if architecture not in architectures.NEXTN:
        raise ModelFileError(
            f"llama.cpp cannot run NextN blocks of the architecture {shown(architecture)}, so that of {name} "
            "is of no use. Give a draft model with --mtp FILE, or use --lookup."
        )
    declared, held = header.own_integer("nextn_predict_layers") or 0, nextn_layers(header)
    if not declared or held != declared:
        raise ModelFileError(
            f"{name} is incomplete: its metadata declares {declared} NextN blocks, and it holds {held}. "
            "Convert it again, or download it again."
        )
    if declared > 1 and architecture not in architectures.NEXTN_CHAINED:
        raise ModelFileError(
            f"{name} has {declared} NextN blocks, and llama.cpp runs only one for the architecture "
            f"{architecture}. Convert the model with one NextN block, or use --lookup."
        )
    width = header.own_integer("embedding_length") or 0
    first = trunk_layers(header)
    check_nextn(header, range(first, first + declared))
    for i in range(first, first + declared):
        dims = header.tensors[f"blk.{i}.nextn.eh_proj.weight"].dims
        if dims != (2 * width, width):
            raise ModelFileError(
                f"{name} is corrupt: its NextN block's eh_proj is {_times(dims)}, where an embedding width "
                f"of {width} asks for {_times((2 * width, width))}. Convert it again."
            )
    if architecture == "deepseek4":
        _check_deepseek4(header, first)
    return declared


def _check_deepseek4(header: Header, block: int) -> None:
    ratios = header.integers(header.own("attention.compress_ratios")) or []
    if len(ratios) <= block or ratios[block] != 0:
        raise ModelFileError(
            f"{shown_path(header.path)} gives its NextN block, number {block}, no compression ratio of 0, "
            "which llama.cpp asks for. Convert it again with a current converter."
        )
    if (header.own_integer("hash_layer_count") or 0) > block:
        raise ModelFileError(
            f"{shown_path(header.path)} is corrupt: its NextN block would route by hashes. Convert it again."
        )


def _check_nextn_support(target: Header, support: Header) -> tuple[PairKind, int, tuple[str, ...]]:
    if support.architecture != target.architecture:
        _misfit(
            support,
            target,
            f"it was made for the architecture {shown(support.architecture)}, the target is "
            f"{shown(target.architecture)}",
        )
    _check_widths(target, support)
    n_heads = _check_blocks(support)
    embeddings = support.tensors.get("token_embd.weight")
    if embeddings is None or tokenizer.vocabulary_size(support) is None:
        raise ModelFileError(
            f"{shown_path(support.path)} is incomplete: llama.cpp wants the embeddings and the tokenizer in "
            "the support model too. Convert it again with `convert_hf_to_gguf.py --mtp`."
        )
    _check_checkpoint(target, support)
    _check_vocabulary(target, support)
    return "nextn-support", n_heads, _low_bit_notes(support)


def _check_widths(target: Header, support: Header) -> None:
    """The hidden row that travels between the two: ``embedding_length`` wide, for DeepSeek V4 as many times
    that as it has hyper-connection streams."""
    ours, theirs = (h.own_integer("embedding_length") or 0 for h in (target, support))
    if ours != theirs:
        _misfit(support, target, f"its hidden rows are {theirs} wide, the target's {ours}")
    streams = [h.own_integer("hyper_connection.count") or 1 for h in (target, support)]
    if streams[0] != streams[1]:
        _misfit(support, target, f"it carries {streams[1]} hyper-connection streams, the target {streams[0]}")


def _check_checkpoint(target: Header, support: Header) -> None:
    conflict = checkpoint_conflict(target, support)
    if conflict:
        _misfit(support, target, conflict)


def checkpoint_conflict(target: Header, support: Header) -> str:
    """Why two files come from different checkpoints of one model, "" where nothing says so."""
    for key, word in (
        ("deepseek4.checkpoint_variant", "checkpoint"),
        ("general.source.revision", "revision"),
    ):
        ours, theirs = target.metadata.get(key), support.metadata.get(key)
        if isinstance(ours, str | int) and isinstance(theirs, str | int) and ours != theirs:
            return f"it was made from the {word} {shown(theirs)}, the target from {shown(ours)}"
    return ""


def _low_bit_notes(header: Header) -> tuple[str, ...]:
    """A warning where the NextN block's own matrices are stored in too few bits. Routed experts, of which
    each token uses a few, stand it."""
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
        f"The drafting head of {shown_path(header.path)} is stored in {worst.type.name} "
        f"({worst.type.bits:.1f} bits a weight); below {LOW_BITS:g} bits most drafts tend to be rejected.",
    )


# -- the other kinds


def _check_eagle3(target: Header, support: Header) -> tuple[PairKind, int, tuple[str, ...]]:
    _check_vocabulary(target, support)
    reason = eagle3.misfit(target, support)
    if reason:
        _misfit(support, target, reason)
    return "eagle3", 0, _low_bit_notes(support)


def _check_assistant(target: Header, support: Header) -> tuple[PairKind, int, tuple[str, ...]]:
    if target.architecture != "gemma4":
        _misfit(support, target, f"it drafts for gemma4, the target is {shown(target.architecture)}")
    blocks = support.own_integer("block_count") or 0
    if not blocks or blocks != support.own_integer("nextn_predict_layers"):
        raise ModelFileError(
            f"{shown_path(support.path)} is incomplete: all blocks of an assistant are NextN blocks. "
            "Convert it again with a current converter."
        )
    reason = gemma4.misfit(target, support)
    if reason:
        _misfit(support, target, reason)
    _check_vocabulary(target, support)
    return "gemma4-assistant", 1, ()


def _check_draft_model(target: Header, support: Header) -> tuple[PairKind, int, tuple[str, ...]]:
    name = shown_path(support.path)
    if rollback_class(support) != "kv":
        raise ModelFileError(
            f"{name} keeps a recurrent state ({shown(support.architecture)}), which a draft model cannot "
            "roll back. Give a draft model whose layers all attend."
        )
    if not tokenizer.has_tokenizer(support):
        _misfit(support, target, "it has no tokenizer")
    ours, theirs = (h.text("tokenizer.ggml.model") for h in (target, support))
    if ours != theirs:
        _misfit(support, target, f"its tokenizer is of the type {shown(theirs)}, the target's {shown(ours)}")
    for word, adds, token in (
        ("begin", tokenizer.adds_bos, tokenizer.bos),
        ("end", tokenizer.adds_eos, tokenizer.eos),
    ):
        if adds(target) != adds(support) or (adds(target) and token(target) != token(support)):
            _misfit(support, target, f"their tokenizers treat the {word} token differently")
    sizes = [tokenizer.vocabulary_size(h) or 0 for h in (target, support)]
    if abs(sizes[0] - sizes[1]) > tokenizer.MAX_SIZE_DIFFERENCE:
        _misfit(support, target, f"its vocabulary has {sizes[1]:,} tokens, the target's {sizes[0]:,}")
    _check_texts(target, support, tokenizer.FIRST_COMPARED)
    notes: tuple[str, ...] = ()
    if support.file_size >= target.file_size:
        notes = (
            f"The draft model {name} is no smaller than the target: drafting costs as much as it can save.",
        )
    return "draft-model", 0, notes


def _check_vocabulary(target: Header, support: Header) -> None:
    """As many tokens as the target's and, where the support file carries them, the same texts."""
    ours, theirs = tokenizer.vocabulary_size(target), tokenizer.vocabulary_size(support)
    if theirs is not None and ours != theirs:
        _misfit(support, target, f"its vocabulary has {theirs:,} tokens, the target's {ours:,}")
    if tokenizer.has_tokenizer(support):
        _check_texts(target, support, 0)


def _check_texts(target: Header, support: Header, start: int) -> None:
    difference = tokenizer.first_difference(target, support, start)
    if difference:
        token, ours, theirs = difference
        _misfit(
            support,
            target,
            f'token {token} of its vocabulary is "{theirs}", the target\'s is "{ours}"',
        )


def _times(dims: tuple[int, ...]) -> str:
    return " x ".join(str(d) for d in dims)


_CHECKS: dict[Kind, Callable[[Header, Header], tuple[PairKind, int, tuple[str, ...]]]] = {
    "nextn-support": _check_nextn_support,
    "eagle3": _check_eagle3,
    "gemma4-assistant": _check_assistant,
    "target": _check_draft_model,
    "nextn-embedded": _check_draft_model,
}
