"""llama.cpp's own server: origins and counters are its step log's, and the text is that of our engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.engine import END_NOW, Answer, load_of, opened
from servers.kit import ask, connect
from servers.live import Server, origins, serve

from ds4chat.engine.events import Generate, Load, Message, Tuning
from ds4chat.engine.replay import TIE
from ds4chat.models.demo import demo_model, demo_support

TUNING = Tuning(temp=0.0, seed=1)


def answer_of(server: Server, request: Generate) -> Answer:
    return ask(connect(server.url, chosen=("temp", "seed")), request)


@pytest.fixture(scope="module", params=["plain", "ngram", "eagle3", "mtp"])
def tiny_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Server, Load]]:
    """A server of a constructed model, by each kind of drafter, and the Load of the same model here."""
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    name = {"eagle3": "eagle3", "mtp": "qwen35-nextn"}.get(kind, "llama-draft")
    load = load_of(folder, name)
    draft = load.support if kind == "eagle3" else ""
    with serve(folder, load.model, kind, draft) as server:
        yield kind, server, load


def test_a_constructed_model_answers_as_it_does_here(tiny_server: tuple[str, Server, Load]) -> None:
    kind, server, load = tiny_server
    before = len(server.steps())
    answer = answer_of(server, Generate(1, prompt=END_NOW, tuning=TUNING, max_tokens=40))
    with opened(load) as bench:
        here = bench.ask(END_NOW, 40)
    assert answer.ids == here.ids
    assert answer.text == here.text
    steps = server.steps()[before:]
    told = [token.origin for token in answer.tokens]
    assert told.count("unknown") == 0
    assert told[: len(told)] == origins(steps, told)[: len(told)]
    assert (answer.stats.drafted, answer.stats.accepted) == (
        sum(k for k, _ in steps),
        sum(a for _, a in steps),
    )
    assert bool(steps) == (kind != "plain")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "eagle3", "ngram"])
def test_the_demo_pair_answers_a_chat_as_it_does_here(tmp_path: Path, kind: str) -> None:
    """The text is that of greedy decoding here, up to a tie that rounding decides."""
    model, support = demo_model(), demo_support()
    chat = (Message("user", "Repeat this list exactly three times: red, green, blue, yellow, black, white."),)
    with serve(tmp_path, model, kind, support if kind == "eagle3" else "") as server:
        answer = answer_of(server, Generate(1, messages=chat, tuning=TUNING, max_tokens=48))
        steps = server.steps()
    told = [token.origin for token in answer.tokens]
    assert "unknown" not in told
    assert told == origins(steps, told)[: len(told)]
    assert (answer.stats.drafted, answer.stats.accepted) == (
        sum(drafted for drafted, _ in steps),
        sum(accepted for _, accepted in steps),
    )
    # A probe judges a draft at every token, and so tells each token's lead over the next best.
    with opened(Load(str(model), lookup=True, ctx=1024, threads=1)) as bench:
        here = bench.ask(prompt=None, messages=chat, n=48, depth=1, probe=True)
    parted = next((i for i, (a, b) in enumerate(zip(answer.ids, here.ids)) if a != b), None)
    if parted is None:
        assert answer.ids == here.ids
    else:
        (row,) = here.steps[parted].judged
        assert row.gap is not None and row.gap < TIE
