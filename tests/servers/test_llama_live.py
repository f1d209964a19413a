"""llama.cpp's own server: origins and counters are its step log's, and the text is that of our engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.engine import END_NOW, Answer, load_of, opened
from servers.live import Server, origins, serve

from ds4chat.engine.control import Control
from ds4chat.engine.events import Generate, Load, ServerAddress, Tuning
from ds4chat.engine.sessions import open_session

pytest.importorskip("xllamacpp")

TUNING = Tuning(temp=0.0, seed=1)


def ask(server: Server, request: Generate, **address: str) -> Answer:
    """The server's answer through a session of its own."""
    chosen = ("temp", "seed")
    session, _ = open_session(
        Load("", server=ServerAddress(server.url, chosen=chosen, **address)),
        lambda event: None,
        forgiving=False,
    )
    answer = Answer()
    session.generate(request, Control(request.tuning), answer.take)
    return answer


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
    answer = ask(server, Generate(1, prompt=END_NOW, tuning=TUNING, max_tokens=40))
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
