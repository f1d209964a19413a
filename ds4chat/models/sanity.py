"""Checks for metadata on which llama.cpp aborts the whole process instead of refusing the file.

Each check mirrors an assertion in llama_model_base::load_hparams (src/llama-model.cpp), in the
architecture's own load_arch_hparams, or in src/llama-vocab.cpp.
"""

from __future__ import annotations

import numpy as np

from ds4chat.models import tokenizer
from ds4chat.models.gguf_file import ArrayInfo, Header
from ds4chat.models.requirements import EXPERTS_BY_BLOCK, MAX_LAYERS, ROTATE_NOTHING, check_values
from ds4chat.text import shortened

MAX_EXPERTS = 1024
MAX_ROTATED = 1 << 16
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


def check_metadata(header: Header) -> None:
    """Raises ModelFileError for sizes and counts that contradict each other."""
    if not header.architecture:
        return
    blocks = header.own_integer("block_count")
    if blocks is not None and not 1 <= blocks <= MAX_LAYERS:
        header.corrupt(f"it counts {blocks:,} blocks, where 1 to {MAX_LAYERS} are possible")
    nextn = header.own_integer("nextn_predict_layers") or 0
    if blocks is not None and not 0 <= nextn <= blocks:
        header.corrupt(f"it counts {nextn:,} NextN blocks among {blocks} blocks")
    width = header.own_integer("embedding_length")
    if width is not None and width < 1:
        header.corrupt("its embeddings are 0 wide")
    empty = next((name for name, tensor in header.tensors.items() if 0 in tensor.dims), None)
    if empty is not None:
        header.corrupt(f"its tensor {shortened(empty)} is empty")
    _check_experts(header)
    _check_numbers(header)
    _check_sections(header)
    check_values(header)
    scaling = header.text(header.own("rope.scaling.type"))
    if scaling and scaling not in _ROPE_SCALINGS:
        header.corrupt(f"its rope scaling is of the unknown type {shortened(scaling)}")
    ratios = header.metadata.get(header.own("attention.compress_ratios"))
    if isinstance(ratios, ArrayInfo) and ratios.length > MAX_LAYERS:
        header.corrupt(f"it counts {ratios.length:,} compression ratios")


def check_vocabulary(header: Header) -> None:
    """Raises ModelFileError for a vocabulary on which llama.cpp aborts. Reads the tokens' texts."""
    if not tokenizer.has_tokenizer(header):
        return
    # llama.cpp reads a text up to its first zero byte, and replaces an empty one by its number.
    cut = [bytes(text).split(b"\0")[0] for text in header.array(tokenizer.TOKENS) or ()]  # type: ignore[arg-type]
    texts = [text or b"[EMPTY_%d]" % i for i, text in enumerate(cut)]
    if len(set(texts)) < len(texts):
        header.corrupt("its vocabulary has the same token twice")
    if tokenizer.adds_bos(header) and tokenizer.bos(header) is None:
        header.corrupt("its tokenizer puts a begin token before each prompt and names none")
    if tokenizer.adds_eos(header) and tokenizer.eos(header) is None:
        header.corrupt("its tokenizer puts an end token after each prompt and names none")


def check_tables(header: Header) -> None:
    """Raises ModelFileError for a table of experts by token with an expert that does not exist. Reads the
    table."""
    experts = header.own_integer("expert_count") or 0
    for tensor in header.tensors.values():
        if tensor.name.endswith(".ffn_gate_tid2eid.weight") and tensor.type.name == "I32":
            for chunk in header.tensor_chunks(tensor):
                ids = np.frombuffer(chunk, "<i4")
                if not 0 <= ids.min() <= ids.max() < experts:
                    header.corrupt(f"its table {tensor.name} names experts that do not exist")


def _check_sections(header: Header) -> None:
    """The parts of a head that turn by time, height and width."""
    key = header.own("rope.dimension_sections")
    sections = header.integers(key) if isinstance(header.metadata.get(key), ArrayInfo) else None
    if sections is None:
        return
    head = header.own_integer("attention.key_length")
    most = MAX_ROTATED if head is None else head
    turns = any(sections[:3]) or not header.architecture.startswith("qwen")
    if min(sections, default=0) < 0 or sum(sections) > most or not turns:
        header.corrupt(f"it rotates the parts {sections[:4]} of a head")


def _check_numbers(header: Header) -> None:
    """Values that the kernels assert."""
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        epsilon = header.metadata.get(header.own(key))
        if isinstance(epsilon, int | float) and not 0 <= epsilon < 1:
            header.corrupt(f"its {key} is {epsilon}")
    for suffix in ("", "_swa"):
        rotated = header.own_integer(f"rope.dimension_count{suffix}")
        head = header.own_integer(f"attention.key_length{suffix}")
        least = 0 if header.architecture in ROTATE_NOTHING else 1
        if rotated is not None and (rotated % 2 or not least <= rotated <= MAX_ROTATED):
            header.corrupt(f"it rotates {rotated:,} values of a head")
        if rotated is not None and head is not None and rotated > head:
            header.corrupt(f"it rotates {rotated:,} values of heads that are {head:,} wide")
    inner = header.own_integer("ssm.inner_size")
    wide = next((t.dims for name, t in header.tensors.items() if name.endswith(".ssm_out.weight")), None)
    if inner is not None and wide and inner != wide[0]:
        header.corrupt(f"its recurrent state is {inner:,} wide, and its tensors ask for {wide[0]:,}")


def _check_experts(header: Header) -> None:
    experts = header.own_integer("expert_count") or 0
    used = header.own_each("expert_used_count", header.own_integer("block_count") or 1, 0)
    most_used = max(used, default=0)
    if header.architecture in ("hunyuan_vl", "hunyuan-dense") and experts <= 1:
        return
    if not 0 <= experts <= MAX_EXPERTS:
        header.corrupt(f"it counts {experts:,} experts, where at most {MAX_EXPERTS} are possible")
    if not 0 <= most_used <= experts or (experts and not most_used):
        header.corrupt(f"it uses {most_used:,} of {experts:,} experts")
    if experts and not used[0] and header.architecture not in EXPERTS_BY_BLOCK:
        header.corrupt("it uses 0 experts in its first block, and llama.cpp would use as many in all others")
    groups = header.own_integer("expert_group_count") or 0
    used_groups = header.own_integer("expert_group_used_count") or 0
    if groups and not 0 <= groups < experts:
        header.corrupt(f"it has {groups:,} groups of {experts:,} experts")
    if groups > 1 and (experts % groups or not 0 < used_groups < groups):
        header.corrupt(f"it uses {used_groups:,} of {groups:,} groups of {experts:,} experts")
