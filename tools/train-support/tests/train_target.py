"""A small random llama with grouped-query attention, the target of the training tests."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tiny import vocab

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FF = 64, 6, 4, 2, 16, 96


def write_target(path: Path, seed: int = 1) -> Path:
    """Write the target: untied output, float32, the constructed models' tokenizer. Returns the path."""
    rng = np.random.default_rng(seed)

    def noise(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def gain() -> np.ndarray:
        return (1 + 0.2 * rng.standard_normal(WIDTH)).astype(np.float32)

    kv = KV_HEADS * HEAD_DIM
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random target")
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(vocab.N_VOCAB)
    vocab.add_tokenizer(writer)
    writer.add_tensor("token_embd.weight", noise(vocab.N_VOCAB, WIDTH, np.sqrt(WIDTH)))
    writer.add_tensor("output_norm.weight", gain())
    writer.add_tensor("output.weight", noise(vocab.N_VOCAB, WIDTH))
    for i in range(LAYERS):
        tensors = {
            "attn_norm": gain(),
            "attn_q": noise(WIDTH, WIDTH, 2.0),
            "attn_k": noise(kv, WIDTH, 2.0),
            "attn_v": noise(kv, WIDTH),
            "attn_output": noise(WIDTH, WIDTH),
            "ffn_norm": gain(),
            "ffn_gate": noise(FF, WIDTH),
            "ffn_up": noise(FF, WIDTH),
            "ffn_down": noise(WIDTH, FF),
        }
        for name, values in tensors.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
