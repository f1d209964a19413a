"""Hostile GGUFs: whatever is in a file, only ModelFileError comes out, soon and with little memory.

DS4CHAT_FUZZ_CASES (2000) cases are run from DS4CHAT_FUZZ_SEED (1) on; a failing case names its own seed.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits import gguf as kit
from kits.mutation import WILD, mutate
from kits.work import calls

from ds4chat.commands.inspect import inspect_files, render
from ds4chat.models.convert import convert_mtp
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import read_header
from ds4chat.models.kinds import describe
from ds4chat.models.pairing import check_pair, check_target
from ds4chat.models.summary import quantisation
from ds4chat.text import one_line

CASES = int(os.environ.get("DS4CHAT_FUZZ_CASES", "2000"))
"""Of the slow run; a fifth of them in the fast one."""
few_and_many = pytest.mark.parametrize(
    "cases", [pytest.param(CASES // 5, id="few"), pytest.param(CASES, id="many", marks=pytest.mark.slow)]
)
SEED = int(os.environ.get("DS4CHAT_FUZZ_SEED", "1"))
MOST_CALLS = 2_000_000
"""Function calls of one case: far above any seen, far below a hang."""

PAIRS = [
    ("deepseek4", "deepseek4-support"),
    ("deepseek4-nextn", "embedded"),
    ("qwen35-nextn", "embedded"),
    ("llama", "llama-draft"),
    ("llama", "eagle3"),
    ("gemma4", "gemma4-assistant"),
    ("deepseek4", "deepseek4-ds4"),
]


def outcome(call: Callable[[], object]) -> bool:
    """True where the call answered; False where it refused with a sentence. Anything else is raised."""
    try:
        call()
    except ModelFileError as error:
        sentence = str(error)
        assert sentence.endswith((".", ")")) and one_line(sentence) == sentence, sentence
        return False
    return True


def use(path: Path, target: Path | None, support: Path | str | None) -> bool:
    """Everything that is done to a file whose origin nobody knows."""

    def look() -> None:
        header = read_header(path)
        describe(header)
        quantisation(header)
        asdict(inspect_files(path))
        assert all(one_line(line) == line for line in render(inspect_files(path)).split("\n"))

    def pair() -> None:
        if target is None:
            check_pair(check_target(path), support or "embedded")
        else:
            check_pair(check_target(target), path)

    return outcome(look) & outcome(pair)


@few_and_many
@pytest.mark.parametrize(("model", "support"), PAIRS)
def test_changed_bytes(model: str, support: str, cases: int, tiny_dir: Path, tmp_path: Path) -> None:
    """Constructed files with changed bytes, as target and as support file."""
    good = tiny.build(model, tiny_dir)
    beside = "embedded" if support == "embedded" else tiny.build(support, tiny_dir)
    files = [(good, None, beside)]
    if isinstance(beside, Path):
        files.append((beside, good, None))
    contents = {path: path.read_bytes() for path, _, _ in files}
    ends = {path: read_header(path).parts[0].data_offset for path in contents}
    path, taken = tmp_path / "hostile.gguf", 0
    cases = max(1, cases // len(PAIRS))
    for seed in range(SEED, SEED + cases):
        rng = random.Random(seed)
        source, target, other = rng.choice(files)
        path.write_bytes(mutate(contents[source], ends[source], rng))
        answers: list[bool] = []
        look = partial(use, path, target, other)
        try:
            work = calls(lambda look=look, answers=answers: answers.append(look()))
        except Exception as error:
            raise AssertionError(f"{model} with {support}, seed {seed}: {error!r}") from error
        taken += answers[0]
        assert work < MOST_CALLS, f"{model} with {support}, seed {seed}"
    if cases >= 100 and support != "deepseek4-ds4":
        assert 0 < taken < cases  # a change can be harmless, and is not always


@few_and_many
def test_changed_bytes_under_the_conversion(cases: int, tiny_dir: Path, tmp_path: Path) -> None:
    """Either file hostile: a result that is whole, or a sentence and no file."""
    main, support = tiny.build("deepseek4", tiny_dir), tiny.build("deepseek4-ds4", tiny_dir)
    path, out = tmp_path / "hostile.gguf", tmp_path / "out.gguf"
    for seed in range(SEED, SEED + max(1, cases // 20)):
        rng = random.Random(seed)
        source = rng.choice((main, support))
        path.write_bytes(mutate(source.read_bytes(), read_header(source).parts[0].data_offset, rng))
        pair = (path, support) if source is main else (main, path)
        if outcome(lambda pair=pair: convert_mtp(*pair, out)):
            read_header(out)
            out.unlink()
        assert not out.exists(), f"seed {seed}"


KEYS = st.sampled_from(
    [f"general.{k}" for k in ("architecture", "type", "alignment", "file_type")]
    + ["split.count", "split.no"]
    + [f"llama.{k}" for k in ("block_count", "embedding_length", "expert_count", "expert_used_count")]
    + [f"llama.{k}" for k in ("nextn_predict_layers", "context_length", "pooling_type", "vocab_size")]
    + [f"tokenizer.ggml.{k}" for k in ("tokens", "model", "bos_token_id", "add_bos_token", "pre")]
) | st.text(max_size=12)
NUMBERS = st.sampled_from(WILD)
WORDS = ["llama", "eagle3", "deepseek4", "clip", "adapter", "gpt2", ""]
TEXTS = st.sampled_from(WORDS) | st.text(max_size=20)
NAMES = ["token_embd.weight", "blk.0.attn_norm.weight", "d2t", "mtp.0.x", "blk.1.nextn.eh_proj.weight"]
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the value types that do not take four."""


