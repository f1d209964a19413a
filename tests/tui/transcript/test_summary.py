"""The line below a reply that a limit ended."""

from __future__ import annotations

import pytest
from kits.chat import PIECES, ended, steps_of

from ds4chat.engine.events import FinishReason, refused
from ds4chat.tui.conversation import Reply
from ds4chat.tui.transcript.summary import summary_lines


def first_words(reply: Reply) -> str:
    return summary_lines(reply, 200)[0][0][0]


@pytest.mark.parametrize(
    ("reason", "said"), [("length", "cut at its limit"), ("context", "cut: the context is full")]
)
def test_a_reply_that_is_cut_says_by_which_limit(reason: FinishReason, said: str) -> None:
    reply = Reply(1, "tiny")
    for step in steps_of(1, PIECES[:4]):
        reply.add_step(step)
    reply.end(ended(1, reason=reason))
    assert first_words(reply) == said


def test_a_prompt_that_is_too_long_was_not_cut() -> None:
    reply = Reply(1, "tiny")
    reply.end(refused(1, "The prompt has 9 tokens and the context holds 8.", "context"))
    assert first_words(reply) == "the prompt does not fit into the context"
