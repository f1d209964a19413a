"""The sampler gives its chain a few candidates; what it draws is what llama.cpp draws from all of them."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as C
import numpy as np
import pytest
import tiny

from ds4chat.engine.judge import largest
from ds4chat.engine.llama import PENALTY_WINDOW, Model, Sampler

VOCABULARY = 5000


class WholeVocabulary:
    """llama.cpp's own chain with its own penalties, over every token of a row."""

    def __init__(
        self, temp: float, top_k: int, top_p: float, min_p: float, penalty: float, history: Sequence[int]
    ) -> None:
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        made = [C.llama_sampler_init_penalties(VOCABULARY, PENALTY_WINDOW, penalty, 0.0, 0.0)]
        if temp > 0:
            made += [
                C.llama_sampler_init_top_k(top_k),
                C.llama_sampler_init_top_p(top_p, 1),
                C.llama_sampler_init_min_p(min_p, 1),
                C.llama_sampler_init_temp(temp),
                C.llama_sampler_init_dist(7),
            ]
        else:
            made.append(C.llama_sampler_init_greedy())
        for sampler in made:
            C.llama_sampler_chain_add(self._chain, sampler)
        for token in history:
            C.llama_sampler_accept(self._chain, token)
        self._data = (C.llama_token_data * VOCABULARY)()
        self._rows = np.frombuffer(self._data, [("id", "i4"), ("logit", "f4"), ("p", "f4")])

    def sample(self, logits: np.ndarray) -> int:
        self._rows["id"], self._rows["logit"] = np.arange(VOCABULARY), logits
        array = C.llama_token_data_array(ctypes.cast(self._data, C.llama_token_data_p), VOCABULARY, -1, False)
        C.llama_sampler_apply(self._chain, ctypes.byref(array))
        token = int(self._data[array.selected].id)
        C.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        C.llama_sampler_free(self._chain)


@pytest.fixture(scope="module")
def model(tiny_dir: Path) -> Any:
    """One whose vocabulary is as long as the rows."""
    model = Model(str(tiny.build("llama", tiny_dir)))
    model.n_vocab = VOCABULARY
    yield model
    model.close()


def rows(seed: int) -> Any:
    """Rows of all kinds, without end: peaked and flat, with equal logits, of tokens that there are not."""
    rng = np.random.default_rng(seed)
    for i in itertools.count():
        row = (rng.standard_normal(VOCABULARY) * rng.choice([0.3, 1.5, 4.0])).astype(np.float32)
        row[rng.integers(0, VOCABULARY, 3)] += rng.choice([0, 5, 15])
        if i % 5 == 1:
            row = np.round(row)  # equal logits everywhere
        elif i % 5 == 2:
            row[rng.integers(0, VOCABULARY, 20)] = row.max()  # equal logits on top
        elif i % 5 == 3:
            row[rng.permutation(VOCABULARY)[30:]] = -np.inf
        elif i % 5 == 4:
            row -= 100
        yield row


COMBINATIONS = list(itertools.product([0, 1, 40, 200], [1.0, 0.9], [0.0, 0.05], [1.0, 1.3, 0.8]))


def expect_equal_draws(model: Model, settings: tuple[int, float, float, float], temp: float, n: int) -> None:
    top_k, top_p, min_p, penalty = settings
    history = list(np.random.default_rng(1).integers(0, VOCABULARY, 100))
    ours = Sampler(
        model, temp=temp, top_k=top_k, top_p=top_p, min_p=min_p, penalty=penalty, seed=7, history=history
    )
    whole = WholeVocabulary(temp, top_k, top_p, min_p, penalty, history)
    for i, row in enumerate(itertools.islice(rows(2), n)):
        before = row.copy()
        assert (i, ours.sample(row)) == (i, whole.sample(before))
        assert (row == before).all()
    ours.close()
    whole.close()


@pytest.mark.parametrize("settings", COMBINATIONS)
def test_draws_are_those_of_the_whole_vocabulary(
    model: Model, settings: tuple[int, float, float, float]
) -> None:
    expect_equal_draws(model, settings, 0.8, 100)


@pytest.mark.parametrize("penalty", [0.8, 1.3])
def test_at_temperature_0_the_best_after_the_penalty_is_taken(model: Model, penalty: float) -> None:
    expect_equal_draws(model, (40, 0.95, 0.05, penalty), 0.0, 200)


@pytest.mark.slow
@pytest.mark.parametrize("settings", COMBINATIONS)
def test_ten_thousand_draws_are_those_of_the_whole_vocabulary(
    model: Model, settings: tuple[int, float, float, float]
) -> None:
    expect_equal_draws(model, settings, 0.8, 10_000)


def test_few_candidates_are_handed_over(model: Model) -> None:
    """Little more than top-k of a row of different logits, or what min-p leaves: that is what saves time."""
    row = next(rows(3))
    by_top_k = Sampler(model, temp=1, top_k=40, top_p=0.9, min_p=0.05, penalty=1.0, seed=1)
    assert 40 <= len(by_top_k._possible(row)) <= 60
    by_min_p = Sampler(model, temp=1, top_k=0, top_p=1.0, min_p=0.05, penalty=1.0, seed=1)
    assert len(by_min_p._possible(row)) == int((row >= row.max() + np.log(0.05)).sum())
    for sampler in (by_top_k, by_min_p):
        sampler.close()


def test_the_penalties_see_what_was_emitted_instead(model: Model) -> None:
    """The token of an approximate acceptance, not the one that was drawn."""
    row = np.full(VOCABULARY, -9, np.float32)
    row[[5, 6]] = 4.0, 3.0
    sampler = Sampler(model, temp=0, top_k=0, top_p=1.0, min_p=0.0, penalty=2.0, seed=1)
    assert sampler.sample(row) == 5
    sampler.emitted_instead(6)
    assert sampler.sample(row) == 5  # 4 against 3 / 2
    assert sampler.sample(row) == 5  # 4 / 2 against 3 / 2


@pytest.mark.parametrize("n", [1, 7, 1024, 3000, 49152, 128256])
@pytest.mark.parametrize("count", [1, 10, 40, 300])
def test_the_largest_are_all_found(n: int, count: int) -> None:
    rng = np.random.default_rng(n + count)
    for row in (
        rng.standard_normal(n).astype(np.float32),
        np.round(rng.standard_normal(n)).astype(np.float32),
        np.full(n, -np.inf, np.float32),
    ):
        ids = largest(row, count)
        least = np.sort(row)[::-1][: min(count, n)][-1]
        assert set(np.flatnonzero(row >= least)) <= set(ids.tolist())
        assert ids.tolist() == sorted(ids.tolist())
