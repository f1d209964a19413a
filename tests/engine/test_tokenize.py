"""Text of any length becomes tokens or a sentence: long runs of one kind of character, and what cannot fit.

llama.cpp matches most pre-tokenizers with std::regex, which recurses once a character: a run of 26,000
letters ended the process. The names are those of llama.cpp's llama-vocab.cpp.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from kits import vocabularies
from kits.engine import opened
from tiny import vocab

from ds4chat.engine import llama, machine, stack
from ds4chat.engine.events import Load
from ds4chat.engine.llama import LlamaError, Model, TooLongError
from ds4chat.models.demo import demo_model

STYLES = ("deepseek-v3", "tekken", "poro-chat", "exaone-moe", "tiny_aya")
"""One pre-tokenizer of each style of pattern that recurses."""

# fmt: off
ALL = (
    "default", "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "deepseek-llm", "deepseek-coder", "deepseek-v3", "spark2_5", "youtu", "falcon",
    "mpt", "starcoder", "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de",
    "a.x-4.0", "mellum", "modern-bert", "jais-2", "jina-v1-en",
    "jina-v2-code", "roberta-bpe", "refact", "command-r", "qwen2", "deepseek-r1-qwen", "kormo",
    "f2llmv2", "qwen35", "stablelm2", "olmo", "dbrx", "smaug-bpe", "poro-chat", "chatglm-bpe", "glm4",
    "glm5", "viking", "jais", "tekken", "smollm", "codeshell", "bloom", "gpt3-finnish", "exaone",
    "exaone4", "exaone-moe", "chameleon", "minerva-7b", "megrez", "gpt-4o", "llama4", "kanana2",
    "talkie", "granite-embed-multi-97m", "tiny_aya", "cohere2moe", "superbpe", "trillion",
    "granite-docling", "bailingmoe", "bailingmoe2", "llada-moe", "seed-coder", "hunyuan",
    "hunyuan-dense", "hy_v4", "joyai-llm", "kimi-k2", "ufakzeka", "grok-2", "afmoe", "laguna",
    "minimax-m2", "solar-open", "mellum2",
)
# fmt: on

RUNS = {"letters": "a", "capitals": "A", "blanks": " ", "newlines": "\n", "signs": "=", "slashes": "/\n",
        "han": "語", "kana": "か", "accents": "é", "marks": "a\u0301", "emoji": "🙂"}  # fmt: skip

_CHILD = """
import json, sys
from ds4chat.engine.llama import Model
for path, units, length in json.loads(sys.stdin.read()):
    model = Model(path)
    for unit in units:
        text = unit * (length // len(unit))
        found = model.tokenize(text, add_special=False, parse_special=False)
        print(json.dumps([len(found), found[:8], found[-8:]]), flush=True)
    model.close()
"""


def tokenized(jobs: list[tuple[str, list[str], int]]) -> Iterator[Any]:
    """What a process of its own makes of runs: how many tokens, the first and the last."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], input=json.dumps(jobs), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    yield from map(json.loads, done.stdout.splitlines())


def check(names: tuple[str, ...], units: list[str], length: int, folder: Path) -> None:
    jobs = [(str(tiny.build("llama", folder, pre=name)), units, length) for name in names]
    found = tokenized(jobs)
    for name in names:
        for unit in units:
            # No merge of this vocabulary begins here, so each byte is a token, however the text is split.
            ids = [vocab.byte(b) for b in (unit * 8).encode()]
            n = len(unit.encode()) * (length // len(unit))
            assert next(found) == [n, ids[:8], ids[-8:]], (name, unit)


def test_runs_that_overflowed_the_stack_become_their_tokens(tiny_dir: Path) -> None:
    check(STYLES, [RUNS["letters"], RUNS["han"]], 60_000, tiny_dir)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_runs_of_every_kind_in_every_pre_tokenizer(tiny_dir: Path, name: str) -> None:
    # No digits: tiny_aya and superbpe look ahead from each of them to the end of the run.
    check((name,), list(RUNS.values()), 100_000, tiny_dir)


def test_a_chat_goes_on_after_a_run_of_letters(tiny_dir: Path) -> None:
    path = tiny.build("llama", tiny_dir, pre="deepseek-v3")
    with opened(Load(str(path), ctx=256, threads=1)) as bench:
        refused = bench.ask("a" * 30_000).ended
        assert refused.finish_reason == "context"
        assert "or more tokens and the context holds 256. Shorten it" in refused.detail
        assert bench.ask(" stop").text == " all done"


# ------------------------------------------------------------------------------------ the bound


@pytest.fixture(scope="module")
def models(tiny_dir: Path) -> Iterator[list[Model]]:
    found = [Model(str(tiny.build("llama", tiny_dir))), Model(str(demo_model()))]
    yield found
    for model in found:
        model.close()


_PARTS = st.sampled_from(
    [*vocab.CONTROL, "<|im_start|>", "<|im_end|>", " the old red", "  ", "\n\n", "é", "語"]
)


@given(text=st.lists(_PARTS | st.text(max_size=12), max_size=12).map("".join), special=st.booleans())
def test_no_text_becomes_fewer_tokens_than_the_bound(models: list[Model], text: str, special: bool) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    for model in models:
        tokens = model.tokenize(text, add_special=False, parse_special=special)
        assert len(tokens) >= model._fewest_tokens(raw)


def test_the_bound_is_near_where_tokens_are_long(models: list[Model]) -> None:
    """Of a text of the longest token alone it is exact: no better bound goes without splitting the text."""
    model = models[0]
    longest = max(vocab.CONTROL, key=lambda text: len(text.encode()))
    assert model._fewest_tokens((longest * 40).encode()) == 40
    assert len(model.tokenize(longest * 40, add_special=False, parse_special=True)) == 40


def test_what_cannot_fit_is_refused_before_it_is_split(
    models: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "_tokenize", lambda *_: pytest.fail("it was split"))
    for model in models:
        monkeypatch.setattr(model, "room", 64)
        with pytest.raises(TooLongError, match=r"has [\d,]+ or more tokens and the context holds 64\."):
            model.tokenize("word " * 40_000, add_special=True, parse_special=True)


def test_only_bytes_that_have_a_token_are_counted() -> None:
    stand_ins = frozenset(text.encode() for text in vocab.BYTE_CHARACTERS)
    written = frozenset(b"<0x%02X>" % byte for byte in range(256))
    spm, bpe, wordpiece = 1, 2, 3
    every = set(range(256))
    assert llama._bytes_with_tokens(bpe, stand_ins) == llama._bytes_with_tokens(bpe, written) == every
    assert llama._bytes_with_tokens(spm, written) == every and not llama._bytes_with_tokens(spm, stand_ins)
    assert not llama._bytes_with_tokens(wordpiece, stand_ins | written)
    for byte in (0, 32, 65, 173, 255):
        without = stand_ins - {vocab.BYTE_CHARACTERS[byte].encode()}
        assert llama._bytes_with_tokens(bpe, without) == every - {byte}


# ------------------------------------------------------------------------------------ the stack


def test_a_call_that_needs_little_stack_stays_in_its_thread_and_others_get_what_they_ask_for() -> None:
    here = threading.get_ident()
    assert stack.call(threading.get_ident, stack.SMALLEST) == here
    before = threading.stack_size()
    assert stack.call(threading.get_ident, 64 << 20) != here
    assert threading.stack_size() == before
    with pytest.raises(ZeroDivisionError):
        stack.call(lambda: 1 // 0, 64 << 20)


def test_a_text_that_memory_may_not_suffice_for_is_refused_in_a_sentence(
    models: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 16 << 20)
    monkeypatch.setattr(models[0], "room", 0)
    with pytest.raises(LlamaError, match=r"10,000 characters may need more memory .* Send it in parts"):
        models[0].tokenize("a" * 10_000, add_special=False, parse_special=False)
    with pytest.raises(stack.NoStackError):
        stack.call(lambda: None, 1 << 62)


def test_a_character_that_a_vocabulary_cannot_spell_is_a_sentence(tmp_path: Path) -> None:
    """llama.cpp would end the process."""
    model = vocabularies.load("spm-no-bytes", tmp_path)

    def text(of: Model, written: str) -> str:
        tokens = of.tokenize(written, add_special=False, parse_special=True)
        return b"".join(map(of.piece, tokens)).decode().strip()

    assert text(model, "the ab") == "the ab"
    with pytest.raises(LlamaError, match=r'cannot spell "é": it has no token for this character'):
        model.tokenize("the é", add_special=False, parse_special=True)
    with pytest.raises(LlamaError, match=r'cannot spell "\\x1b"'):
        model.tokenize("\x1b", add_special=False, parse_special=False)
    assert text(model, "a<h1>") == "a<h1>"  # a digit within a special token
    with pytest.raises(LlamaError, match='cannot spell "1"'):
        model.tokenize("h1", add_special=False, parse_special=True)
    assert text(vocabularies.load("spm", tmp_path), "é1") == "é1"
