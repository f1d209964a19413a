"""Every kind of GGUF file: how it is recognised, described, and paired.

The one table of kinds. A new kind of drafter is a row here, with the check of a pair; its class in
engine/drafters; and the row by which engine/drafters/registry.py opens it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ds4chat.models import architectures, draft_model, eagle3, gemma4, nextn
from ds4chat.models.fit import Fit
from ds4chat.models.gguf_file import Header

Matches = Callable[[Header], bool]
Check = Callable[[Header, Header], Fit]
"""Checks a support file against a checked target. Raises ModelFileError if they do not fit."""


_SUPPORT_USE = "Give the whole model with -m, and this file with --mtp."
_CHAT_MODEL = "Give a chat model with -m."
_OTHER_SUPPORT = "Give a NextN support model, an EAGLE-3 model or a draft model with --mtp, or use --lookup."
_CANNOT_RUN = f"ds4chat cannot run those. {_OTHER_SUPPORT}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table.

    ``description`` completes "is ...". ``matches`` tells the kind from those that follow it in the table.
    ``drafts``: the kind of drafter that it is for a target, which names its opener in the engine, and
    ``check`` for such a pair; "" and None for files that cannot draft as they are. ``inside``: the kind of
    drafter that is part of a whole model. ``converts``: convert-mtp turns it into a support file. ``whole``:
    it can be the target. ``as_target`` and ``as_support`` say what to do with such a file if a whole model,
    or a support file, was expected.
    """

    name: str
    description: str
    matches: Matches
    drafts: str = ""
    check: Check | None = None
    inside: str = ""
    converts: bool = False
    whole: bool = False
    as_target: str = _CHAT_MODEL
    as_support: str = _OTHER_SUPPORT


_FIRST_BLOCK = "blk.0.attn_norm.weight"
"""llama.cpp treats a file with NextN blocks and without this tensor as the blocks only (``mtp_only``)."""
_NEXTN_TENSOR = re.compile(r"(?:blk\.\d+\.)?nextn\.")


def _is(architecture: str) -> Matches:
    return lambda header: header.architecture == architecture


def _is_dspark(header: Header) -> bool:
    """DSpark has a Markov head, or several stages of ds4's layout."""
    return any("markov" in name or name.startswith("mtp.1.") for name in header.tensors)


def _pools(header: Header) -> bool:
    """The model turns a text into one vector: it pools its rows, or each token attends to later ones."""
    pooling = header.own_integer("pooling_type") if header.architecture else None
    return bool(pooling) or header.flag(header.own("attention.causal")) is False


def _outputs_other(header: Header) -> bool:
    """Whole files of kinds that do not chat, named outright."""
    return header.architecture in architectures.OTHER_OUTPUT or header.text("general.type") in (
        "imatrix",
        "vocab",
    )


def _has_nextn(header: Header) -> bool:
    return any(_NEXTN_TENSOR.match(name) for name in header.tensors)


def _is_whole(header: Header) -> bool:
    return "token_embd.weight" in header.tensors and any(n.startswith("blk.0.") for n in header.tensors)


OTHER = Kind("other", "not a chat model", _outputs_other)

_TABLE = (
    Kind(
        "lora",
        "a LoRA adapter for another model",
        lambda header: header.text("general.type") == "adapter",
        as_target="Merge it into its model first, or give that model with -m.",
    ),
    Kind(
        "mmproj",
        "a projector of images or audio for another model",
        lambda header: header.text("general.type") == "mmproj" or header.architecture == "clip",
    ),
    OTHER,
    Kind("dspark", "a DSpark drafter", _is_dspark, as_support=_CANNOT_RUN),
    Kind(
        "ds4-support",
        "an MTP support file in the layout of ds4",
        _is("deepseek4_mtp_support"),
        converts=True,
        as_target=(
            "Give the whole model with -m; rewrite this file with `ds4chat convert-mtp MAIN SUPPORT OUT`, "
            "and give OUT with --mtp."
        ),
        as_support=(
            "Rewrite it with `ds4chat convert-mtp MAIN SUPPORT OUT` and give OUT with --mtp, or add "
            "--mtp-convert."
        ),
    ),
    Kind("dflash", "a DFlash drafter", _is("dflash"), as_support=_CANNOT_RUN),
    Kind(
        "eagle3",
        "an EAGLE-3 support model",
        _is("eagle3"),
        drafts="eagle3",
        check=eagle3.check,
        as_target=_SUPPORT_USE,
    ),
    Kind(
        "gemma4-assistant",
        "a Gemma 4 assistant, which drafts for a Gemma 4 model",
        _is("gemma4-assistant"),
        drafts="gemma4-assistant",
        check=gemma4.check,
        as_target=_SUPPORT_USE,
    ),
    Kind(
        "embedding",
        "an embedding or reranking model, which writes no text",
        lambda header: header.architecture in architectures.ENCODERS or _pools(header),
    ),
    Kind(
        "diffusion",
        "a diffusion model, which does not write token by token",
        lambda header: header.architecture in architectures.DIFFUSION,
    ),
    Kind(
        "nextn-embedded",
        "a whole model with a NextN block inside",
        lambda header: _has_nextn(header) and _FIRST_BLOCK in header.tensors,
        drafts="draft-model",
        check=draft_model.check,
        inside="nextn-embedded",
        whole=True,
    ),
    Kind(
        "nextn-support",
        "a NextN support model, the NextN block without its model",
        _has_nextn,
        drafts="nextn-support",
        check=nextn.check_support,
        as_target=_SUPPORT_USE,
    ),
    Kind("target", "a whole model", _is_whole, drafts="draft-model", check=draft_model.check, whole=True),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _TABLE}
"""In the order in which they are tried."""

DRAFTERS = frozenset(name for kind in _TABLE for name in (kind.drafts, kind.inside) if name)
"""Every kind of drafter that reads a model file."""


def kind_of(header: Header) -> Kind:
    """The kind of a file, from its architecture, its type and the names of its tensors."""
    return next((kind for kind in _TABLE if kind.matches(header)), OTHER)


def describe(header: Header) -> str:
    """The kind of a file in words: "an EAGLE-3 support model"."""
    kind = kind_of(header)
    if kind is OTHER:
        return architectures.OTHER_OUTPUT.get(header.architecture, kind.description)
    return kind.description
