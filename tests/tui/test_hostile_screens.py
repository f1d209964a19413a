"""The chat on a real terminal, with a model, a database, settings, themes and a log full of hostile text,
through every screen: only what can be printed reaches the terminal, and no screen falls over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits import hostile
from kits.hostile import Place
from kits.terminal import Terminal
from rich.segment import Segment
from textual.color import Color
from textual.widgets import Static

from ds4chat.settings.schema import Settings
from ds4chat.tui.app import ChatApp
from ds4chat.tui.kit.printable import PrintableFilter

SCREENS: dict[str, tuple[str, str]] = {
    "help": ("\x1bOP", "─ Help"),
    "explorer": ("\x1b[23~", "─ Confidence explorer"),
    "log": ("\x1b[24~", "─ Log  "),
    "palette": ("\x10", "Search for commands"),
    "models": ("/model\r", "─ Model "),
    "settings": ("/settings\r", "─ Settings  "),
    "themes": ("/theme\r", "─ Theme"),
    "about": ("/about\r", "─ About"),
}
"""The keys that open each, and a text by which it is known."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> Place:
    return hostile.lay_out(tmp_path_factory.mktemp("hostile"), tiny_dir)


@pytest.fixture
def chat(place: Place) -> Iterator[Terminal]:
    chat = Terminal(
        *("-m", place.model, "--lookup", "-t", "1", "-c", "1024", "-n", "12"),
        columns=160,
        rows=40,
        DS4CHAT_HOME=str(place.home),
    )
    yield chat
    chat.close()


@pytest.mark.slow
def test_no_screen_lets_it_through(chat: Terminal) -> None:
    chat.until("● ready")
    status = next(line for line in chat.text.splitlines() if "● ready" in line)
    assert "evil \\x1b]0;PWN" in status and "depth" in status  # a line end in the name breaks no line
    chat.type("\x1b[A")  # the prompt that an earlier session sent last
    chat.until("│ FORGED")
    chat.type("\r")
    chat.until("yes it is fine")
    chat.type(" loop\r")
    chat.until("cut at its limit")
    assert "old ␛c␇ hut" in chat.text
    for name, (keys, known) in SCREENS.items():
        chat.type(keys)
        chat.until(known)
        chat.type("\x1b")
        chat.until(lambda screen, known=known: known not in screen)  # type: ignore[misc]
        assert hostile.leaks(chat.raw) == [], name
    chat.type("\x02")  # the history: a stored conversation, its branches, and back into the chat with it
    chat.until("5 messages")
    chat.type("\x1b[B")
    chat.until("3 messages")
    chat.type("b")
    chat.until("─ Branches")
    chat.type("\x1b")
    chat.until("search: words")
    chat.type("\r")
    chat.until("stopped by you")
    chat.type("\x11")
    assert chat.leave() == 0
    assert hostile.leaks(chat.raw) == []


def test_what_a_widget_shows_as_it_came_is_left_out_of_the_row() -> None:
    segments = [Segment("a\x1b[2J"), Segment("\u202eb\n\t"), Segment("c👩\u200d🔬\ud800")]
    shown = PrintableFilter().apply(segments, Color.parse("black"))
    assert "".join(segment.text for segment in shown) == "a[2Jbc👩\u200d🔬\ufffd"
    assert sum(segment.cell_length for segment in shown) == sum(segment.cell_length for segment in segments)
    clean = [Segment("plain"), Segment("é")]
    assert PrintableFilter().apply(clean, Color.parse("black")) is clean


async def test_pictures_and_notices_hold_what_can_be_printed(tmp_path: Path) -> None:
    app = ChatApp(Settings(), config_path=tmp_path / "config.toml")
    async with app.run_test(size=(120, 40)) as pilot:
        await app.screen.mount(Static(hostile.TEXT, markup=False))
        app.notify(hostile.TEXT)
        await pilot.pause()
        picture = app.export_screenshot()
    assert "FORGED" in picture and "[/b][red]" in picture.replace("&#160;", " ")
    assert hostile.leaks(picture.encode()) == []
