"""Tiny GGUFs whose next token and acceptance are known by hand, made at test time, no training.

>>> target = tiny.build("deepseek4", folder)
>>> support = tiny.build("deepseek4-support", folder, wrong_every=4)
>>> expected = tiny.simulate(tiny.encode(" end now"), 200, depth=3)
>>> expected.steps, expected.drafted, expected.accepted

The constructed targets see one token back and add nothing in their blocks: their text is known, and does not
depend on what the KV cache holds. What a cache must hold is proven on the random twins (``*-random``).

What the models say is in tiny.chain, the vocabulary in tiny.vocab, the counters in tiny.simulate, a plain
llama.cpp driver that proves all three in tiny.raw.
"""

from __future__ import annotations

from tiny.build import KINDS, build
from tiny.chain import CYCLE, draft_token, next_token, reply
from tiny.simulate import Simulated, Step, simulate
from tiny.vocab import ASSISTANT, BOS, CHAT_TEMPLATE, END_THINK, EOS, THINK, USER, encode, text

__all__ = [
    "ASSISTANT",
    "BOS",
    "CHAT_TEMPLATE",
    "CYCLE",
    "END_THINK",
    "EOS",
    "KINDS",
    "THINK",
    "USER",
    "Simulated",
    "Step",
    "build",
    "draft_token",
    "encode",
    "next_token",
    "reply",
    "simulate",
    "text",
]
