"""Going on with a reply that was cut: the assistant's turn stays open, or a sentence says that it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from kits.engine import Answer
from servers.kit import ask, connect, query
from servers.live import Server, serve
from servers.scripted import Connection, Received, answers, openai, says, scripted

from ds4chat.engine.events import Generate, Message
from ds4chat.servers.dialect import Query
from ds4chat.servers.ds4_server import Ds4Server
from ds4chat.servers.http import ServerError
from ds4chat.servers.llama_server import LlamaServer
from ds4chat.servers.lm_studio import LMStudio
from ds4chat.servers.ollama import Ollama
from ds4chat.servers.openai import OpenAI
from ds4chat.servers.sglang import SGLang
from ds4chat.servers.vllm import Vllm

PROMPT = Message("user", "count")
CUT = (PROMPT, Message("assistant", "one two "))


def reply_to(messages: tuple[Message, ...], url: str = "http://127.0.0.1:1", **about: Any) -> Query:
    return query(Generate(1, messages=messages), url, **about)


@pytest.mark.parametrize("dialect", [Vllm(), SGLang()], ids=lambda d: d.kind)
def test_a_chat_request_leaves_the_turn_open_and_does_not_ask_for_thinking_again(dialect: Any) -> None:
    body = dialect.request(reply_to(CUT)).body
    assert body["messages"][-1] == {"role": "assistant", "content": "one two "}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    begins = dialect.request(reply_to((PROMPT,))).body
    assert not {"continue_final_message", "add_generation_prompt"} & set(begins)
    assert begins["chat_template_kwargs"] == {"enable_thinking": True}
    unthinking = dialect.request(query(Generate(1, messages=(PROMPT,), think=False))).body
    assert unthinking["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize("dialect", [OpenAI(), Ds4Server(), LMStudio()], ids=lambda d: d.kind)
def test_an_interface_that_cannot_leave_the_turn_open_says_so(dialect: Any) -> None:
    with pytest.raises(ServerError) as caught:
        dialect.request(reply_to(CUT))
    said = str(caught.value)
    assert said.startswith(f"{dialect.kind} at http://127.0.0.1:1 closes the assistant's turn")
    assert said.endswith("Ask for the rest in a prompt.")
    assert dialect.request(reply_to((PROMPT,))).body["messages"] == [{"role": "user", "content": "count"}]
    # An answer of nothing but blanks is none to go on with.
    assert dialect.request(reply_to((PROMPT, Message("assistant", " \n")))).body["messages"]


def test_a_reply_that_cannot_be_continued_stays_and_a_prompt_still_works() -> None:
    with scripted(openai(says("fine"))) as server:
        session = connect(server.url)
        refused = ask(session, Generate(1, messages=CUT))
        assert server.seen("/v1/chat/completions") == []
        again = ask(session, Generate(1, messages=(*CUT, Message("user", "go on"))))
    assert refused.ended.finish_reason == "error" and refused.tokens == []
    assert "closes the assistant's turn" in refused.ended.detail and "kept" not in refused.ended.detail
    assert (again.text, again.ended.finish_reason) == ("fine", "stop")


@pytest.mark.parametrize(
    ("rendered", "open_"),
    [
        ({"_debug_info": {"rendered_template": "<u>count<a>one two "}}, True),
        ({"_debug_info": {"rendered_template": "<u>count<a>one two <end><a>"}}, False),
        ({"message": {"content": "too old to show it"}, "done": True}, False),
    ],
    ids=["open", "closed", "not told"],
)
def test_ollama_is_first_asked_for_the_rendered_prompt(rendered: object, open_: bool) -> None:
    with scripted({"/api/chat": answers(rendered)}) as server:
        if open_:
            body = Ollama().request(reply_to(CUT, server.url)).body
            assert "_debug_render_only" not in body and body["stream"]
            assert body["messages"][-1] == {"role": "assistant", "content": "one two "}
            assert body["think"] is False
        else:
            with pytest.raises(ServerError, match=r"closes the assistant's turn.*Ask for the rest"):
                Ollama().request(reply_to(CUT, server.url))
        (shown,) = server.seen("/api/chat")
        assert shown.json()["_debug_render_only"] is True and shown.json()["stream"] is False
        Ollama().request(reply_to((PROMPT,), server.url))
        assert len(server.seen("/api/chat")) == 1


def test_a_refusal_of_the_rendered_prompt_is_reported() -> None:
    with (
        scripted({"/api/chat": answers({"error": "model not found"}, 404)}) as server,
        pytest.raises(ServerError, match=r"the model or the path \(HTTP 404: model not found\)"),
    ):
        Ollama().request(reply_to(CUT, server.url))


@pytest.mark.parametrize("template", [True, False], ids=["completion", "chat"])
def test_a_llama_server_that_closes_the_turn_yields_advice_how_to_start_it(template: bool) -> None:
    def handle(received: Received, connection: Connection) -> None:
        assert received.json()["continue_final_message"] is True
        assert received.json()["chat_template_kwargs"] == {"enable_thinking": False}
        connection.answer({"prompt": "<u>count<a>one two <end><a>"})

    with (
        scripted({"/apply-template": handle}) as server,
        pytest.raises(ServerError, match=r"closes the assistant's turn.*without --no-prefill-assistant"),
    ):
        LlamaServer().request(reply_to(CUT, server.url, template=template))


THINKING = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)
LETTERS = "abcde"


@pytest.fixture(scope="module")
def spelling(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """llama.cpp's server of a model that spells five letters, under a template that lets it think first."""
    model = tiny.build(
        "llama-speaker",
        tiny_dir,
        says=tuple(LETTERS),
        special=("<|user|>", "<|assistant|>", "<|end|>"),
        template=THINKING,
        eos="<|end|>",
    )
    with serve(tmp_path_factory.mktemp("spelling"), model, "plain") as server:
        yield server


@pytest.mark.parametrize("template", [True, False], ids=["completion", "chat"])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_llama_server_continues_where_the_reply_was_cut(spelling: Server, template: bool, cut: int) -> None:
    session = connect(spelling.url, chosen=("temp",))
    session.about = replace(session.about, template=template)

    def reply(*messages: Message, n: int, think: bool = False) -> Answer:
        return ask(session, Generate(1, messages=messages, max_tokens=n, think=think))

    begun = reply(PROMPT, n=cut)
    assert (begun.text, begun.ended.finish_reason) == (LETTERS[:cut], "length")
    # Thinking is over where the answer has begun, whatever the setting says.
    rest = reply(PROMPT, Message("assistant", begun.text), n=20, think=True)
    assert (rest.text, rest.ended.finish_reason) == (LETTERS[cut:], "stop")
    assert not any(token.thinking for token in rest.tokens)
    assert {token.origin for token in rest.tokens} == {"plain"}


def test_a_llama_servers_prompt_ends_within_the_answer_after_the_thinking(spelling: Server) -> None:
    request = LlamaServer().request(reply_to((PROMPT, Message("assistant", " one\n two \n")), spelling.url))
    assert request.path == "/completion"
    assert request.body["prompt"] == ("<|user|>count<|end|><|assistant|><think>\n\n</think>\n\n one\n two \n")
