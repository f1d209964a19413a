"""Going on with a reply that was cut: the assistant's turn stays open, or a sentence says that it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from kits.engine import Answer
from servers.live import Server, serve
from servers.scripted import Asked as Came
from servers.scripted import Connection, Handler, openai, says, scripted

from ds4chat.engine.control import Control
from ds4chat.engine.events import Generate, Load, Message, ServerAddress, Tuning
from ds4chat.engine.sessions import open_session
from ds4chat.servers.dialect import About, Asked
from ds4chat.servers.ds4_server import Ds4Server
from ds4chat.servers.http import Address, Endpoint, ServerError, never
from ds4chat.servers.llama_server import LlamaServer
from ds4chat.servers.lm_studio import LMStudio
from ds4chat.servers.ollama import Ollama
from ds4chat.servers.openai import OpenAI
from ds4chat.servers.session import RemoteSession
from ds4chat.servers.sglang import SGLang
from ds4chat.servers.vllm import Vllm

PROMPT = Message("user", "count")
CUT = (PROMPT, Message("assistant", "one two "))


def asked(
    messages: tuple[Message, ...],
    url: str = "http://127.0.0.1:1",
    *,
    template: bool = True,
    think: bool = True,
) -> Asked:
    about = About("m", template=template)
    return Asked(
        Generate(1, messages=messages, think=think), about, Endpoint(Address(url)), frozenset(), never
    )


def answers(body: object, status: int = 200) -> Handler:
    return lambda came, connection: connection.answer(body, status)


@pytest.mark.parametrize("dialect", [Vllm(), SGLang()], ids=lambda d: d.kind)
def test_a_chat_that_can_is_told_to_leave_the_turn_open_and_not_to_think_again(dialect: Any) -> None:
    body = dialect.request(asked(CUT)).body
    assert body["messages"][-1] == {"role": "assistant", "content": "one two "}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    begins = dialect.request(asked((PROMPT,))).body
    assert not {"continue_final_message", "add_generation_prompt"} & set(begins)
    assert begins["chat_template_kwargs"] == {"enable_thinking": True}
    assert dialect.request(asked((PROMPT,), think=False)).body["chat_template_kwargs"] == {
        "enable_thinking": False
    }


@pytest.mark.parametrize("dialect", [OpenAI(), Ds4Server(), LMStudio()], ids=lambda d: d.kind)
def test_an_interface_that_cannot_says_so_instead_of_beginning_a_new_turn(dialect: Any) -> None:
    with pytest.raises(ServerError) as caught:
        dialect.request(asked(CUT))
    said = str(caught.value)
    assert said.startswith(f"{dialect.kind} at http://127.0.0.1:1 closes the assistant's turn")
    assert said.endswith("Ask it in a prompt to go on.")
    assert dialect.request(asked((PROMPT,))).body["messages"] == [{"role": "user", "content": "count"}]
    # An answer of nothing but blanks is none to go on with.
    assert dialect.request(asked((PROMPT, Message("assistant", " \n")))).body["messages"]


def test_what_cannot_be_gone_on_with_stays_and_a_prompt_still_works() -> None:
    with scripted(openai(says("fine"))) as server:
        session, _ = open_session(
            Load("", server=ServerAddress(server.url)), lambda event: None, forgiving=False
        )

        def ask(*messages: Message) -> Answer:
            answer, request = Answer(), Generate(1, messages=messages)
            session.generate(request, Control(request.tuning), answer.collect)
            return answer

        refused = ask(*CUT)
        assert server.seen("/v1/chat/completions") == []
        again = ask(*CUT, Message("user", "go on"))
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
def test_ollama_is_asked_first_what_the_models_template_makes_of_it(rendered: object, open_: bool) -> None:
    with scripted({"/api/chat": answers(rendered)}) as server:
        if open_:
            body = Ollama().request(asked(CUT, server.url)).body
            assert "_debug_render_only" not in body and body["stream"]
            assert body["messages"][-1] == {"role": "assistant", "content": "one two "}
            assert body["think"] is False
        else:
            with pytest.raises(ServerError, match=r"closes the assistant's turn.*Ask it in a prompt"):
                Ollama().request(asked(CUT, server.url))
        (shown,) = server.seen("/api/chat")
        assert shown.json()["_debug_render_only"] is True and shown.json()["stream"] is False
        Ollama().request(asked((PROMPT,), server.url))
        assert len(server.seen("/api/chat")) == 1


def test_ollama_that_refuses_to_show_it_is_heard() -> None:
    with (
        scripted({"/api/chat": answers({"error": "model not found"}, 404)}) as server,
        pytest.raises(ServerError, match=r"the model or the path \(HTTP 404: model not found\)"),
    ):
        Ollama().request(asked(CUT, server.url))


@pytest.mark.parametrize("template", [True, False], ids=["completion", "chat"])
def test_a_llama_server_whose_prompt_closes_the_turn_is_told_how_to_start(template: bool) -> None:
    def handle(came: Came, connection: Connection) -> None:
        assert came.json()["continue_final_message"] is True
        assert came.json()["chat_template_kwargs"] == {"enable_thinking": False}
        connection.answer({"prompt": "<u>count<a>one two <end><a>"})

    with (
        scripted({"/apply-template": handle}) as server,
        pytest.raises(ServerError, match=r"closes the assistant's turn.*without --no-prefill-assistant"),
    ):
        LlamaServer().request(asked(CUT, server.url, template=template))


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
def test_a_llama_server_goes_on_where_the_reply_was_cut(spelling: Server, template: bool, cut: int) -> None:
    session, _ = open_session(
        Load("", server=ServerAddress(spelling.url, chosen=("temp",))), lambda event: None, forgiving=False
    )
    assert isinstance(session, RemoteSession)
    session.about = replace(session.about, template=template)

    def ask(*messages: Message, n: int, think: bool = False) -> Answer:
        answer = Answer()
        request = Generate(1, messages=messages, tuning=Tuning(temp=0.0), max_tokens=n, think=think)
        session.generate(request, Control(request.tuning), answer.collect)
        return answer

    begun = ask(PROMPT, n=cut)
    assert (begun.text, begun.ended.finish_reason) == (LETTERS[:cut], "length")
    # Thinking is over where the answer has begun, whatever the setting says.
    rest = ask(PROMPT, Message("assistant", begun.text), n=20, think=True)
    assert (rest.text, rest.ended.finish_reason) == (LETTERS[cut:], "stop")
    assert not any(token.thinking for token in rest.tokens)
    assert {token.origin for token in rest.tokens} == {"plain"}


def test_a_llama_servers_prompt_ends_within_the_answer_and_behind_the_thought(spelling: Server) -> None:
    request = LlamaServer().request(asked((PROMPT, Message("assistant", " one\n two \n")), spelling.url))
    assert request.path == "/completion"
    assert request.body["prompt"] == ("<|user|>count<|end|><|assistant|><think>\n\n</think>\n\n one\n two \n")
