"""The vocabulary that every constructed GGUF shares: control tokens, 256 byte tokens, words.

A byte-pair tokenizer whose merges build each word strictly from its first byte (" t" + "h", " th" + "e"),
so that a text has one tokenization that can be worked out by hand. Words carry their leading space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import gguf

Variant = Literal["standard", "changed", "longer", "hostile"]
"""``changed``: one word has another text. ``longer``: 32 more unused tokens. ``hostile``: a word of the
endless cycle is a sequence that drives a terminal."""

CONTROL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
)
BOS, EOS, PAD, USER, ASSISTANT, THINK, END_THINK = range(len(CONTROL))

# fmt: off
CYCLE_WORDS = (
    "we", "go", "up", "to", "the", "old", "red", "hut", "by", "sea", "and", "sit",
    "on", "a", "big", "log", "so", "sun", "may", "set", "as", "day", "end", "now",
)
# fmt: on
THINKING_WORDS = ("let", "me", "see", "this")
ANSWER_WORDS = ("yes", "it", "is", "fine")
TOPICS = ("loop", "emoji", "broken", "stop", "cut", "ponder")
"""Words that open a reply of their own; see tiny.chain."""
OTHER_WORDS = ("look", "wow", "ok", "all", "done", "off", "here")
_CHANGED = {"log": "lot"}
HOSTILE_WORD = "\x1bc\x07"

FIRST_BYTE = len(CONTROL)
FIRST_WORD = FIRST_BYTE + 256
N_VOCAB = 384

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% else %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>"
    "{% set words = messages[-1].content.split() %}"
    "{% if words and words[-1] in [" + ", ".join(f"'{t}'" for t in TOPICS) + "] %}{{ ' ' + words[-1] }}"
    "{% elif thinking | default(enable_thinking | default(false)) %}<think>"
    "{% else %}</think>{% endif %}{% endif %}"
)
"""DeepSeek's layout. A message that ends with a topic word opens the reply with that word, because the
constructed models see one token back and could not tell the prompt otherwise."""


def _byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = [chr(byte) if byte in printable else "" for byte in range(256)]
    spare = 256
    for byte in range(256):
        if not characters[byte]:
            characters[byte] = chr(spare)
            spare += 1
    return characters


BYTE_CHARACTERS = _byte_characters()
_SPACE = BYTE_CHARACTERS[32]


def stored(text: str) -> str:
    """A text as the GGUF stores it in a byte-pair token."""
    return "".join(BYTE_CHARACTERS[byte] for byte in text.encode())


@dataclass(frozen=True)
class Vocabulary:
    """Token texts as the GGUF stores them, their types, and the merges in order of rank."""

    texts: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]

    @property
    def index(self) -> dict[str, int]:
        """Stored text -> id."""
        return {text: i for i, text in enumerate(self.texts)}


def _words() -> list[str]:
    return [*CYCLE_WORDS, *THINKING_WORDS, *ANSWER_WORDS, *TOPICS, *OTHER_WORDS]


def vocabulary(variant: Variant = "standard") -> Vocabulary:
    """The vocabulary; ids are the same in every variant."""
    texts = [*CONTROL, *BYTE_CHARACTERS]
    merges: list[str] = []
    for word in _words():
        if variant == "changed":
            word = _CHANGED.get(word, word)
        elif variant == "hostile" and word == "red":
            word = "".join(BYTE_CHARACTERS[byte] for byte in HOSTILE_WORD.encode())
        stored = _SPACE + word
        for end in range(2, len(stored) + 1):
            if stored[:end] not in texts[FIRST_WORD:]:
                texts.append(stored[:end])
                merges.append(f"{stored[: end - 1]} {stored[end - 1]}")
    assert len(texts) <= N_VOCAB, len(texts)
    size = N_VOCAB + (32 if variant == "longer" else 0)
    types = [int(gguf.TokenType.CONTROL)] * len(CONTROL) + [int(gguf.TokenType.NORMAL)] * (
        len(texts) - len(CONTROL)
    )
    types += [int(gguf.TokenType.UNUSED)] * (size - len(texts))
    texts += [f"<unused{i}>" for i in range(len(texts), size)]
    return Vocabulary(tuple(texts), tuple(types), tuple(merges))


_STANDARD = vocabulary()
_INDEX = _STANDARD.index


def byte(value: int) -> int:
    """Id of a byte token."""
    return FIRST_BYTE + value


def word(text: str) -> int:
    """Id of a word, given without its leading space."""
    return _INDEX[_SPACE + text]


def words(texts: Iterable[str]) -> list[int]:
    """Ids of words, given without their leading spaces."""
    return [word(text) for text in texts]


_PIECES = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_SPECIALS = re.compile("(" + "|".join(re.escape(c) for c in CONTROL) + ")")


def encode(text: str, *, bos: bool = True) -> list[int]:
    """Token ids of a text, control tokens recognised in it, as llama.cpp gives them for this vocabulary."""
    ids = [BOS] if bos else []
    for part in _SPECIALS.split(text):
        if part in CONTROL:
            ids.append(CONTROL.index(part))
            continue
        for piece in _PIECES.findall(part):
            ids += _encode_piece(piece)
    return ids


def _encode_piece(piece: str) -> list[int]:
    text = stored(piece)
    # Merges grow from a leading space alone: the longest known prefix is one token, bytes follow.
    longest = 1
    while longest < len(text) and text[: longest + 1] in _INDEX:
        longest += 1
    return [_INDEX[text[:longest]]] + [_INDEX[c] for c in text[longest:]] if text else []


def piece(token: int) -> bytes:
    """Bytes that a token stands for; empty for a control or unused token."""
    if token < FIRST_BYTE or _STANDARD.types[token] == int(gguf.TokenType.UNUSED):
        return b""
    return bytes(BYTE_CHARACTERS.index(c) for c in _STANDARD.texts[token])


def text(tokens: Iterable[int]) -> str:
    """Text of tokens without their control tokens; broken UTF-8 becomes U+FFFD."""
    return b"".join(piece(t) for t in tokens).decode("utf-8", "replace")


def add_tokenizer(writer: gguf.GGUFWriter, variant: Variant = "standard", pre: str = "gpt-2") -> None:
    """Write the tokenizer's metadata and the chat template."""
    known = vocabulary(variant)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(known.texts))
    writer.add_token_types(list(known.types))
    writer.add_token_merges(list(known.merges))
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
