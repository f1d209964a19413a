"""llama-server's recorded streams against its own step log: no origin is wrong, however the bytes are cut."""

from __future__ import annotations

import copy

import pytest
from servers.replay import LLAMA, TRUTH, blocks, its_end, pieces, progress, recorded, tokens

from ds4chat.servers.dialect import Block
from ds4chat.servers.llama_server import LlamaReader
from ds4chat.servers.reading import Reading
from ds4chat.servers.session import _judged

UNKNOWN = {"eagle3.completion-utf8": 21, "eagle3.chat-bare": 21, "ngram.chat-bare": 21}
"""Tokens around a character that several tokens spell, and all of a stream that was not asked for timings."""


@pytest.mark.parametrize("stem", [stem for stem in LLAMA if stem in TRUTH])
def test_origins_and_counters_are_those_of_the_step_log(stem: str) -> None:
    found = pieces(LlamaReader(), [recorded(stem)])
    truth = TRUTH[stem]
    origins = [token.origin for token in tokens(found)]
    last = its_end(found)
    assert len(truth["origins"]) - len(origins) == (last.reason == "stop")  # the end token emits nothing
    wrong = [
        (i, told, true)
        for i, (told, true) in enumerate(zip(origins, truth["origins"]))
        if told not in ("unknown", true)
    ]
    assert not wrong
    assert origins.count("unknown") == UNKNOWN.get(stem, 0)
    steps: list[list[int]] = truth["steps"]  # type: ignore[assignment]
    total = [sum(step[0] for step in steps), sum(step[1] for step in steps)]
    counted = [last.counters.drafted, last.counters.accepted] if last.counters else [0, 0]
    assert counted == total
    if stem not in UNKNOWN:
        drafting = [[block.drafted, block.accepted] for block in blocks(found) if block.drafted]
        assert drafting == steps
        verdicts = [row.accepted for block in blocks(found) for row in _judged(block, greedy=True)]
        assert (verdicts.count(True), verdicts.count(False)) == (total[1], sum(a < k for k, a in steps))


@pytest.mark.parametrize("stem", LLAMA)
def test_reading_byte_by_byte_gives_the_same(stem: str) -> None:
    data = recorded(stem)
    assert pieces(LlamaReader(), (data[i : i + 1] for i in range(len(data)))) == pieces(LlamaReader(), [data])


@pytest.mark.parametrize("stem", [stem for stem in LLAMA if stem in TRUTH])
def test_a_stream_cut_anywhere_is_no_success_and_gives_no_wrong_origin(stem: str) -> None:
    reading = Reading(LlamaReader())
    truth = TRUTH[stem]["origins"]
    came: list[Block] = []
    ended = False
    events = recorded(stem).split(b"\n\n")
    for event in events[:-2]:
        came += [piece for piece in reading.feed(event + b"\n\n") if isinstance(piece, Block)]
        rest = list(copy.deepcopy(reading).finish())
        ended = ended or b'"finish_reason":"' in event or b'"stop":true' in event
        assert (its_end(rest).reason is not None) == ended
        whole = [*came, *[piece for piece in rest if isinstance(piece, Block)]]
        told = [token.origin for block in whole for token in block.tokens]
        assert all(o in ("unknown", t) for o, t in zip(told, truth)), told


def test_progress_of_the_prompt_is_reported() -> None:
    seen = progress(pieces(LlamaReader(), [recorded("eagle3.completion")]))
    assert [(p.done, p.total, p.reused) for p in seen] == [(0, 28, 0), (28, 28, 0)]


def test_the_end_reports_the_prompt_and_the_drafter() -> None:
    last = its_end(pieces(LlamaReader(), [recorded("eagle3.completion")]))
    assert (last.reason, last.prompt_tokens, last.reused_tokens, last.drafter, last.seed) == (
        "length",
        28,
        0,
        "draft-eagle3",
        1,
    )
    assert last.decode_ms == pytest.approx(512.039)


def test_step_times_are_the_servers_own() -> None:
    found = blocks(pieces(LlamaReader(), [recorded("eagle3.completion")]))
    assert sum(block.ms or 0 for block in found) == pytest.approx(512.039)


def test_a_replayed_step_has_one_unknown_token() -> None:
    stem = "qwen35-NGRAM_SIMPLE.completion-misled"
    told = [token.origin for token in tokens(pieces(LlamaReader(), [recorded(stem)]))]
    # The third and the fourth token came at one time, and the step had no draft accepted.
    assert told[2:4] == ["corrected", "unknown"]
    assert told[4:8] == ["accepted", "accepted", "corrected", "unknown"]
    assert told[8:10] == ["plain", "plain"]


def test_an_older_server_that_counts_whole_steps_gives_only_counters() -> None:
    def chunk(n: int, ms: float, drafted: int, accepted: int, text: str) -> dict[str, object]:
        timings = {
            "predicted_n": n,
            "predicted_ms": ms,
            "draft_n": drafted,
            "draft_n_accepted": accepted,
        }
        return {"content": text, "tokens": [7], "stop": False, "timings": timings}

    reader = LlamaReader()
    found = list(reader.feed(chunk(1, 0.001, 0, 0, "a")))
    for text in "bcde":
        found += reader.feed(chunk(5, 40.0, 3, 3, text))
    found += reader.feed(chunk(6, 80.0, 6, 3, "f"))
    found += reader.feed(
        {"stop": True, "stop_type": "limit", "content": "", "timings": chunk(6, 80, 6, 3, "")["timings"]}
    )
    found += reader.finish()
    assert "".join(token.text for token in tokens(found)) == "abcdef"
    assert [token.origin for token in tokens(found)] == ["plain", *["unknown"] * 5]
    last = its_end(found)
    assert last.counters is not None
    assert (last.counters.drafted, last.counters.accepted) == (6, 3)
