"""Hostile GGUFs under llama.cpp: what ds4chat's own checks let through must not end the engine.

Constructed pairs with changed bytes are loaded and asked for a few tokens in a child process. A child that
dies, or does not answer, is the finding of its case; another one goes on with the next.

DS4CHAT_LOADER_CASES cases are run from seed DS4CHAT_LOADER_SEED on, in the slow run; a tenth of them in the
fast one. A failing case names its pair and seed; put it into KNOWN.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from kits.loader import Loader
from kits.mutation import mutate

from ds4chat.models.gguf_file import read_header

CASES = int(os.environ.get("DS4CHAT_LOADER_CASES", "1400"))
FIRST = int(os.environ.get("DS4CHAT_LOADER_SEED", "1"))
PAIRS = [
    ("deepseek4", "deepseek4-support"),
    ("deepseek4-nextn", "embedded"),
    ("qwen35-nextn", "embedded"),
    ("mimo2-nextn", "embedded"),
    ("llama", "llama-draft"),
    ("llama", "eagle3"),
    ("gemma4", "gemma4-assistant"),
]

KNOWN = [(1, 73), (0, 308), (6, 431), (3, 925), (1, 1203), (6, 1432), (1, 1725), (2, 1993)]
"""Pair and seed of cases that ended the process once."""


class Corpus:
    """The constructed pairs, and one changed file of them for each seed."""

    def __init__(self, folder: Path, out: Path) -> None:
        self._out = out
        self._pairs = []
        for target, support in PAIRS:
            files = [tiny.build(target, folder)]
            if support != "embedded":
                files.append(tiny.build(support, folder))
            self._pairs.append(
                [(path.read_bytes(), read_header(path).parts[0].data_offset, path) for path in files]
            )

    def case(self, pair: int, seed: int) -> tuple[Path, Path | str]:
        """Target and support of a case, one of them changed."""
        files = self._pairs[pair]
        rng = random.Random(seed)
        chosen = rng.randrange(len(files))
        content, end, _ = files[chosen]
        self._out.write_bytes(mutate(content, end, rng))
        paths: list[Path | str] = [path for _, _, path in files]
        paths[chosen] = self._out
        return (paths[0], paths[1]) if len(paths) > 1 else (paths[0], "embedded")  # type: ignore[return-value]


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[Loader]:
    loader = Loader(tmp_path / "loader.log")
    yield loader
    loader.close()


@pytest.fixture
def corpus(tiny_dir: Path, tmp_path: Path) -> Corpus:
    return Corpus(tiny_dir, tmp_path / "hostile.gguf")


def test_the_files_themselves_load(loader: Loader, tiny_dir: Path) -> None:
    for target, support in PAIRS:
        beside = support if support == "embedded" else tiny.build(support, tiny_dir)
        assert loader.outcome(tiny.build(target, tiny_dir), beside).startswith("loaded\tlength"), target


@pytest.mark.parametrize("when", ["during a case", "before a case"])
def test_the_loader_itself_tells_a_death_and_goes_on(loader: Loader, tiny_dir: Path, when: str) -> None:
    target, beside = tiny.build("llama", tiny_dir), tiny.build("llama-draft", tiny_dir)
    assert loader.outcome(target, beside).startswith("loaded")
    assert loader._child is not None
    loader._child.kill()
    if when == "before a case":
        loader._child.wait()  # nobody reads the pipe any more
    assert loader.outcome(target, beside).startswith("died\t-9")
    assert loader.outcome(target, beside).startswith("loaded")


@pytest.mark.parametrize(("pair", "seed"), KNOWN)
def test_cases_that_once_ended_the_process(loader: Loader, corpus: Corpus, pair: int, seed: int) -> None:
    assert not loader.outcome(*corpus.case(pair, seed)).startswith("died")


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "cases", [pytest.param(CASES // 10, id="few"), pytest.param(CASES, id="many", marks=pytest.mark.slow)]
)
def test_changed_bytes_do_not_end_the_engine(loader: Loader, corpus: Corpus, cases: int) -> None:
    findings: list[str] = []
    counts: dict[str, int] = {}
    for number in range(cases):
        pair, seed = number % len(PAIRS), FIRST + number // len(PAIRS)
        answer = loader.outcome(*corpus.case(pair, seed))
        kind = answer.split("\t")[0]
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "died":
            findings.append(f"{PAIRS[pair]} ({pair}, {seed}): {answer}")
            print(findings[-1], flush=True)
    print(counts, flush=True)
    assert not findings, "\n".join(findings)
    assert counts.get("loaded") and counts.get("refused")
