"""vLLM's recorded streams: by step while they come, exact at their end as far as the lists tell."""

from __future__ import annotations

import json

import pytest
from servers.replay import VLLM, blocks, end, its_end, pieces, recorded, tokens

from ds4chat.engine.events import Token
from ds4chat.servers.dialect import Block, Revision
from ds4chat.servers.vllm import VllmReader, align

UNKNOWN = {
    "vllm.chat": 16,
    "vllm.chat-bare": None,
    "vllm-draft.chat-bare": None,
    "vllm.chat-logprobs": 9,
    "vllm.completion": 10,
    "vllm.completion-sampled": 39,
}
"""Tokens of steps that may or may not have had drafts; None: the stream was not asked for ids."""


def lists(stem: str) -> tuple[list[int], list[int]]:
    """Accepted and drafted by step, as the usage chunk has them; empty where it has none."""
    for line in recorded(stem).splitlines():
        if b"per_step_accepted" in line:
            told = json.loads(line[6:])["metrics"]["speculative_decoding"]
            return told["per_step_accepted"], told["per_step_drafted"]
    return [], []


@pytest.mark.parametrize("stem", VLLM)
def test_the_end_reveals_every_step_that_can_be_known(stem: str) -> None:
    found = pieces(VllmReader(), [recorded(stem)])
    told = [token.origin for token in tokens(found)]
    accepted, drafted = lists(stem)
    assert told.count("unknown") == (len(told) if UNKNOWN.get(stem, 0) is None else UNKNOWN.get(stem, 0))
    known = [(block.accepted, block.drafted) for block in blocks(found) if block.drafted]
    if stem not in UNKNOWN:
        assert [k for _, k in known] == drafted
        assert told.count("accepted") == sum(a for a, _ in known)
    elif accepted:
        # Among the steps whose place is known are all that accepted a draft, in order.
        assert [pair for pair in known if pair[0]] == [p for p in zip(accepted, drafted) if p[0]]
    last = its_end(found)
    assert last.reason == "length"
    if accepted:
        assert last.counters is not None
        assert last.counters.drafted == sum(drafted)


@pytest.mark.parametrize("stem", [stem for stem in VLLM if UNKNOWN.get(stem, 0) is not None])
def test_the_end_contradicts_no_step_before_it(stem: str) -> None:
    """But where the server was told to send several steps at once."""
    found = pieces(VllmReader(), [recorded(stem)])
    before = [t for piece in found if isinstance(piece, Block) for t in piece.tokens]
    after = tokens(found)
    assert [(t.id, t.text) for t in before] == [(t.id, t.text) for t in after]
    if "interval" not in stem:
        assert all(a.origin in ("unknown", b.origin) for a, b in zip(before, after))


@pytest.mark.parametrize("stem", VLLM)
def test_reading_byte_by_byte_gives_the_same(stem: str) -> None:
    data = recorded(stem)
    assert pieces(VllmReader(), (data[i : i + 1] for i in range(len(data)))) == pieces(VllmReader(), [data])


def test_the_text_of_a_step_is_divided_by_its_tokens() -> None:
    found = tokens(pieces(VllmReader(), [recorded("vllm-draft.chat-logprobs")]))
    several = [
        p for p in pieces(VllmReader(), [recorded("vllm-draft.chat-logprobs")]) if isinstance(p, Block)
    ]
    assert any(len(block.tokens) > 1 for block in several)
    assert "".join(token.text for token in found) == "".join(
        token.text for block in several for token in block.tokens
    )


def test_without_a_drafter_every_token_is_plain() -> None:
    found = pieces(
        VllmReader(speculates=False), [b'data: {"choices":[{"text":"a","token_ids":[7]}]}\n\n'] * 3
    )
    assert [token.origin for token in tokens(found)] == ["plain"] * 3


def chunks(*sizes: int) -> list[tuple[Token, ...]]:
    return [tuple(Token(7, "x", "unknown") for _ in range(size)) for size in sizes]


def told(sizes: list[int], accepted: list[int], drafted: list[int]) -> str:
    """The first letters of the origins."""
    return "".join(t.origin[0] for block in align(chunks(*sizes), accepted, drafted) for t in block.tokens)


@pytest.mark.parametrize(
    ("sizes", "accepted", "drafted", "origins"),
    [
        ([1, 3, 1], [2, 0], [2, 2], "paabc"),
        ([1, 3, 1], [2, 0], [3, 2], "paacc"),
        ([1, 1, 1, 3], [2], [3], "pppaac"),  # no misses: the single ones are plain
        ([1, 1, 1, 3], [0, 0, 2], [3, 3, 3], "pccaac"),  # as many misses as single ones
        ([1, 1, 1, 3], [0, 2], [3, 3], "puuaac"),  # one of two: nobody knows which
        ([1, 2, 1], [1, 3], [2, 3], "paca"),  # the limit cut the last step, whose token is a draft
        ([1, 4, 3], [1, 1, 2], [3, 3, 3], "pacacaac"),  # several steps in a chunk, all with drafts
        ([1, 4, 1], [1, 1], [3, 3], "puuuuu"),  # and one without, anywhere
    ],
)
def test_steps_are_laid_over_the_chunks(
    sizes: list[int], accepted: list[int], drafted: list[int], origins: str
) -> None:
    assert told(sizes, accepted, drafted) == origins


def test_a_revision_comes_before_the_end() -> None:
    found = pieces(VllmReader(), [recorded("vllm-draft.chat")])
    assert isinstance(found[-2], Revision)
    assert found[-1] is end(found)
