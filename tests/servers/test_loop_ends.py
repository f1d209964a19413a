"""A server's reply that repeats itself ends as one of the engine here does: the connection is closed."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
from kits.engine import END_NOW, Answer, load_of, opened
from servers.kit import ask, connect, query
from servers.live import serve
from servers.scripted import Connection, Received, openai, says, scripted

from ds4chat.engine.events import UNKNOWN_ID, Generate, Message, Origin, Token, Tuning
from ds4chat.servers.dialect import Block
from ds4chat.servers.session import _judged, _Reply

PERIOD = ("one ", "two ", "three ", "four ", "five ")


def answer_to(url: str, request: Generate) -> Answer:
    return ask(connect(url, chosen=("temp", "seed")), request)


def test_the_connection_is_closed_at_the_token_that_makes_it_a_loop_and_the_reply_says_why() -> None:
    closed = threading.Event()

    def endless(received: Received, connection: Connection) -> None:
        connection.begin()
        connection.event({"choices": [{"delta": {"content": "So: "}}]})
        try:
            for word in itertools.cycle(PERIOD):
                connection.event({"choices": [{"delta": {"content": word}}]})
        except OSError:
            closed.set()

    routes = openai(endless)
    with scripted(routes) as server:
        request = Generate(1, messages=(Message("user", "count"),), end_loops=True)
        answer = answer_to(server.url, request)
        assert closed.wait(60)
        routes["/v1/chat/completions"] = says("fine")
        assert answer_to(server.url, request).text == "fine"
    # The lead, the passage, and 64 tokens that repeat it.
    assert len(answer.tokens) == 1 + 5 + 64
    assert answer.ended.finish_reason == "stop"
    assert "the last 5 tokens over and over" in answer.ended.detail and "end-loops" in answer.ended.detail
    assert answer.stats.repeating


def test_a_loop_continues_if_loops_are_not_to_end() -> None:
    with scripted(openai(says(*PERIOD * 30))) as server:
        answer = answer_to(server.url, Generate(1, messages=(Message("user", "count"),)))
    assert (len(answer.tokens), answer.ended.finish_reason, answer.ended.detail) == (150, "stop", "")


def test_unknown_tokens_are_not_a_loop() -> None:
    """Such as those of a call to a tool, which a server's chat keeps to itself."""
    events: list[object] = []
    reply = _Reply(query(Generate(1, end_loops=True)), events.append)
    hidden = Block((Token(UNKNOWN_ID, "", "unknown"),))
    reply.pass_on(iter([hidden] * 200))
    assert not reply.repeats and len(events) == 200
    # A character of four tokens, of which the last has a chunk, is one.
    reply.pass_on(iter([hidden, hidden, hidden, Block((Token(9, "🙂", "unknown"),))] * 60))
    assert "the last 4 tokens" in reply.repeats


def step(origins: str, drafted: int, accepted: int, *, ended: bool = False) -> Block:
    names: dict[str, Origin] = {"a": "accepted", "c": "corrected", "b": "bonus"}
    tokens = tuple(Token(i, str(i), names[letter]) for i, letter in enumerate(origins))
    return Block(tokens, drafted, accepted, ended=ended)


@pytest.mark.parametrize(
    ("block", "verdicts"),
    [
        (step("aac", 3, 2), [True, True, False]),
        (step("aaab", 3, 3), [True, True, True]),
        (step("aa", 3, 2), [True, True]),  # cut: of the third draft nothing is known
        (step("aa", 3, 2, ended=True), [True, True, False]),  # the target's own token ended the reply
        (step("", 3, 0), []),
        (step("", 3, 0, ended=True), [False]),
    ],
)
def test_a_cut_step_implies_no_rejection(block: Block, verdicts: list[bool]) -> None:
    assert [row.accepted for row in _judged(block, greedy=True)] == verdicts


@pytest.mark.parametrize(("kind", "depth"), [("plain", 0), ("eagle3", 3)])
def test_a_llama_servers_reply_ends_where_the_engines_does(tmp_path: Path, kind: str, depth: int) -> None:
    load = load_of(tmp_path, "eagle3" if kind == "eagle3" else "llama-draft")
    request = Generate(1, prompt=END_NOW, tuning=Tuning(temp=0.0, seed=1), max_tokens=300, end_loops=True)
    with serve(tmp_path, load.model, kind, load.support if kind == "eagle3" else "") as server:
        answer = answer_to(server.url, request)
    with opened(load) as bench:
        here = bench.ask(END_NOW, 300, depth=depth, end_loops=True)
    assert here.ended.finish_reason == "stop" and 65 < len(here.ids) < 300
    assert answer.ids == here.ids
    assert (answer.ended.finish_reason, answer.ended.detail) == ("stop", here.ended.detail)
    assert answer.stats.emitted == here.stats.emitted == len(here.ids)
