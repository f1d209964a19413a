"""The dialects, in the order in which they are tried: those that can be told apart for certain come first."""

from __future__ import annotations

from ds4chat.servers.dialect import Dialect
from ds4chat.servers.ds4_server import Ds4Server
from ds4chat.servers.llama_server import LlamaServer
from ds4chat.servers.lm_studio import LMStudio
from ds4chat.servers.ollama import Ollama
from ds4chat.servers.openai import OpenAI
from ds4chat.servers.sglang import SGLang
from ds4chat.servers.vllm import Vllm

DIALECTS: tuple[Dialect, ...] = (
    LlamaServer(),
    Vllm(),
    Ds4Server(),
    SGLang(),
    Ollama(),
    LMStudio(),
    OpenAI(),
)
