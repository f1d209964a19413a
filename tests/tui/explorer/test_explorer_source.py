"""Where rows come from: the chat, a log file, the store; and the sentence if there are none."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from kits.chat import PIECES, ReplayEngine, SettledRecorder, loaded, steps_of
from kits.explorer_stage import reply_of, steps_from
from kits.stored_replies import step as stored_step

from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.engine.events import Tuning
from ds4chat.engine.speclog import conf_line, timing_line
from ds4chat.store import Store
from ds4chat.store.recording import Request
from ds4chat.tui.controller import Chat
from ds4chat.tui.conversation import Reply, UserTurn
from ds4chat.tui.explorer.source import (
    SourceError,
    conversation_source,
    log_source,
    opener,
    stored_source,
)
from ds4chat.tui.transcript.pieces import pieces

STEPS = steps_from(("++", "-", "+-"))


def same(one: JudgedRows, other: JudgedRows) -> bool:
    def equal(a: object, b: object) -> bool:
        return a == b if isinstance(a, tuple) else np.array_equal(a, b, equal_nan=True)  # type: ignore[call-overload]

    return all(equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(JudgedRows))


def chat_of(*replies: Reply) -> Chat:
    chat = Chat(ReplayEngine(), SettledRecorder(), Tuning())
    chat.loaded = loaded(plain_ms=25.0)
    for reply in replies:
        chat.conversation.turns += [UserTurn("?"), reply]
    return chat


def test_the_chat_gives_the_rows_of_all_its_replies() -> None:
    first, second = Reply(1, "m"), Reply(2, "m")
    for one in STEPS:
        first.add_step(one)
    first.stats.plain.load_ms = 30.0
    for one in steps_from(("++",), reply=2):
        second.add_step(one)
    second.stats.plain.load_ms = 25.0
    found = opener(chat_of(first, second), "")()
    assert same(found.listing.rows, rows_from_steps([*STEPS, *steps_from(("++",), reply=2)]))
    assert found.in_chat and not found.note
    # 3 + 1 + 2 tokens at 30 ms, 3 at 25; the steps took 120 and 40 ms.
    assert found.times.step_ms(0) == (6 * 30 + 3 * 25) / 9
    assert found.times.plain.speedup == (6 * 30 + 3 * 25) / 160


def test_replies_have_the_numbers_that_the_chat_gives_them() -> None:
    """Their places in the conversation, whatever was answered before in this session."""
    replies = [Reply(10, "m"), Reply(16, "m"), Reply(17, "m")]
    for reply in (replies[0], replies[2]):
        for one in steps_from(("++", "-"), reply=reply.number):
            reply.add_step(one)
    chat = chat_of(*replies)
    found = opener(chat, "")()
    assert found.listing.rows.step_reply.tolist() == [1, 1, 3, 3]
    assert [row.number for row in found.replies] == [1, 3]
    assert found.numbers == (10, 16, 17)
    told = [piece.what for piece in pieces(chat.conversation.turns) if isinstance(piece.turn, Reply)]
    assert told == ["reply 1", "reply 3"]


def test_a_source_can_be_read_again_when_more_has_come() -> None:
    reply = Reply(1, "m")
    reply.add_step(STEPS[0])
    read = opener(chat_of(reply), "")
    assert len(read().listing.rows) == 2
    reply.add_step(STEPS[1])
    assert len(read().listing.rows) == 3


def test_replies_without_steps_are_counted() -> None:
    reply, old = Reply(1, "m"), Reply(2, "m", state="complete", tail="from long ago")
    reply.add_step(STEPS[0])
    assert opener(chat_of(old, reply), "")().note == "1 reply has no steps on record."


def test_a_chat_without_a_judged_draft_says_what_to_do() -> None:
    with pytest.raises(SourceError, match=r"No draft was judged in this conversation yet\. Ask something"):
        conversation_source([reply_of(steps_from(("", "")))])


def test_a_pass_on_record_counts_before_the_load() -> None:
    plain, drafting = steps_from(("", "++"))
    reply = Reply(1, "m")
    reply.stats.plain.load_ms = 99.0
    reply.add_step(replace(plain, baseline=True))
    reply.add_step(drafting)
    found = opener(chat_of(reply), "")()
    assert found.times.step_ms(0) == 20.0
    assert found.times.plain.speedup == reply.stats.plain.speedup == (4 * 20) / 60


def test_a_log_gives_the_rows_that_were_written(tmp_path: Path) -> None:
    log = tmp_path / "old.log"
    lines = [
        line for one in STEPS for line in (*(conf_line(one, row) for row in one.judged), timing_line(one))
    ]
    log.write_text("\n".join([*lines, "ds4chat: mtp conf reply=1 st"]), encoding="utf-8")
    found = log_source(str(log))
    assert (found.title, found.note, found.in_chat) == ("old.log", "1 line is incomplete.", False)
    assert found.listing.rows.draft_text == rows_from_steps(STEPS).draft_text
    assert found.listing.rows.accepted.tolist() == [True, True, False, True, False]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "{} cannot be read: No such file or directory. Give a log file."),
        (lambda path: path.mkdir(), "{} cannot be read: Is a directory. Give a log file."),
        (
            lambda path: path.write_bytes(b"\xff\x00 some other file\n"),
            "{} has no judged drafts. ds4chat writes them to stderr with --mtp-conf-log; --mtp-timing adds "
            "the times.",
        ),
    ],
)
def test_a_file_without_a_log_is_refused_in_a_sentence(make, sentence, tmp_path: Path) -> None:
    make(tmp_path / "x.log")
    with pytest.raises(SourceError) as caught:
        log_source(str(tmp_path / "x.log"))
    assert str(caught.value) == sentence.format(tmp_path / "x.log")


def test_a_stored_conversation_gives_the_rows_of_its_replies() -> None:
    store = Store.in_memory()
    recorder = store.record(Request("x"))
    for index in range(3):
        recorder.append(stored_step(index))
    recorder.flush()
    assert recorder.conversation is not None
    found = stored_source(store, recorder.conversation)
    assert len(found.listing.rows) == 9
    assert found.listing.rows.accepted.tolist() == [True, True, False] * 3
    assert found.listing.rows.draft_text[:3] == ("d1", "d2", "d3")
    with pytest.raises(
        SourceError, match="The stored conversation 99 does not exist, or has no judged drafts"
    ):
        stored_source(store, 99)


def test_a_number_is_a_stored_conversation_unless_a_file_has_that_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    chat = chat_of()
    chat.recorder.store = Store.in_memory()  # type: ignore[attr-defined]
    with pytest.raises(SourceError, match="The stored conversation 7 "):
        opener(chat, "7")()
    Path("7").write_text("no log")
    with pytest.raises(SourceError, match=r"7 has no judged drafts\. ds4chat writes"):
        opener(chat, "7")()


def test_reply_numbers_lead_back_to_the_tokens() -> None:
    """Row 0 is the first draft that was judged: its token is found in the reply by step and position."""
    reply = Reply(4, "m")
    for one in steps_of(4, PIECES):
        reply.add_step(one)
    rows = opener(chat_of(reply), "")().listing.rows
    for row in range(len(rows)):
        step = int(rows.step_index[rows.step[row]])
        token = reply.token_of(step, int(rows.position[row]) - 1)
        assert token is not None
        place = reply.place(token)
        assert place is not None and place.judged is not None
        assert place.judged.draft_text == rows.draft_text[row]
