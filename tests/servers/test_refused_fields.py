"""Servers that refuse fields of a request answer without them, and what is unknown then is said once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from servers.kit import HI, ask, connect
from servers.scripted import (
    Connection,
    Received,
    answers,
    llama,
    openai,
    says,
    scripted,
    unknown_parameter,
    without,
)

from ds4chat.engine.events import Ended, Generate, Loaded, Message, Notice, Tuning


def extra_forbidden(name: str) -> tuple[int, Any]:
    """As servers that check requests with pydantic."""
    problem = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
    return 422, {"object": "error", "message": {"detail": [problem]}}


def unknown_field(name: str) -> tuple[int, Any]:
    """As servers in Rust, which list the fields that they know."""
    known = "`model`, `messages`, `stream`, `temperature`, `top_p`, `seed`, `max_tokens`, `stop`"
    return 422, {"error": f"unknown field `{name}`, expected one of {known}"}


def unnamed(name: str) -> tuple[int, Any]:
    return 400, {"detail": "Bad Request"}


FORMS = [unknown_parameter, extra_forbidden, unknown_field, unnamed]


def notices(events: list[Any]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice)]


@pytest.mark.parametrize("form", FORMS)
def test_a_server_without_stream_options_answers_and_its_counts_are_unknown(form: Any) -> None:
    with scripted(openai(without("stream_options", form=form))) as server:
        session = connect(server.url)
        first, second = ask(session), ask(session)
        sent = [request.json() for request in server.seen("/v1/chat/completions")]
    assert ["stream_options" in body for body in sent] == [True, False, False]
    for answer in (first, second):
        assert (answer.text, answer.ended.finish_reason) == ("one two", "stop")
        assert answer.ended.prompt_tokens == answer.ended.context_used == 0
        assert {step.context_used for step in answer.steps} == {0}
    (said,) = notices([*first.events, *second.events])
    assert said == (
        f"The server at {session.endpoint.place} refuses stream_options, so requests go without: the number "
        "of tokens in the prompt and the context is unknown."
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_optional_field_may_be_refused(form: Any) -> None:
    request = Generate(
        1,
        messages=(Message("user", "hi"),),
        max_tokens=5,
        stop=("END",),
        tuning=Tuning(temp=0.5, top_p=0.5, seed=7),
    )

    def whole(received: Received, connection: Connection) -> None:
        message = {"message": {"content": "all"}, "finish_reason": "stop"}
        connection.answer({"model": "m", "choices": [message]})

    fields = ("stream", "stream_options", "max_tokens", "stop", "temperature", "top_p", "seed")
    with scripted(openai(without(*fields, form=form, then=whole))) as server:
        session = connect(server.url)
        answer, again = ask(session, request), ask(session, request)
        last = server.seen("/v1/chat/completions")[-1].json()
    assert last == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert (answer.text, again.text, answer.ended.finish_reason) == ("all", "all", "stop")
    (said,) = notices([*answer.events, *again.events])
    assert said.isprintable() and all(name in said for name in fields)
    assert all(f"it uses its own {name}" in said for name in ("temperature", "top_p", "seed"))
    loaded = next(event for event in answer.events if isinstance(event, Loaded) and not event.server.live)
    assert {"temp", "top_p", "seed"} <= dict(loaded.server.fixed).keys()


def test_a_setting_that_is_refused_later_is_left_out_and_reported_then() -> None:
    with scripted(openai(without("stream_options", "seed", form=extra_forbidden))) as server:
        session = connect(server.url)
        first = ask(session)
        second = ask(session, Generate(2, messages=HI.messages, tuning=Tuning(seed=3)))
    assert ("seed" in "".join(notices(first.events)), second.text) == (False, "one two")
    (said,) = notices(second.events)
    assert "refuses seed, so requests go without: it uses its own seed." in said


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/completion"])
def test_llama_servers_origins_are_unknown_where_its_fields_are_refused(route: str) -> None:
    def plainly(received: Received, connection: Connection) -> None:
        if route == "/completion":
            connection.begin()
            connection.event({"content": "one"})
            connection.event({"content": "", "stop": True, "stop_type": "eos"})
            connection.chunk(b"")
        else:
            says("one")(received, connection)

    strict = without("timings_per_token", "return_progress", "return_tokens", then=plainly)
    routes = llama(strict, chat_template="x" if route == "/completion" else "[THINK]")
    with scripted(routes | {"/v1/chat/completions": strict}) as server:
        answer = ask(connect(server.url))
    assert (answer.text, answer.ended.finish_reason) == ("one", "stop")
    assert {token.origin for step in answer.steps for token in step.tokens} == {"unknown"}
    assert "which tokens were drafted is unknown" in "".join(notices(answer.events))


@pytest.mark.parametrize("status", [400, 422])
def test_a_request_that_is_refused_without_them_too_is_an_error(status: int) -> None:
    """Then no field is taken for refused: the next request has all of them again."""
    refusal = {"error": {"message": "model 'm' is not here"}}
    routes = openai(answers(refusal, status))
    with scripted(routes) as server:
        session = connect(server.url)
        failed = ask(session)
        routes["/v1/chat/completions"] = says("fine")
        fine = ask(session)
        sent = [request.json() for request in server.seen("/v1/chat/completions")]
    assert failed.ended.finish_reason == "error" and "model 'm' is not here" in failed.ended.detail
    assert notices([*failed.events, *fine.events]) == []
    assert (fine.text, "stream_options" in sent[-1]) == ("fine", True)


def test_a_conversation_that_is_too_long_is_not_sent_again() -> None:
    body = {"error": {"message": "temperature aside, the context length is exceeded"}}
    with scripted(openai(answers(body, 400))) as server:
        ended = ask(connect(server.url)).ended
        assert len(server.seen("/v1/chat/completions")) == 1
    assert isinstance(ended, Ended) and ended.finish_reason == "context"


def test_a_field_that_leaves_the_turn_open_is_never_left_out() -> None:
    """Without it the server would begin another turn instead of continuing the reply."""
    strict = without("continue_final_message", form=extra_forbidden)
    models = {"data": [{"id": "m", "owned_by": "vllm"}]}
    request = Generate(1, messages=(Message("user", "hi"), Message("assistant", "on")))
    with scripted(openai(strict, models)) as server:
        answer = ask(connect(server.url), request)
        sent = [json.loads(seen.body) for seen in server.seen("/v1/chat/completions")]
    assert answer.ended.finish_reason == "error" and "continue_final_message" in answer.ended.detail
    assert all(body["continue_final_message"] is True for body in sent)
