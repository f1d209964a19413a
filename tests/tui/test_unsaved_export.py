"""A conversation that is in no store, written as the document that the store writes."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
from kits.chat import MODEL, PIECES, SettledRecorder, ended, steps_of
from kits.stored import TEXT

from ds4chat.engine.events import EngineDied, Tuning
from ds4chat.store import Store, StoreError
from ds4chat.store.importing import import_file
from ds4chat.tui.conversation import Conversation, Reply, ReplyState, UserTurn
from ds4chat.tui.export import export_unsaved
from ds4chat.tui.recorder import read_conversation


def replied(number: int, *, end: bool = True, tuning: Tuning | None = None) -> Reply:
    """A reply with the sentence, by the constructed model."""
    reply = Reply(number, MODEL.name)
    for step in steps_of(number, PIECES, tuning=tuning):
        reply.add_step(step)
    if end:
        reply.end(ended(number))
    return reply


def conversation() -> Conversation:
    """Two exchanges under a system prompt."""
    return Conversation("Be brief.", [UserTurn("Hi"), replied(1), UserTurn("More"), replied(2)])


def back(path: Path) -> tuple[Store, int]:
    """What an import makes of the file."""
    store = Store.in_memory()
    return store, import_file(store, path)


def test_an_unsaved_conversation_is_imported_whole(tmp_path: Path) -> None:
    written = conversation()
    export_unsaved(written, tmp_path / "a.json", {MODEL.name: MODEL})
    store, key = back(tmp_path / "a.json")
    found = read_conversation(store, key, count(1).__next__)
    assert (found.system, found.title, len(found.turns)) == ("Be brief.", "Hi", 4)
    for turn, again in zip(written.turns, found.turns):
        if isinstance(turn, Reply):
            assert isinstance(again, Reply)
            assert (again.tokens, again.steps, again.ended) == (turn.tokens, turn.steps, turn.ended)
            assert (again.state, again.model) == ("complete", "Tiny Chat")
        else:
            assert again.text == turn.text
    model = store.conversations.path(key)[2].model
    assert model is not None
    assert (model.path, model.architecture, model.quantisation) == ("/models/tiny.gguf", "llama", "Q4_1")


@pytest.mark.parametrize("state", ["stopped", "failed", "crashed", "streaming"])
def test_a_reply_that_did_not_end_is_exported_as_far_as_it_came(tmp_path: Path, state: ReplyState) -> None:
    reply = replied(1, end=False)
    if state == "crashed":
        reply.crash(EngineDied(1, None, "SIGKILL", "The engine was killed.", ()))
    else:
        reply.state = state
    export_unsaved(Conversation("", [UserTurn("Hi"), reply]), tmp_path / "a.json", {})
    store, key = back(tmp_path / "a.json")
    user, again = store.conversations.path(key)
    assert (user.text, again.text) == ("Hi", TEXT)
    assert again.state == ("stopped" if state == "streaming" else state)
    assert again.detail == ("The engine was killed." if state == "crashed" else "")
    assert again.model is not None
    assert again.model.name == "Tiny Chat"


def test_a_reply_whose_steps_could_not_be_read_keeps_its_text(tmp_path: Path) -> None:
    reply = Reply(1, "Tiny Chat", "crashed", tail="all that is left", trouble="Its records are damaged.")
    SettledRecorder().export(Conversation("", [UserTurn("Hi"), reply]), tmp_path / "a.json")
    store, key = back(tmp_path / "a.json")
    again = store.conversations.path(key)[1]
    assert (again.text, again.state, again.detail) == (
        "all that is left",
        "failed",
        "Its records are damaged.",
    )


def test_markdown_has_every_turn_and_says_what_is_approximate(tmp_path: Path) -> None:
    lossy = replied(2, tuning=Tuning(depth=2, margin=0.5))
    export_unsaved(
        Conversation("Be brief.", [UserTurn("Hi"), replied(1), UserTurn("More"), lossy]),
        tmp_path / "a.md",
        {},
    )
    lines = (tmp_path / "a.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## System",
        "## User",
        "## Assistant (Tiny Chat)",
        "## User",
        "## Assistant (Tiny Chat), approximate",
    ]
    assert lines.count(TEXT) == 2


def test_judged_drafts_are_one_line_each(tmp_path: Path) -> None:
    export_unsaved(conversation(), tmp_path / "a.jsonl", {})
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    # Of the 22 tokens 15 were drafted, in either reply.
    assert len(rows) == 30
    assert rows[0]["draft_text"] == "ulative"


def test_an_export_never_writes_over_a_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("mine")
    for name, sentence in (
        ("a.md", "exists already"),
        ("a.doc", "does not end in"),
        ("nowhere/a.md", "cannot be written"),
    ):
        with pytest.raises(StoreError, match=sentence):
            export_unsaved(conversation(), tmp_path / name, {})
    assert [p.name for p in tmp_path.iterdir()] == ["a.md"]
    assert (tmp_path / "a.md").read_text() == "mine"
