"""Sessions over servers, what is asked of them, and the events of recorded answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kits.engine import Answer
from servers.replay import recorded

from ds4chat.engine.control import Control
from ds4chat.engine.events import Ended, Event, Generate, Load, Message, ServerAddress
from ds4chat.engine.sessions import open_session
from ds4chat.servers.dialect import About, Query
from ds4chat.servers.http import Endpoint, never
from ds4chat.servers.reading import Reading
from ds4chat.servers.session import RemoteSession, _Reply
from ds4chat.servers.vllm import VllmReader

HI = Generate(1, messages=(Message("user", "hi"),))


def connect(url: str, events: list[Event] | None = None, **address: Any) -> RemoteSession:
    """A session over the server at ``url``; ``events`` takes what is emitted until it is ready."""
    load = Load("", server=ServerAddress(url, **address))
    session, _ = open_session(load, (events if events is not None else []).append, forgiving=False)
    assert isinstance(session, RemoteSession)
    return session


def ask(
    session: RemoteSession, request: Generate = HI, hook: Callable[[Event, Control], None] | None = None
) -> Answer:
    """The answer to a request, whose last event is an Ended; ``hook`` sees every event as it comes."""
    answer, control = Answer(), Control(request.tuning)

    def emit(event: Event) -> None:
        answer.collect(event)
        if hook:
            hook(event, control)

    session.generate(request, control, emit)
    assert isinstance(answer.ended, Ended)
    return answer


def query(
    request: Generate = HI,
    url: str = "http://127.0.0.1:1",
    *,
    chosen: frozenset[str] = frozenset(),
    **about: Any,
) -> Query:
    """What a dialect is given of a request; ``about``: fields of About."""
    return Query(request, About(**{"model": "m", **about}), Endpoint(ServerAddress(url)), chosen, never)


def events_of(stem: str, reader: Any) -> list[Any]:
    """The events of a recorded answer, as the remote session makes them."""
    found: list[Any] = []
    reply = _Reply(query(drafter="ngram"), found.append)
    reading = Reading(reader)
    reply.pass_on(reading.feed(recorded(stem)))
    reply.pass_on(reading.finish())
    assert reply.end.reason is not None
    return [*found, reply.ended(reply.end.reason, "")]


def late() -> list[Any]:
    """vLLM's events: steps by chunk, a Revised, an Ended."""
    return events_of("vllm-draft.chat-logprobs", VllmReader())
