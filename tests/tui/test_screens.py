"""Help, log, about and the theme picker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar

import pytest
from kits.panel_stage import Stage
from kits.screen_stage import Host, until, work_done
from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.selection import Selection
from textual.widgets import Input, OptionList, Static

from ds4chat import __version__
from ds4chat.files import open_regular
from ds4chat.tui.command_table import usage_rows
from ds4chat.tui.help.about import AboutScreen, package_licence
from ds4chat.tui.help.screen import HelpScreen, KeyRow, collect_keys, help_lines, page_lines
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.log import screen as log_screen
from ds4chat.tui.log.screen import LogScreen, LogTail
from ds4chat.tui.log.view import MAX_LINES, LogView
from ds4chat.tui.messages import SettingsChanged
from ds4chat.tui.settings.theme_picker import ThemePicker

# ---------------------------------------------------------------------------------------- help


class Keyed(Stage):
    """A dock in an app with keys of its own."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f5,ctrl+r", "retry", "Ask again", id="app.retry"),
        Binding("f6", "secret", "", id="app.secret"),
    ]


async def test_help_lists_the_bindings_that_are_in_force() -> None:
    """A remapped key shows as remapped, two keys of one action are one row, parents of widgets count."""
    app = Keyed()
    async with app.run_test(size=(100, 60)) as pilot:
        await pilot.pause()
        rows = {row.binding.id: row for row in collect_keys(app)}
        assert rows["app.retry"].shown == "F5 Ctrl+R" and rows["app.retry"].group == "Everywhere"
        assert rows["app.retry"].binding.description == "Ask again"
        assert "app.secret" not in rows
        assert rows["tuning.undo"].shown == "u Ctrl+Z" and rows["tuning.undo"].group == "Tuning"
        assert rows["tuning.less"].group == "Tuning"
        assert rows["confidence.follow"].group == "Confidence log"
        app.set_keymap({"app.retry": "f9", "tuning.undo": "x"})
        rows = {row.binding.id: row for row in collect_keys(app)}
        assert rows["app.retry"].shown == "F9" and rows["tuning.undo"].shown == "x"


async def test_every_key_of_the_panels_has_an_id_and_a_description() -> None:
    """So that it can be remapped and is listed."""
    app = Stage()
    async with app.run_test(size=(100, 60)) as pilot:
        await pilot.pause()
        for widget in app.query("*"):
            if not type(widget).__module__.startswith("ds4chat.tui.panels"):
                continue
            for binding in type(widget).__dict__.get("BINDINGS", ()):
                assert binding.id and binding.description, binding


async def test_help_filters_keys_and_commands() -> None:
    commands = [("/draft N", "most drafts a step"), ("/quit", "leave")]
    app = Keyed()
    async with app.run_test(size=(100, 60)) as pilot:
        app.push_screen(HelpScreen(collect_keys(app), commands))
        await pilot.pause()
        view = app.screen.query_one("#help-lines", LinesView)
        assert "Ask again" in view.text and "/draft N" in view.text
        await pilot.press(*"draft")
        await pilot.pause()
        assert "/draft N" in view.text and "/quit" not in view.text and "Ask again" not in view.text
        await pilot.press(*"zz")
        await pilot.pause()
        assert view.text == "Nothing here mentions 'draftzz'."
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, HelpScreen)


@pytest.mark.parametrize("width", [36, 74, 120])
def test_help_wraps_what_is_long_and_cuts_nothing(width: int) -> None:
    rows = [
        KeyRow("Chat", tuple(keys.split()), Binding(keys, "act", description, id=name))
        for keys, description, name in (
            ("ctrl+j shift+enter alt+enter ctrl+enter", "New line", "prompt.newline"),
            ("f5", "Answer again, or load the model again", "chat.retry"),
            ("escape", "Close", "chat.back"),
        )
    ]
    lines = help_lines(rows, usage_rows(), "", width)
    texts = ["".join(text for text, _ in line) for line in lines]
    assert all(cell_len(text.rstrip()) <= width or text.strip().startswith("Ctrl+J") for text in texts)
    words = " ".join(" ".join(texts).split())
    for row in rows:
        assert row.binding.description in words and str(row.binding.id) in words
    for _, does in usage_rows():
        assert does in words


