"""Constructed llama models: a target, a draft model, an EAGLE-3 head for the target, and random twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tiny import chain, raw, vocab
from tiny.tensors import (
    GAIN,
    HIDDEN_WEIGHT,
    TOKEN_WEIGHT,
    Tensors,
    draft_output,
    embedding,
    noise,
    ones,
    random_table,
    successor_matrix,
    target_output,
    write,
    zeros,
)
from tiny.vocab import Variant

_HEADS = 2  # of 32: a head that a q8_0 cache divides
_FF = 64


def _metadata(width: int, n_layer: int) -> dict[str, Any]:
    return {
        "context_length": 4096,
        "embedding_length": width,
        "block_count": n_layer,
        "feed_forward_length": _FF,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": width // _HEADS,
        "vocab_size": vocab.N_VOCAB,
    }


def _silent_block(i: int, width: int, ff: int = _FF) -> Tensors:
    """A block that adds nothing to its input; its KV cache is real all the same."""
    eye = np.eye(width, dtype=np.float32)
    p = f"blk.{i}."
    return {
        p + "attn_norm.weight": ones(width),
        p + "attn_q.weight": eye,
        p + "attn_k.weight": eye,
        p + "attn_v.weight": eye,
        p + "attn_output.weight": zeros(width, width),
        p + "ffn_norm.weight": ones(width),
        p + "ffn_gate.weight": zeros(ff, width),
        p + "ffn_up.weight": zeros(ff, width),
        p + "ffn_down.weight": zeros(width, ff),
    }


def _write_bigram(
    path: Path,
    n_layer: int,
    head: np.ndarray,
    variant: Variant,
    name: str,
    *,
    pre: str = "gpt-2",
    nan_token: int = -1,
) -> None:
    width = chain.N_CLASSES
    n_vocab = len(vocab.vocabulary(variant).texts)
    tensors: Tensors = {
        "token_embd.weight": embedding(n_vocab),
        "output_norm.weight": ones(width),
        "output.weight": head,
    }
    if nan_token >= 0:
        tensors["token_embd.weight"][nan_token] = np.nan
    for i in range(n_layer):
        tensors |= _silent_block(i, width)
    metadata = _metadata(width, n_layer) | {"vocab_size": n_vocab}
    write(path, "llama", metadata, tensors, name=name, variant=variant, pre=pre)


def write_target(
    path: Path,
    *,
    gain: float = GAIN,
    runner_ratio: float = 0.0,
    vocabulary: Variant = "standard",
    pre: str = "gpt-2",
    name: str = "tiny llama",
    nan_token: int = -1,
    flat: bool = False,
) -> None:
    """Four silent layers under the target's head.

    ``nan_token``: its embedding is no number, nor is any row from there on. ``flat``: every logit is 0.
    """
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    head = target_output(n_vocab, gain, runner_ratio) * (not flat)
    _write_bigram(path, 4, head, vocabulary, name, pre=pre, nan_token=nan_token)


def write_speaker(
    path: Path,
    *,
    says: tuple[str, ...],
    special: tuple[str, ...],
    template: str,
    eos: str = "",
    user_defined: bool = False,
) -> None:
    """A model with tokens and a template of its own that answers everything with the texts of ``says``, one
    token each and none of them twice; then it goes on from the one that the last text repeats, or ends.

    ``special`` are its control tokens (or user-defined ones), of which ``eos`` ends a reply.
    """
    chain_ = list(dict.fromkeys(says))
    texts = ["<eos>", *special, *vocab.BYTE_CHARACTERS]
    texts += [text for text in map(vocab.stored, (t for t in chain_ if t not in texts)) if text not in texts]
    index = {text: i for i, text in enumerate(texts)}
    ids = [index.get(text, index.get(vocab.stored(text), 0)) for text in says]
    shared = chain.N_CLASSES - 1
    assert len(chain_) <= shared
    table, head = zeros(len(texts), chain.N_CLASSES), zeros(len(texts), chain.N_CLASSES)
    table[:, shared] = 1
    head[ids[0], shared] = GAIN
    for class_, token in enumerate(dict.fromkeys(ids)):
        table[token] = 0
        table[token, class_] = 1
        follows = ids[ids.index(token) + 1 : ids.index(token) + 2] or [index[eos or "<eos>"]]
        head[follows[0], class_] = GAIN

    def tokenizer(writer: gguf.GGUFWriter) -> None:
        kind = gguf.TokenType.USER_DEFINED if user_defined else gguf.TokenType.CONTROL
        kinds = [gguf.TokenType.CONTROL, *[kind] * len(special)]
        kinds += [gguf.TokenType.NORMAL] * (len(texts) - len(kinds))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(texts)
        writer.add_token_types([int(kind) for kind in kinds])
        writer.add_token_merges([" ".join(vocab.BYTE_CHARACTERS[:2])])  # of bytes that nobody writes
        writer.add_eos_token_id(index[eos or "<eos>"])
        writer.add_add_bos_token(False)
        writer.add_chat_template(template)

    tensors: Tensors = {"token_embd.weight": table, "output_norm.weight": ones(64), "output.weight": head}
    tensors |= _silent_block(0, chain.N_CLASSES)
    metadata = _metadata(chain.N_CLASSES, 1) | {"vocab_size": len(texts)}
    write(path, "llama", metadata, tensors, name="tiny speaker", variant=None, tokenizer=tokenizer)


def write_draft(
    path: Path,
    *,
    wrong_every: int = 4,
    gain: float = GAIN,
    wrong_gain: float | None = None,
    vocabulary: Variant = "standard",
) -> None:
    """One silent layer under a drafter's head."""
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    _write_bigram(path, 1, draft_output(n_vocab, wrong_every, gain, wrong_gain), vocabulary, "tiny draft")


