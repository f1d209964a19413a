"""The name of a model, from its file's name and its metadata."""

from __future__ import annotations

import pytest

from ds4chat.models.demo import demo_model
from ds4chat.models.gguf_file import read_header
from ds4chat.models.naming import display_name


@pytest.mark.parametrize(
    ("path", "metadata", "shown"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2 135M Instruct"),
        ("qwen2.5-coder-7b-instruct-q4_k_m.gguf", "Qwen2.5 Coder 7B Instruct", "Qwen2.5 Coder 7B Instruct"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL-00001-of-00002.gguf", "", "Qwen3 30B A3B"),
        ("/m/SmolLM2-135M.gguf", "Smollm2 135M", "SmolLM2 135M"),
        ("llama-8b.gguf", "Meta Llama 3.1 8B Instruct", "Meta Llama 3.1 8B Instruct"),
        ("ggml-model-f16.gguf", "Phi 3 Mini", "Phi 3 Mini"),
        (
            "/o/blobs/sha256-6a0746a1ec1aef3e7ec53868f220ff6e389f6f8ef87a01d77c96807de94ca2aa",
            "L 3 8B",
            "L 3 8B",
        ),
        ("model.gguf", "/data/out/Mistral-7B-v0.3", "Mistral 7B v0.3"),
        ("model.gguf", "", "model"),
        ("x.gguf", "", "x"),
        ("", "", ""),
        ("a\x1b]0;b\x07c-7B.gguf", "", "a\\x1b]0;b\\x07c 7B"),
        ("y.gguf", "evil\x1b[31m name\n7B", "evil\\x1b[31m name 7B"),
    ],
)
def test_the_best_of_file_name_and_metadata(path: str, metadata: str, shown: str) -> None:
    assert display_name(path, metadata) == shown


def test_the_demo_has_its_published_name() -> None:
    path = demo_model()
    assert display_name(str(path), read_header(path).text("general.name")) == "SmolLM2 135M Instruct"