def test_help_without_rows_says_so() -> None:
    assert page_lines([], [], "xyzzy", 80) == [(("Nothing here mentions 'xyzzy'.", "muted"),)]


# ---------------------------------------------------------------------------------------- log


def test_tail_hands_out_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    tail = LogTail(path)
    assert tail.read() == ([], False)
    assert tail.problem == "The log cannot be read: No such file or directory"
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.read() == (["one", "two"], False) and tail.problem == ""
    with path.open("ab") as file:
        file.write(b"ee\r\n\xff\n")
    assert tail.read() == (["three", "\ufffd"], False)
    assert tail.read() == ([], False)


def test_tail_of_a_long_file_begins_at_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    assert LogTail(path, tail_bytes=25).read() == (["line 998", "line 999"], False)


def test_tail_notices_a_file_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old 1\nold 2\n")
    tail = LogTail(path)
    tail.read()
    path.write_text("new\n")
    assert tail.read() == (["new"], True)
    other = tmp_path / "b.log"
    other.write_text("rotated, and longer than before\n")
    os.replace(other, path)
    assert tail.read() == (["rotated, and longer than before"], True)


def state(app: Host) -> str:
    return str(app.screen.query_one("#log-state", Static).content)


@asynccontextmanager
async def read(app: Host, columns: int = 80) -> AsyncIterator[Pilot[None]]:
    """The log screen once it has read its file."""
    async with app.run_test(size=(columns, 24)) as pilot:
        await work_done(pilot)
        yield pilot


