"""A disk that is full, read-only or holds what is not ours: the chat goes on, and says what is not kept."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kits.engine import Bench, load_of
from kits.faults import Victim, stored
from kits.terminal import one_line

from ds4chat.engine import saved_state
from ds4chat.engine.opening import open_session
from ds4chat.store.schema import VERSION

# Whole programs that are killed, locked out or left without a disk, one process or more each.
pytestmark = pytest.mark.slow

NARROW = 60
"""Columns at which neither a panel nor a text stands beside a sentence or a notice."""


def fill(folder: Path) -> Path:
    """A file that takes what room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    return filler


@pytest.mark.mounts
def test_a_disk_that_fills_up_costs_nothing_once_there_is_room_again(
    victim: Callable[..., Victim], mount: Callable[[str], Path]
) -> None:
    home = mount("size=4m")
    chat = victim(home, columns=NARROW)
    chat.until("● ready")
    chat.answered()
    filler = fill(home)
    chat.writing()
    chat.until(lambda screen: "the disk is full" in one_line(screen))
    chat.type("\x1b")
    chat.until("● ready")
    chat.type("\x13")  # save the settings
    chat.until(lambda screen: all(part in one_line(screen) for part in ("were not saved", "left on device")))
    filler.unlink()
    chat.until("written to disk again")
    chat.answered()
    chat.enter("/quit")
    assert chat.leave() == 0
    rows = stored(home)
    assert [row[:2] for row in rows] == [
        ("user", "complete"),
        ("assistant", "complete"),
        ("user", "complete"),
        ("assistant", "stopped"),
        ("user", "complete"),
        ("assistant", "complete"),
    ]
    assert rows[3][2].startswith(" we go up to the old red hut")


@pytest.mark.mounts
def test_a_chat_that_begins_on_a_full_disk_works_in_memory(
    victim: Callable[..., Victim], mount: Callable[[str], Path]
) -> None:
    home = mount("size=1m")
    fill(home)
    chat = victim(home, columns=NARROW)
    # Both at once: a notice may stand before the sentence for a while.
    full = ("the disk is full", "no space left")
    chat.until(
        lambda screen: "in memory only" in (said := one_line(screen).lower()) and any(w in said for w in full)
    )
    chat.until("● ready")
    chat.answered()
    chat.enter("/quit")
    assert chat.leave() == 0


@pytest.mark.mounts
def test_a_chat_in_a_read_only_folder_works_in_memory(
    victim: Callable[..., Victim], mount: Callable[[str], Path]
) -> None:
    home = mount("ro")
    chat = victim(home, columns=NARROW)
    # Both at once: a notice may stand before the sentence for a while.
    chat.until(lambda screen: all(part in one_line(screen) for part in ("cannot be", "in memory only")))
    chat.until("● ready")
    chat.answered()
    chat.enter("/quit")
    assert chat.leave() == 0
    assert os.listdir(home) == []


@pytest.mark.mounts
@pytest.mark.parametrize("room", [2 << 10, 300 << 10], ids=["no room at all", "less than it needs"])
def test_a_state_that_does_not_fit_on_the_disk_costs_the_file_alone(
    tiny_dir: Path, mount: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Nothing half-written takes what room there is, and the conversation goes on."""
    home = mount("size=1m")
    monkeypatch.setenv("DS4CHAT_HOME", str(home))
    monkeypatch.setattr(saved_state, "WORTH", 0.0)
    load = replace(load_of(tiny_dir, "llama-draft", ctx=4096), keep_states=True)
    session, loaded = open_session(load, lambda event: None, forgiving=False, resuming=True)
    try:
        bench = Bench(session, loaded)
        fill(home)
        os.truncate(home / "filler", (home / "filler").stat().st_size - room)
        first = bench.ask(" sun sea fog hut" * 600 + " end now", 5, conversation=1)
        assert session.caches.target.state_size() > room
        session.keep()
        again = bench.ask(" sun sea fog hut" * 600 + " end now", 5, conversation=1)
        session.keep()
    finally:
        session.close()
    assert again.ids == first.ids
    left = [path.name for path in (home / "states").iterdir()] if (home / "states").exists() else []
    assert left == []


def test_a_database_of_a_newer_version_is_left_alone(victim: Callable[..., Victim], home: Path) -> None:
    first = victim(home)
    first.until("● ready")
    first.answered()
    first.enter("/quit")
    assert first.leave() == 0
    path = home / "conversations.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    chat = victim(home, columns=NARROW)
    said = one_line(chat.until(lambda screen: "newer version of ds4chat" in one_line(screen)))
    assert "Update ds4chat" in said
    chat.until("● ready")
    chat.answered()
    chat.enter("/quit")
    assert chat.leave() == 0
    assert path.read_bytes() == before


def test_a_damaged_database_is_left_as_it_is(victim: Callable[..., Victim], home: Path) -> None:
    home.mkdir()
    path = home / "conversations.db"
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    before = path.read_bytes()
    chat = victim(home, columns=NARROW)
    chat.until(lambda screen: "is damaged" in one_line(screen))
    chat.until("● ready")
    chat.answered()
    chat.enter("/quit")
    assert chat.leave() == 0
    assert path.read_bytes() == before
