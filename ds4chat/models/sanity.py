"""Metadata that parses, but on which llama.cpp ends the whole process instead of refusing the file.

Each check stands for an assertion in llama_model_base::load_hparams (src/llama-model.cpp), in the
architecture's own load_arch_hparams, or in src/llama-vocab.cpp.
"""

from __future__ import annotations

from ds4chat.models import tokenizer
from ds4chat.models.errors import ModelFileError, shown, shown_path
from ds4chat.models.gguf_file import ArrayInfo, Header

MAX_LAYERS = 512
MAX_EXPERTS = 1024
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


def check_metadata(header: Header) -> None:
    """Raises ModelFileError for sizes and counts that contradict each other."""
    if not header.architecture:
        return
    blocks = header.own_integer("block_count")
    if blocks is not None and not 1 <= blocks <= MAX_LAYERS:
        raise _corrupt(header, f"it counts {blocks:,} blocks, where 1 to {MAX_LAYERS} are possible")
    nextn = header.own_integer("nextn_predict_layers") or 0
    if blocks is not None and not 0 <= nextn <= blocks:
        raise _corrupt(header, f"it counts {nextn:,} NextN blocks among {blocks} blocks")
    width = header.own_integer("embedding_length")
    if width is not None and width < 1:
        raise _corrupt(header, "its embeddings are 0 wide")
    _check_experts(header)
    scaling = header.text(header.own("rope.scaling.type"))
    if scaling and scaling not in _ROPE_SCALINGS:
        raise _corrupt(header, f"its rope scaling is of the unknown type {shown(scaling)}")
    ratios = header.metadata.get(header.own("attention.compress_ratios"))
    if isinstance(ratios, ArrayInfo) and ratios.length > MAX_LAYERS:
        raise _corrupt(header, f"it counts {ratios.length:,} compression ratios")


def check_vocabulary(header: Header) -> None:
    """Raises ModelFileError for a vocabulary that llama.cpp dies of. Reads the tokens' texts."""
    if not tokenizer.has_tokenizer(header):
        return
    texts = [text for text in header.array(tokenizer.TOKENS) or () if text]
    if len(set(texts)) < len(texts):
        raise _corrupt(header, "its vocabulary has the same token twice")
    if tokenizer.adds_bos(header) and tokenizer.bos(header) is None:
        raise _corrupt(header, "its tokenizer puts a begin token before each prompt and names none")
    if tokenizer.adds_eos(header) and tokenizer.eos(header) is None:
        raise _corrupt(header, "its tokenizer puts an end token after each prompt and names none")


def _check_experts(header: Header) -> None:
    experts = header.own_integer("expert_count") or 0
    key = header.own("expert_used_count")
    used = header.metadata.get(key)
    if isinstance(used, ArrayInfo):
        most_used = max((header.integers(key) or [0])[:MAX_LAYERS], default=0)
    else:
        most_used = header.integer(key) or 0
    if header.architecture in ("hunyuan_vl", "hunyuan-dense") and experts <= 1:
        return
    if not 0 <= experts <= MAX_EXPERTS:
        raise _corrupt(header, f"it counts {experts:,} experts, where at most {MAX_EXPERTS} are possible")
    if not 0 <= most_used <= experts or (experts and not most_used):
        raise _corrupt(header, f"it uses {most_used:,} of {experts:,} experts")
    groups = header.own_integer("expert_group_count") or 0
    used_groups = header.own_integer("expert_group_used_count") or 0
    if groups and not 0 <= groups < experts:
        raise _corrupt(header, f"it has {groups:,} groups of {experts:,} experts")
    if groups > 1 and (experts % groups or not 0 < used_groups < groups):
        raise _corrupt(header, f"it uses {used_groups:,} of {groups:,} groups of {experts:,} experts")


def _corrupt(header: Header, what: str) -> ModelFileError:
    return ModelFileError(
        f"{shown_path(header.path)} is corrupt: {what}. Download it again, or convert it again."
    )
