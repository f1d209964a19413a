"""How each server is recognised, what it is sent, and what its answers say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from servers.kit import query
from servers.replay import FOLDER, its_end, pieces, tokens
from servers.scripted import Handler, answers, scripted

from ds4chat.engine.events import Counters, Generate, Message, ServerAddress, Tuning
from ds4chat.servers.dialect import Reader
from ds4chat.servers.http import Endpoint, ServerError
from ds4chat.servers.llama_server import LlamaServer
from ds4chat.servers.lm_studio import LMStudio, LMStudioReader
from ds4chat.servers.ollama import Ollama, OllamaReader
from ds4chat.servers.openai import OpenAI
from ds4chat.servers.session import recognise
from ds4chat.servers.sglang import ChatReader, GenerateReader, SGLang
from ds4chat.servers.table import DIALECTS
from ds4chat.servers.vllm import Vllm

CHAT = Generate(
    1,
    messages=(Message("system", "s"), Message("user", "u")),
    tuning=Tuning(temp=0.7, top_k=20, top_p=0.9, min_p=0.1, repeat_penalty=1.1, seed=5),
    max_tokens=9,
    stop=("END",),
)
ALL = frozenset(("temp", "top_k", "top_p", "min_p", "repeat_penalty", "seed"))


def recorded(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


LLAMA = {
    "/health": answers({"status": "ok"}, headers="Server: llama.cpp\r\n"),
    "/props": answers(recorded("eagle3.props")),
    "/v1/models": answers(recorded("eagle3.models")),
    "/slots": answers(recorded("eagle3.slots")),
}
VLLM = {
    "/v1/models": answers(recorded("vllm.models")),
    "/version": answers(recorded("vllm.version")),
    "/metrics": answers(raw=b"vllm:spec_decode_num_drafts_total 3"),
}
SGLANG = {
    "/server_info": answers(
        {
            "served_model_name": "m",
            "speculative_algorithm": "EAGLE3",
            "version": "0.5",
            "context_length": 4096,
        }
    ),
    "/v1/models": answers({"data": [{"id": "m", "owned_by": "sglang"}]}),
}
DS4 = {"/v1/models": answers({"data": [{"id": "deepseek", "owned_by": "ds4.c"}]})}
LM_STUDIO = {
    "/api/v0/models": answers(
        {
            "data": [
                {"id": "e", "type": "embeddings", "state": "loaded"},
                {"id": "a", "type": "llm", "state": "not-loaded", "max_context_length": 9},
                {"id": "b", "type": "llm", "state": "loaded", "loaded_context_length": 4096},
            ]
        }
    ),
    "/v1/models": answers({"data": [{"id": "a"}, {"id": "b"}]}),
}
OLLAMA = {
    "/": answers(raw=b"Ollama is running"),
    "/api/tags": answers({"models": [{"name": "a:1b"}, {"name": "b:2b"}]}),
    "/api/ps": answers({"models": [{"name": "b:2b", "context_length": 8192}]}),
    "/api/version": answers({"version": "0.9"}),
    "/v1/models": answers({"data": [{"id": "a:1b"}, {"id": "b:2b"}]}),
}
OTHER = {"/v1/models": answers({"data": [{"id": "x", "owned_by": "me"}]})}


@pytest.mark.parametrize(
    ("routes", "kind", "model", "context", "speculates"),
    [
        (LLAMA, "llama-server", "", 1024, True),
        (VLLM, "vLLM", "tiny", 512, True),
        (SGLANG, "SGLang", "m", 4096, True),
        (DS4, "ds4-server", "deepseek", 0, None),
        (LM_STUDIO, "LM Studio", "b", 4096, None),
        (OLLAMA, "Ollama", "b:2b", 8192, None),
        (OTHER, "OpenAI-compatible server", "x", 0, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_server_is_recognised(
    routes: dict[str, Handler], kind: str, model: str, context: int, speculates: bool | None
) -> None:
    with scripted(routes) as server:
        dialect, about = recognise(Endpoint(ServerAddress(server.url)), "")
    assert (dialect.kind, about.model, about.context, about.speculates) == (kind, model, context, speculates)


def test_a_server_without_a_known_interface_is_reported() -> None:
    with scripted({}) as server, pytest.raises(ServerError, match="none of the servers"):
        recognise(Endpoint(ServerAddress(server.url)), "")
    pages = {"/v1/models": answers(raw=b"<html></html>")}
    with scripted(pages) as server, pytest.raises(ServerError, match="none of the servers"):
        recognise(Endpoint(ServerAddress(server.url)), "mine")


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_gateway_may_refuse_every_path_that_it_does_not_have(status: int) -> None:
    with scripted(OTHER, missing=status) as server:
        dialect, about = recognise(Endpoint(ServerAddress(server.url)), "")
    assert (dialect.kind, about.model) == ("OpenAI-compatible server", "x")


def test_models_may_be_listed_without_an_object_around_them() -> None:
    with scripted({"/v1/models": answers([{"id": "x", "context_length": 64}])}) as server:
        dialect, about = recognise(Endpoint(ServerAddress(server.url)), "")
    assert (dialect.kind, about.model, about.context) == ("OpenAI-compatible server", "x", 64)


def test_a_server_that_lists_no_models_has_the_one_that_is_named() -> None:
    with scripted({}) as server:
        dialect, about = recognise(Endpoint(ServerAddress(server.url)), "mine")
    assert (dialect.kind, about.model) == ("OpenAI-compatible server", "mine")


def test_every_dialect_takes_each_setting_or_says_where_to_change_it() -> None:
    fields = {"depth", "margin", "gate", "strict"}
    for dialect in DIALECTS:
        assert fields <= set(dialect.fixed)
        assert not set(dialect.fixed) & set(dialect.sampling)
        assert bool(dialect.why)
    assert len({dialect.kind for dialect in DIALECTS}) == len(DIALECTS) == 7
    begins = {dialect.kind for dialect in DIALECTS if not dialect.goes_on}
    assert begins == {"ds4-server", "LM Studio", "OpenAI-compatible server"}


def test_llama_server_gets_the_prompt_that_its_own_template_renders() -> None:
    template = {"/apply-template": answers({"prompt": "<s>u<a>"})}
    with scripted(template) as server:
        request = LlamaServer().request(query(CHAT, server.url, chosen=ALL, model=""))
        sent = server.seen("/apply-template")[0].json()
    assert sent["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert sent["chat_template_kwargs"] == {"enable_thinking": True}
    assert request.path == "/completion"
    assert request.body == {
        "prompt": "<s>u<a>",
        "n_predict": 9,
        "stop": ["END"],
        "stream": True,
        "return_tokens": True,
        "timings_per_token": True,
        "return_progress": True,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "seed": 5,
    }


@pytest.mark.parametrize(
    ("template", "usable"),
    [
        ("<|im_start|>{{ m.content }}<think>", True),
        ("<|turn>model\n<|channel>thought\n<channel|>", False),
        ("<|start|>assistant<|channel|>final<|message|>", False),
        ("<|START_THINKING|>", False),
        ("<seed:think>", False),
        ("[THINK]", False),
        ("<|inner_prefix|>", False),
        ("", False),
    ],
)
def test_thinking_between_control_tokens_is_left_to_llama_servers_chat(template: str, usable: bool) -> None:
    """The native completion would show it as the answer, without its marks."""
    props = {"default_generation_settings": {"n_ctx": 8}, "chat_template": template}
    with scripted(LLAMA | {"/props": answers(props)}) as server:
        about = LlamaServer().recognise(Endpoint(ServerAddress(server.url)), "")
    assert about is not None and about.template is usable


def test_llama_server_without_a_usable_template_gets_a_chat_request() -> None:
    request = LlamaServer().request(query(CHAT, chosen=ALL, model="", template=False))
    assert request.path == "/v1/chat/completions"
    assert (request.body["max_tokens"], request.body["timings_per_token"]) == (9, True)


@pytest.mark.parametrize(
    ("dialect", "path"),
    [
        (OpenAI(), "/v1/chat/completions"),
        (Vllm(), "/v1/chat/completions"),
        (SGLang(), "/v1/chat/completions"),
        (LMStudio(), "/api/v0/chat/completions"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_settings_that_the_user_did_not_choose_are_not_sent(dialect: Any, path: str) -> None:
    bare = dialect.request(query(CHAT))
    full = dialect.request(query(CHAT, chosen=ALL))
    assert bare.path == path
    assert not set(bare.body) & set(dialect.sampling.values())
    assert {name: full.body[name] for name in dialect.sampling.values()} == {
        theirs: getattr(CHAT.tuning, ours) for ours, theirs in dialect.sampling.items()
    }
    assert (full.body["model"], full.body["max_tokens"], full.body["stop"]) == ("m", 9, ["END"])


def test_a_seed_of_minus_one_is_not_sent() -> None:
    request = OpenAI().request(query(Generate(1, prompt="p", tuning=Tuning(seed=-1)), chosen=ALL))
    assert request.path == "/v1/completions"
    assert "seed" not in request.body


def test_ollama_takes_its_settings_as_options() -> None:
    request = Ollama().request(query(CHAT, chosen=ALL))
    assert request.path == "/api/chat"
    assert request.body["options"] == {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "seed": 5,
        "num_predict": 9,
        "stop": ["END"],
    }
    raw = Ollama().request(query(Generate(1, prompt="p", think=False)))
    assert (raw.path, raw.body["raw"], raw.body["think"]) == ("/api/generate", True, False)


def lines(*bodies: object) -> bytes:
    return b"".join(json.dumps(body).encode() + b"\n" for body in bodies)


def events(*bodies: object) -> bytes:
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies)


def both_ways(reader: Any, data: bytes) -> list[Any]:
    """What the data says, whole and byte by byte."""
    whole = pieces(reader(), [data])
    assert pieces(reader(), (data[i : i + 1] for i in range(len(data)))) == whole
    return whole


def test_ollamas_lines_give_text_counts_and_times() -> None:
    found = both_ways(
        OllamaReader,
        lines(
            {"model": "m", "message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
            {"model": "m", "message": {"role": "assistant", "content": "hé"}, "done": False},
            {
                "model": "m",
                "message": {"role": "assistant", "content": ""},
                "done": True,
                "done_reason": "length",
                "prompt_eval_count": 26,
                "prompt_eval_duration": 130_000_000,
                "eval_count": 2,
                "eval_duration": 50_000_000,
            },
        ),
    )
    assert [(t.text, t.thinking, t.origin) for t in tokens(found)] == [
        ("hm", True, "unknown"),
        ("hé", False, "unknown"),
    ]
    last = its_end(found)
    assert (last.reason, last.prompt_tokens, last.prefill_ms, last.decode_ms) == ("length", 26, 130.0, 50.0)


def test_lm_studio_reports_its_totals() -> None:
    found = both_ways(
        LMStudioReader,
        events(
            {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
            {
                "choices": [{"delta": {}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 2},
                "stats": {
                    "time_to_first_token": 0.25,
                    "generation_time": 0.5,
                    "draft_model": "small",
                    "total_draft_tokens_count": 12,
                    "accepted_draft_tokens_count": 7,
                    "rejected_draft_tokens_count": 5,
                },
            },
        ),
    )
    last = its_end(found)
    assert last.counters == Counters(12, 7)
    assert (last.prefill_ms, last.decode_ms, last.drafter) == (250.0, 500.0, "small")


def test_lm_studio_may_report_its_totals_in_the_usage() -> None:
    found = both_ways(
        LMStudioReader,
        events(
            {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
            {
                "choices": [{"delta": {}, "finish_reason": "length"}],
                "usage": {
                    "prompt_tokens": 5,
                    "completion_tokens": 2,
                    "total_draft_tokens_count": 12,
                    "accepted_draft_tokens_count": 7,
                },
                "stats": {"time_to_first_token": 0.25, "generation_time": 0.5},
            },
        ),
    )
    last = its_end(found)
    assert (last.counters, last.decode_ms, last.prompt_tokens) == (Counters(12, 7), 500.0, 5)


def sglang(
    text: str, ids: list[int], verified: int, correct: int, reason: str | None = None
) -> dict[str, Any]:
    meta = {
        "completion_tokens": len(ids),
        "spec_verify_ct": verified,
        "spec_num_correct_drafts": correct,
        "prompt_tokens": 3,
        "finish_reason": {"type": reason} if reason else None,
    }
    return {"text": text, "output_ids": ids, "meta_info": meta}


def test_sglang_gives_origins_by_step_for_a_raw_prompt() -> None:
    found = both_ways(
        GenerateReader,
        events(
            sglang("a", [1], 0, 0),
            sglang("abcd", [1, 2, 3, 4], 1, 2),
            sglang("abcde", [1, 2, 3, 4, 5], 2, 2),
            sglang("abcdefgh", [1, 2, 3, 4, 5, 6, 7, 8], 4, 3, "length"),
        ),
    )
    assert "".join(token.text for token in tokens(found)) == "abcdefgh"
    assert [token.id for token in tokens(found)] == [1, 2, 3, 4, 5, 6, 7, 8]
    # Two verifications in one chunk leave open which token came from which.
    assert "".join(token.origin[0] for token in tokens(found)) == "paauuuuu"
    last = its_end(found)
    assert (last.reason, last.prompt_tokens) == ("length", 3)


def test_sglang_with_incremental_output_gives_the_same() -> None:
    """Also where a chunk begins as the reply did."""
    cumulative = [
        ("a", [1], 1, 0, 0, None),
        ("aa", [1, 1], 2, 1, 0, None),
        ("aaaab", [1, 1, 1, 1, 2], 5, 2, 2, None),
        ("aaaabc", [1, 1, 1, 1, 2, 3], 6, 3, 2, "stop"),
    ]
    incremental = [
        ("a", [1], 1, 0, 0, None),
        ("a", [1], 2, 1, 0, None),
        ("aab", [1, 1, 2], 5, 2, 2, None),
        ("c", [3], 6, 3, 2, "stop"),
    ]

    def told(chunks: list[Any]) -> list[Any]:
        bodies = []
        for text, ids, count, verified, correct, reason in chunks:
            body = sglang(text, ids, verified, correct, reason)
            body["meta_info"]["completion_tokens"] = count
            bodies.append(body)
        return both_ways(GenerateReader, events(*bodies))

    assert told(cumulative) == told(incremental)
    assert "".join(token.text for token in tokens(told(incremental))) == "aaaabc"
    assert "".join(token.origin[0] for token in tokens(told(incremental))) == "puaauu"


@pytest.mark.parametrize("with_ids", [True, False])
def test_sglang_may_omit_the_end_token_or_all_ids(with_ids: bool) -> None:
    bodies = [sglang("a", [1], 0, 0), sglang("ab", [1, 2], 1, 0), sglang("ab", [1, 2], 2, 0, "stop")]
    bodies[2]["meta_info"]["completion_tokens"] = 3
    for body in bodies if not with_ids else []:
        del body["output_ids"]
    assert "".join(token.text for token in tokens(both_ways(GenerateReader, events(*bodies)))) == "ab"


def test_sglang_with_counters_only_at_the_end_gives_totals_and_no_origins() -> None:
    bodies = [
        sglang("a", [1], 0, 0),
        sglang("abc", [1, 2, 3], 0, 0),
        sglang("abcd", [1, 2, 3, 4], 2, 1, "length"),
    ]
    for body in bodies[:2]:
        del body["meta_info"]["spec_verify_ct"], body["meta_info"]["spec_num_correct_drafts"]
    bodies[2]["meta_info"]["spec_num_proposed_drafts"] = 6
    found = both_ways(GenerateReader, events(*bodies))
    assert "".join(token.origin[0] for token in tokens(found)) == "puuu"
    assert its_end(found).counters == Counters(6, 1)


def test_sglangs_chat_reports_its_totals() -> None:
    found = both_ways(
        ChatReader,
        events(
            {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
            {
                "choices": [{"delta": {}, "finish_reason": "stop"}],
                "sglext": {"spec_num_proposed_drafts": 9, "spec_num_correct_drafts": 4},
            },
        ),
    )
    assert its_end(found).counters == Counters(9, 4)


READERS: list[type[Reader]] = [OllamaReader, LMStudioReader, ChatReader, GenerateReader]


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.__name__)
@pytest.mark.parametrize(
    "odd", [{}, {"choices": [{"delta": None}]}, {"message": 3}, {"meta_info": []}, {"text": None}]
)
def test_missing_and_null_fields_break_no_reader(reader: type[Reader], odd: object) -> None:
    assert its_end(pieces(reader(), [events(odd)])).reason is None
