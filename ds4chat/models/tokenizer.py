"""The vocabulary in a GGUF's metadata: its size, and its begin and end tokens."""

from __future__ import annotations

from ds4chat.models.gguf_file import ArrayInfo, Header

TOKENS = "tokenizer.ggml.tokens"

MAX_SIZE_DIFFERENCE = 128
"""Tokens by which a draft model's vocabulary may be longer or shorter than its target's: the padding that
two sizes of one family differ by (SPEC_VOCAB_MAX_SIZE_DIFFERENCE in common/speculative.cpp)."""

FIRST_COMPARED = 5
"""The first tokens of a draft model's vocabulary may differ: families rename their control tokens
(SPEC_VOCAB_CHECK_START_TOKEN_ID, same place)."""

# Defaults of src/llama-vocab.cpp for missing metadata.
_ADD_BOS_MODELS = frozenset(("llama", "bert"))
_ADD_BOS_PRE = frozenset(
    [
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
        "chameleon",
        "gemma4",
        "granite-embed-multi-311m",
    ]
)
_NO_BOS_PRE = frozenset(("chatglm-bpe", "glm4", "glm5"))
_BOS = {"llama": 1, "bert": 101, "gpt2": 11, "hybriddna": 11, "whitespace": 11, "plamo2": 1}
_EOS = {"llama": 2, "gpt2": 11, "hybriddna": 11, "whitespace": 11, "t5": 1, "plamo2": 2}


def has_tokenizer(header: Header) -> bool:
    """The file has its own vocabulary. llama.cpp can make no tokens of a text with that of some models."""
    unused = header.text("tokenizer.ggml.model") in ("none", "no_vocab")
    return isinstance(header.metadata.get(TOKENS), ArrayInfo) and not unused


def vocabulary_size(header: Header) -> int | None:
    """Number of tokens; None if the file does not say."""
    tokens = header.metadata.get(TOKENS)
    return tokens.length if isinstance(tokens, ArrayInfo) else header.own_integer("vocab_size")


def adds_bos(header: Header) -> bool:
    """Whether llama.cpp puts a begin token before a prompt."""
    stated = header.flag("tokenizer.ggml.add_bos_token")
    pre = header.text("tokenizer.ggml.pre")
    if header.text("tokenizer.ggml.model") == "gemma4" or pre in ("gemma4", "granite-embed-multi-311m"):
        return True
    if stated is not None:
        return stated
    return header.text("tokenizer.ggml.model") in _ADD_BOS_MODELS or pre in _ADD_BOS_PRE


def adds_eos(header: Header) -> bool:
    """Whether llama.cpp puts an end token after a prompt."""
    stated = header.flag("tokenizer.ggml.add_eos_token")
    return header.text("tokenizer.ggml.model") == "t5" if stated is None else stated


def bos(header: Header) -> int | None:
    """Id of the begin token."""
    fallback = _BOS.get(header.text("tokenizer.ggml.model"))
    if header.text("tokenizer.ggml.pre") in _NO_BOS_PRE:
        fallback = None
    return _valid(header, "tokenizer.ggml.bos_token_id", fallback)


def eos(header: Header) -> int | None:
    """Id of the end token."""
    fallback = _EOS.get(header.text("tokenizer.ggml.model"))
    return _valid(header, "tokenizer.ggml.eos_token_id", fallback)


def _valid(header: Header, key: str, fallback: int | None) -> int | None:
    """The id under ``key``, or the fallback, if it is an id of the vocabulary."""
    size = vocabulary_size(header) or 0
    stated = header.integer(key)
    if stated is not None and 0 <= stated < size:
        return stated
    return fallback if fallback is not None and fallback < size else None
