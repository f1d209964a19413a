"""Constructed models of one silent layer, with tokenizers of other kinds than tests/tiny's."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from ds4chat.engine.llama import Model

WIDTH = 64
CONTROL = ("<|im_end|>", "<|turn|>", "<|endoftext|>", "<s>", "</s>")
USER_DEFINED = ("<|im_start|>", "<h1>")
LETTERS = "abcdefghijklmnopqrstuvwxyz<>|/_ \n"
KINDS = ("spm", "spm-phi3", "spm-no-space", "t5", "rwkv")


def load(kind: str, folder: Path) -> Model:
    """A model with the tokenizer of a kind. spm-phi3: its special tokens swallow the blanks behind them.
    spm-no-bytes: it has no tokens for the bytes of other characters than its own."""
    path = folder / f"{kind}.gguf"
    _write(path, kind)
    return Model(str(path))


def _tokens(kind: str) -> list[tuple[str, float, gguf.TokenType]]:
    """Text, score and type of each token."""
    types = gguf.TokenType
    tokens: list[tuple[str, float, gguf.TokenType]] = [("<unk>", 0.0, types.UNKNOWN)]
    tokens += [(name, 0.0, types.CONTROL) for name in CONTROL]
    tokens += [(name, 0.0, types.USER_DEFINED) for name in USER_DEFINED]
    if kind == "rwkv":
        # The texts of this kind are escaped; every byte is a token.
        tokens += [(f"\\x{byte:02x}", 0.0, types.NORMAL) for byte in range(256)]
        return [*tokens, ("ab", 0.0, types.NORMAL), (" the", 0.0, types.NORMAL)]
    if kind != "spm-no-bytes":
        tokens += [(f"<0x{byte:02X}>", 0.0, types.BYTE) for byte in range(256)]
    letters = LETTERS.replace(" ", "▁").replace("\n", "")
    tokens += [(letter, -20.0, types.NORMAL) for letter in letters]
    # "<s" lets the merges of a typed "<s>" arrive at the control token itself.
    words = ["<s", "</s", "▁the", "th", "▁t", "ab", "im", "_e", "<|", "|>", "▁<", "▁▁", "▁▁▁▁"]
    return tokens + [(word, -5.0 - i, types.NORMAL) for i, word in enumerate(words)]


def _write(path: Path, kind: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    # llama.cpp tells which models' tokens swallow blanks by the model's name.
    writer.add_name("tiny phi-3" if kind == "spm-phi3" else "tiny")
    for key, value in {"context_length": 512, "embedding_length": WIDTH, "block_count": 1}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    tokens = _tokens(kind)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model({"t5": "t5", "rwkv": "rwkv"}.get(kind, "llama"))
    writer.add_token_list([text for text, _, _ in tokens])
    writer.add_token_scores([score for _, score, _ in tokens])
    writer.add_token_types([int(type_) for _, _, type_ in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1 + CONTROL.index("<s>"))
    writer.add_eos_token_id(1 + CONTROL.index("</s>"))
    if kind != "rwkv":
        writer.add_add_space_prefix(kind != "spm-no-space")
        writer.add_add_bos_token(True)
    ones, square = np.ones(WIDTH, np.float32), np.zeros((WIDTH, WIDTH), np.float32)
    table = np.zeros((len(tokens), WIDTH), np.float32)
    tensors = {"token_embd.weight": table, "output.weight": table, "output_norm.weight": ones}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensors[f"blk.0.{name}.weight"] = square
    for name in ("attn_norm", "ffn_norm"):
        tensors[f"blk.0.{name}.weight"] = ones
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