async def test_log_follows_searches_and_stops_following(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {i}\n" for i in range(100)) + "ERROR: out of memory\n")
    app = Host(LogScreen(path))
    async with read(app) as pilot:
        view = app.screen.query_one(LogView)
        assert view.scroll_offset.y == view.max_scroll_y > 0 and "following" in state(app)
        with path.open("a") as file:
            file.write("one more\n")
        await until(pilot, lambda: view.lines[-1] == "one more")
        assert view.scroll_offset.y == view.max_scroll_y

        await pilot.press("slash", *"line 9", "enter")
        await pilot.pause()
        assert len(view.hits) == 11 and "11 of 11 hits" in state(app)
        await pilot.press("n")
        await pilot.pause()
        assert "1 of 11 hits" in state(app) and not view.following
        top = view.scroll_offset.y
        assert top <= 9 < top + view.size.height
        await pilot.press("N")
        assert view.hit == 10
        await pilot.press("f")
        assert view.following
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.sheet and not app.screen.query_one(Input).display
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is not app.sheet


async def test_log_of_a_missing_file_says_so(tmp_path: Path) -> None:
    app = Host(LogScreen(tmp_path / ("a-long-folder/" * 10) / "none.log"))
    async with read(app, columns=80):
        assert "The log cannot be read: No such file" in state(app)
        title = str(app.sheet.query_one(".sheet").border_title)
        assert title == f"Log  /{tmp_path.parts[1]}/…/none.log"


async def test_log_lines_are_harmless_copyable_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\x1b[31mred\x1b[0m\ttab\n" + "\u202eevil\n".encode())
    app = Host(LogScreen(path))
    async with read(app):
        view = app.screen.query_one(LogView)
        assert list(view.lines) == ["␛[31mred␛[0m    tab", "▯evil"]
        whole = Selection(None, None)
        assert view.get_selection(whole) == ("␛[31mred␛[0m    tab\n▯evil", "\n")
        view.extend([str(i) for i in range(MAX_LINES)])
        assert len(view.lines) == MAX_LINES and view.lines[0] == "0"


async def test_a_disk_that_does_not_answer_holds_up_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    path = tmp_path / "a.log"
    path.write_text("line\n")

    def slow(path: Path) -> BinaryIO:
        assert answers.wait(60)
        return open_regular(path)

    monkeypatch.setattr(log_screen, "open_regular", slow)
    app = Host(LogScreen(path))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        view = app.screen.query_one(LogView)
        await pilot.press("slash", *"li")
        assert app.screen.query_one(Input).value == "li" and view.lines == []
        answers.set()
        await until(pilot, lambda: view.lines == ["line"] and "0 of 1 hits" in state(app))


# ---------------------------------------------------------------------------------------- about, themes


async def test_about_names_versions_places_and_licences(tmp_path: Path) -> None:
    app = Host(AboutScreen([("Settings", tmp_path / "c.toml")]))
    async with app.run_test(size=(100, 40)) as pilot:
        await work_done(pilot)
        text = app.screen.query_one("#about-lines", LinesView).text
    assert f"ds4chat {__version__}" in text
    # A long path goes on in the next line.
    assert str(tmp_path / "c.toml") in "".join(line.strip() for line in text.splitlines())
    assert "llama-cpp-python" in text and "Apache-2.0, SmolLM2" in text
    assert package_licence("msgspec")[1].startswith("BSD")
    assert package_licence("no-such-package-anywhere") == ("not installed", "")


@pytest.mark.parametrize("size", [(80, 24), (50, 24), (120, 60)], ids=str)
async def test_about_cuts_nothing_off_at_the_right(size: tuple[int, int]) -> None:
    """Neither the scrollbar nor the edge: every line ends within the view."""
    long = "/" + "x" * 300
    app = Host(AboutScreen([("settings", Path(long))]))
    async with app.run_test(size=size) as pilot:
        await work_done(pilot)
        view = app.screen.query_one("#about-lines", LinesView)
        lines, width = view.text.splitlines(), view.size.width
    assert max(map(cell_len, lines)) <= width
    text = "".join(line.strip() for line in lines)
    assert long in text.replace("Settings  ", "") and "our support model for it" in " ".join(
        " ".join(lines).split()
    )


async def test_about_shows_what_llama_cpp_runs_on() -> None:
    """The lines of ``ds4chat --version`` below the version itself."""
    done = subprocess.run(
        [sys.executable, "-m", "ds4chat", "--version"], capture_output=True, text=True, check=True
    )
    built = done.stdout.splitlines()[1:]
    assert built[0].startswith("llama.cpp ") and " of llama-cpp-python " in built[0] and len(built) > 1
    app = Host(AboutScreen())
    async with app.run_test(size=(100, 40)) as pilot:
        await work_done(pilot)
        lines = app.screen.query_one("#about-lines", LinesView).text.splitlines()
    at = lines.index(built[0])
    assert lines[at : at + len(built)] == built


async def test_theme_picker_previews_and_esc_puts_the_old_one_back() -> None:
    names = ["ds4-dark", "ds4-light", "dusk"]
    app = Host(ThemePicker(names))
    async with app.run_test(size=(90, 24)) as pilot:
        await pilot.pause()
        assert app.screen.query_one(OptionList).highlighted == 0
        await pilot.press("down")
        await pilot.pause()
        assert app.theme == "ds4-light"
        sample = app.screen.query_one(".token-corrected", Static)
        assert sample.styles.color.hex.lower() == app.theme_variables["token-corrected"]
        await pilot.press("escape")
        await pilot.pause()
        assert app.theme == "ds4-dark" and app.results == [None] and app.seen == []


async def test_theme_picker_keeps_what_enter_chooses() -> None:
    app = Host(ThemePicker(["ds4-dark", "ds4-light", "dusk"]))
    async with app.run_test(size=(90, 24)) as pilot:
        await pilot.pause()
        await pilot.press("end", "enter")
        await pilot.pause()
        assert app.theme == "dusk" and app.results == ["dusk"]
    assert [m.changes for m in app.seen if isinstance(m, SettingsChanged)] == [{"theme": "dusk"}]