def write_random(path: Path, *, quant: str = "F32", n_layer: int = 4, seed: int = 1) -> None:
    """Random weights of width 256, in rows that every block quantisation divides.

    ``quant`` is a ggml type (Q4_0, Q8_0, Q4_K, ...) that llama.cpp stores all matrices in. Raises RawError
    when it knows no such type.
    """
    rng = np.random.default_rng(seed)
    width = 256
    tensors = random_table(rng, width) | {"output_norm.weight": ones(width)}
    for i in range(n_layer):
        tensors |= {
            name: values if values.ndim == 1 else noise(rng, values.shape)
            for name, values in _silent_block(i, width, width).items()
        }
    source = path if quant == "F32" else path.with_suffix(".f32")
    metadata = _metadata(width, n_layer) | {"feed_forward_length": width}
    write(source, "llama", metadata, tensors, name="tiny random llama")
    if quant != "F32":
        raw.quantize(source, path, quant)
        source.unlink()


def write_eagle3(
    path: Path,
    *,
    wrong_every: int = 4,
    gain: float = GAIN,
    wrong_gain: float | None = None,
    reduced: bool = True,
    own_embeddings: bool = True,
    own_output: bool = True,
    target_width: int = chain.N_CLASSES,
    layers: tuple[int, int, int] = (0, 2, 3),
    height: float = 1.0,
    vocabulary: Variant = "standard",
) -> None:
    """An EAGLE-3 head for the llama target (width 64).

    The encoder gives the class of its position's token: the mean of three layer inputs, all alike in the
    target. In the decoder each position attends to itself alone, and what attention adds is
    0.4 * class(token) + 0.6 * successor(class of the hidden row) - that row: its residual is swapped for
    the mixture of tiny.tensors. ``reduced`` scores the chains' tokens only and maps them with d2t. Without
    ``own_embeddings`` or ``own_output`` it borrows the target's table; the target's head is never wrong, so
    ``wrong_every`` says nothing then. ``height``: of the one in the target's layer inputs.
    """
    width, n_layer = chain.N_CLASSES, 1
    n_vocab = len(vocab.vocabulary(vocabulary).texts)
    eye = np.eye(width, dtype=np.float32)
    value = np.hstack([TOKEN_WEIGHT * eye, HIDDEN_WEIGHT * successor_matrix() - eye]) / 8
    # Any one-hot row gives the same query and key, whose product is largest at distance 0: by 30 and more
    # in the exponent for all distances up to 4096 (tests/tiny works it out).
    constant = np.zeros((width, 2 * width), np.float32)
    constant[:, :width] = 1.5
    thirds = np.hstack([np.eye(width, target_width, dtype=np.float32) / (3 * height)] * 3)
    tensors: Tensors = {
        "fc.weight": thirds.astype(np.float32),
        "output_norm.weight": ones(width),
        "blk.0.attn_norm.weight": ones(width),
        "blk.0.attn_norm_2.weight": ones(width),
        "blk.0.attn_q.weight": constant,
        "blk.0.attn_k.weight": constant,
        "blk.0.attn_v.weight": value.astype(np.float32),
        "blk.0.attn_output.weight": eye,
        "blk.0.ffn_norm.weight": ones(width),
        "blk.0.ffn_gate.weight": zeros(_FF, width),
        "blk.0.ffn_up.weight": zeros(_FF, width),
        "blk.0.ffn_down.weight": zeros(width, _FF),
    }
    if own_embeddings:
        tensors["token_embd.weight"] = embedding(n_vocab)
    if own_output:
        head = draft_output(n_vocab, wrong_every, gain, wrong_gain)
        if reduced:
            kept = np.flatnonzero(head.any(axis=1))
            tensors["d2t"] = kept.astype(np.int64)
            head = head[kept]
        tensors["output.weight"] = head
    metadata = _metadata(width, n_layer) | {
        "target_layers": list(layers),
        "target_hidden_size": target_width,
        "vocab_size": n_vocab,
    }
    write(path, "eagle3", metadata, tensors, name="tiny EAGLE-3", variant=vocabulary)
