"""What llama.cpp requires of NextN blocks, inside the target or in a support file."""

from __future__ import annotations

from ds4chat.models import tokenizer
from ds4chat.models.architectures import abilities
from ds4chat.models.errors import ModelFileError
from ds4chat.models.fit import Fit, check_checkpoint, check_vocabulary, misfit, times
from ds4chat.models.gguf_file import Header
from ds4chat.models.requirements import check_nextn
from ds4chat.models.summary import nextn_layers, trunk_layers
from ds4chat.text import one_line, shortened

_LOW_BITS = 4.0
"""A head with fewer bits per weight loses most of its acceptance."""


def check_inside(target: Header) -> Fit:
    """The NextN blocks inside the target. Raises ModelFileError if there are none that can run."""
    if not nextn_layers(target):
        raise ModelFileError(
            f"{one_line(target.path)} has no NextN block inside, so --mtp needs a file: give its support "
            "model with --mtp FILE, or use --lookup."
        )
    return _check_blocks(target)


def _check_blocks(header: Header) -> Fit:
    """How the NextN blocks of a file draft. Raises ModelFileError if llama.cpp cannot run them."""
    name, architecture = one_line(header.path), header.architecture
    if not abilities(architecture).nextn:
        raise ModelFileError(
            f"llama.cpp cannot run NextN blocks of the architecture {shortened(architecture)}, so the one of "
            f"{name} cannot be used. Give a draft model with --mtp FILE, or use --lookup."
        )
    declared, held = header.own_integer("nextn_predict_layers") or 0, nextn_layers(header)
    if not declared or held != declared:
        header.incomplete(f"its metadata declares {declared} NextN blocks, and it holds {held}")
    if declared > 1 and abilities(architecture).nextn != "chained":
        raise ModelFileError(
            f"{name} has {declared} NextN blocks, and llama.cpp runs only one for the architecture "
            f"{architecture}. Convert the model with one NextN block, or use --lookup."
        )
    width = header.own_integer("embedding_length") or 0
    first = trunk_layers(header)
    blocks = range(first, first + declared)
    check_nextn(header, blocks)
    for i in blocks:
        dims = header.tensors[f"blk.{i}.nextn.eh_proj.weight"].dims
        if dims != (2 * width, width):
            header.corrupt(
                f"its NextN block's eh_proj is {times(dims)}, where an embedding width of {width} asks for "
                f"{times((2 * width, width))}"
            )
    if architecture == "deepseek4":
        _check_deepseek4(header, first)
    return Fit(declared, _low_bit_notes(header))


def _check_deepseek4(header: Header, block: int) -> None:
    ratios = header.integers(header.own("attention.compress_ratios")) or []
    if len(ratios) <= block or ratios[block] != 0:
        raise ModelFileError(
            f"{one_line(header.path)} has no compression ratio of 0 for its NextN block, number {block}, as "
            "llama.cpp requires. Convert it again with a current converter."
        )
    if (header.own_integer("hash_layer_count") or 0) > block:
        header.corrupt("its NextN block would route by hashes")


def check_support(target: Header, support: Header) -> Fit:
    """Check a support file with only the NextN blocks. Raises ModelFileError if it does not fit."""
    if support.architecture != target.architecture:
        misfit(
            support,
            target,
            f"it was made for the architecture {shortened(support.architecture)}, the target is "
            f"{shortened(target.architecture)}",
        )
    # DeepSeek V4 passes on four rows of this width, one for each of its hyper-connection streams.
    ours, theirs = (h.own_integer("embedding_length") or 0 for h in (target, support))
    if ours != theirs:
        misfit(support, target, f"its hidden rows are {theirs} wide, the target's {ours}")
    fit = _check_blocks(support)
    if "token_embd.weight" not in support.tensors or tokenizer.vocabulary_size(support) is None:
        raise ModelFileError(
            f"{one_line(support.path)} is incomplete: llama.cpp wants the embeddings and the tokenizer in "
            "the support model too. Convert it again with `convert_hf_to_gguf.py --mtp`."
        )
    check_checkpoint(target, support)
    check_vocabulary(target, support)
    return fit


def _low_bit_notes(header: Header) -> tuple[str, ...]:
    """A warning if the NextN block's own matrices are stored in too few bits. Routed experts do not count:
    each token uses few of them."""
    first = f"blk.{trunk_layers(header)}."
    low = [
        t
        for t in header.tensors.values()
        if t.name.startswith(first) and len(t.dims) == 2 and t.type.bits < _LOW_BITS
    ]
    if not low:
        return ()
    worst = min(low, key=lambda t: t.type.bits)
    return (
        f"The drafting head of {one_line(header.path)} is stored in {worst.type.name} "
        f"({worst.type.bits:.1f} bits a weight); below {_LOW_BITS:g} bits most drafts tend to be rejected.",
    )