@st.composite
def values(draw: st.DrawFn) -> tuple[int, bytes]:
    """A value's type and its encoding, right or wrong."""
    kind = draw(st.integers(0, 13))
    if kind == 8:
        return kind, kit.text(draw(TEXTS).encode("utf-8", "replace"))
    if kind == 9:
        element, length = draw(st.integers(0, 13)), draw(st.integers(0, 4) | NUMBERS)
        body = b"".join(kit.text(draw(TEXTS)) for _ in range(min(length, 4))) if element == 8 else bytes(64)
        return kind, kit.array(element, length, body)
    return kind, struct.pack("<Q", draw(NUMBERS))[: SIZES.get(kind, 4)]


@st.composite
def hostile_files(draw: st.DrawFn) -> bytes:
    """A file of the right form, whose content is anything."""
    pairs = [
        kit.pair(key.encode("utf-8", "replace"), *draw(values()))
        for key in draw(st.lists(KEYS, max_size=10, unique=True))
    ]
    tensors, offset = [], 0
    for name in draw(st.lists(st.sampled_from(NAMES) | st.text(max_size=70), max_size=5)):
        dims = draw(st.lists(st.integers(0, 64) | NUMBERS, max_size=5))
        raw = name.encode("utf-8", "replace").decode("utf-8")
        tensors.append(kit.tensor(raw, dims, draw(st.integers(0, 45)), draw(st.just(offset) | NUMBERS)))
        offset += 32
    counts = {
        "n_pairs": draw(st.none() | NUMBERS),
        "n_tensors": draw(st.none() | NUMBERS),
        "version": draw(st.sampled_from([3, 3, 3, 2, 1])),
    }
    return kit.raw(pairs, tensors, bytes(draw(st.integers(0, 400))), **counts)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=hostile_files())
def test_files_made_up(content: bytes, tiny_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "made-up.gguf"
    path.write_bytes(content)
    use(path, None, "embedded")
    use(path, tiny.build("llama", tiny_dir), None)


def test_memory_of_a_hostile_file_stays_bounded(tmp_path: Path) -> None:
    """8 MiB of zeros as an array of a million empty strings, then a promise of 2**63 more bytes."""
    path = tmp_path / "zeros.gguf"
    pairs = [
        kit.pair("tokenizer.ggml.tokens", 9, kit.array(8, 1 << 20, bytes(1 << 23))),
        kit.pair("x", 8, struct.pack("<Q", 1 << 63)),
    ]
    path.write_bytes(kit.raw(pairs))
    with kit.peak_memory() as peak, pytest.raises(ModelFileError, match="says it is"):
        read_header(path)
    assert peak() < 2_000_000
