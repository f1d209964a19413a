"""What the chat is told of a server, and the steps of one whose origins come late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kits.chat import loaded
from servers.replay import recorded

from ds4chat.engine.events import DrafterInfo, Loaded, ServerInfo, Tuning
from ds4chat.servers.dialect import Asked
from ds4chat.servers.http import Address, Endpoint, never
from ds4chat.servers.llama_server import LlamaServer
from ds4chat.servers.reading import Reading
from ds4chat.servers.session import _Reply
from ds4chat.servers.vllm import VllmReader

INFO = ServerInfo(
    url="http://box:8080",
    name="box",
    kind="llama-server",
    version="b1",
    tells="exact",
    why=LlamaServer.why,
    speculates=True,
    live=("temp", "top_k", "top_p", "min_p", "repeat_penalty", "seed"),
    fixed=tuple(LlamaServer.fixed.items()),
    chosen=(),
    has_key=False,
    exposed=False,
)


def served(**more: Any) -> Loaded:
    """A loaded server; ``more`` changes its info."""
    info = replace(INFO, **more)
    drafter = DrafterInfo("draft-eagle3", "", 0) if info.speculates else None
    return replace(loaded(plain_ms=0.0), drafter=drafter, server=info, threads=0)


def events_of(stem: str, reader: Any) -> list[Any]:
    """The events of a recorded answer, as the remote session makes them, without an Ended."""
    from ds4chat.engine.events import Generate
    from ds4chat.servers.dialect import About

    found: list[Any] = []
    request = Generate(1, tuning=Tuning())
    asked = Asked(request, About(""), Endpoint(Address("http://127.0.0.1:1")), frozenset(), never)
    reply = _Reply(request, asked, found.append, About("", drafter="ngram"))
    reading = Reading(reader)
    reply.pass_on(reading.feed(recorded(stem)))
    end = reply.pass_on(reading.finish())
    assert end is not None
    found.append(reply.ended(end.reason, "", end))
    return found


def late() -> list[Any]:
    """vLLM's events: steps by chunk, a Revised, an Ended."""
    return events_of("vllm-draft.chat-logprobs", VllmReader())
