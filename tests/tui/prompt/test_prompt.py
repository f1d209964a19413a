"""The prompt: keys, history, pastes, files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from textual import events
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from ds4chat.tui.messages import PromptSubmitted
from ds4chat.tui.prompt import PromptArea
from ds4chat.tui.prompt.files import FileError, Folds, quoted, read_text, with_mentions
from ds4chat.tui.prompt.history import PromptHistory
from ds4chat.tui.prompt.menu import CompletionMenu
from ds4chat.tui.prompt.text import PromptText
from ds4chat.tui.themes import variable_defaults


class PromptApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return variable_defaults()

    def compose(self) -> ComposeResult:
        yield PromptArea(["first", "second"])

    def on_prompt_submitted(self, event: PromptSubmitted) -> None:
        self.sent.append(event.text)
        self.query_one(PromptArea).remember(event.text)


Running = tuple[PromptApp, Pilot[None], PromptText]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    app = PromptApp()
    async with app.run_test(size=(60, 30)) as pilot:
        app.query_one(PromptText).focus()
        await pilot.pause()
        yield app, pilot, app.query_one(PromptText)


async def test_enter_sends_and_a_blank_prompt_is_not_sent(running: Running) -> None:
    app, pilot, field = running
    await pilot.press("enter", "space", "enter", "h", "i", "enter")
    assert app.sent == [" hi"]
    assert field.text == ""


async def test_what_is_typed_on_before_a_prompt_is_dealt_with_is_the_next_one(running: Running) -> None:
    """Enter and further keys can come together, while the screen is busy drawing a reply."""
    app, pilot, field = running
    await pilot.press("a")
    for key in ("enter", "b", "enter", "c"):
        field.post_message(events.Key(key, key if len(key) == 1 else None))
    await pilot.pause()
    assert app.sent == ["a", "b"]
    assert field.text == "c"


async def test_a_prompt_that_is_put_back_stands_before_what_was_typed_since(running: Running) -> None:
    """A long text in it is one mark again."""
    app, pilot, field = running
    field.insert_folded("one\ntwo\nthree", "notes")
    await pilot.press("enter", "x")
    assert app.sent == ["one\ntwo\nthree"]
    app.query_one(PromptArea).put_back(["one\ntwo\nthree"])
    assert field.text == "⟦notes · 3 lines⟧\n\nx"


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_every_newline_key_begins_a_line(running: Running, key: str) -> None:
    app, pilot, field = running
    await pilot.press("a", key, "b")
    assert (field.text, app.sent) == ("a\nb", [])


async def test_a_backslash_before_enter_begins_a_line(running: Running) -> None:
    app, pilot, _field = running
    await pilot.press("a", "backslash", "enter", "b", "enter")
    assert app.sent == ["a\nb"]


async def test_up_and_down_walk_the_history_and_keep_the_unsent_text(running: Running) -> None:
    _, pilot, field = running
    await pilot.press("n", "e", "w", "up")
    assert field.text == "second"
    await pilot.press("up", "up")
    assert field.text == "first"
    await pilot.press("down", "down")
    assert field.text == "new"


async def test_up_inside_several_lines_moves_the_cursor(running: Running) -> None:
    _, pilot, field = running
    await pilot.press("a", "ctrl+j", "b", "up")
    assert (field.text, field.cursor_location[0]) == ("a\nb", 0)


async def test_the_prompt_grows_to_a_third_of_the_screen(running: Running) -> None:
    _, pilot, field = running
    assert field.size.height == 1
    for _ in range(4):
        await pilot.press("x", "ctrl+j")
    assert field.size.height == 5
    for _ in range(20):
        await pilot.press("x", "ctrl+j")
    assert field.outer_size.height <= 10


@pytest.mark.parametrize(
    ("slowly", "at_once", "sent"),
    [("/draft ", "17", "/draft 17"), ("", "/rea", ""), ("", "/expor", "/export "), ("/", "stop", "/stop")],
)
async def test_enter_right_after_the_last_letter_takes_no_completion_of_less_text(
    running: Running, slowly: str, at_once: str, sent: str
) -> None:
    """While the screen is busy, Enter comes before what the last letters complete was looked up."""
    app, pilot, field = running
    field.insert(slowly)
    await pilot.pause()
    for letter in at_once:
        field.post_message(events.Key(letter if letter.isalnum() else "x", letter))
    field.post_message(events.Key("enter", None))
    await pilot.pause()
    assert "".join(app.sent) == sent
    assert field.text == ("" if sent else "/read "), "what is begun is written out"


async def test_a_long_paste_is_one_mark_taken_away_by_one_backspace(running: Running) -> None:
    app, pilot, field = running
    text = "\n".join(f"line {n}" for n in range(42))
    field.post_message(events.Paste(text))
    await pilot.pause()
    assert field.text == "⟦paste 1 · 42 lines⟧"
    await pilot.press("backspace")
    assert field.text == ""
    field.post_message(events.Paste(text))
    await pilot.pause()
    await pilot.press("x", "enter")
    assert app.sent == [text + "x"]


async def test_tab_writes_a_folded_paste_out(running: Running) -> None:
    _, pilot, field = running
    text = "\n".join(f"line {n}" for n in range(12))
    field.post_message(events.Paste(text))
    await pilot.pause()
    await pilot.press("tab")
    assert field.text == text


async def test_a_pasted_escape_sequence_never_reaches_the_field(running: Running) -> None:
    _, pilot, field = running
    field.post_message(events.Paste("\x1b[2Jred\x1b[0m"))
    await pilot.pause()
    assert field.text == "red"


def test_a_repeated_prompt_stands_once_in_the_history() -> None:
    history = PromptHistory(["a"])
    history.add("b")
    history.add("b")
    assert [history.older(""), history.older(""), history.older("")] == ["b", "a", None]


def test_marks_expand_and_a_typed_one_stays() -> None:
    folds = Folds()
    mark = folds.add("long\ntext")
    assert folds.expand(f"see {mark} and ⟦paste 9 · 3 lines⟧") == "see long\ntext and ⟦paste 9 · 3 lines⟧"


def test_files_do_not_count_as_pastes_and_tell_their_own_lines() -> None:
    folds = Folds()
    assert folds.add("a.txt:\n```\none\ntwo\n```\n", "a.txt", 2) == "⟦a.txt · 2 lines⟧"
    assert folds.add("x\ny") == "⟦paste 1 · 2 lines⟧"


def test_two_files_of_one_name_have_marks_of_their_own() -> None:
    folds = Folds()
    first, second = folds.add("a", "x.txt"), folds.add("b", "x.txt")
    assert folds.expand(first + second) == "ab"


def test_a_file_is_quoted_by_a_fence_longer_than_its_own() -> None:
    assert quoted("/a/b.md", "```\ncode\n```\n") == "b.md:\n````\n```\ncode\n```\n````\n"


def test_mentions_of_files_are_written_out_and_other_words_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("inside")
    monkeypatch.chdir(tmp_path)
    assert with_mentions("read @a.txt, @nobody me@a.txt") == "read @a.txt, @nobody me@a.txt"
    assert with_mentions("read @a.txt now") == "read a.txt:\n```\ninside\n```\n now"
    (tmp_path / "a b.txt").write_text("inside")
    assert with_mentions('read @"a b.txt", now') == "read a b.txt:\n```\ninside\n```\n, now"
    assert with_mentions('say @"a c.txt" now') == 'say @"a c.txt" now'


async def test_a_path_with_blanks_completes_in_the_prompt(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my file.txt").write_text("inside")
    monkeypatch.chdir(tmp_path)
    _, pilot, field = running
    await pilot.press(*"see @my")
    await pilot.pause()
    await pilot.press("tab")
    await pilot.pause()
    assert field.text == 'see @"my file.txt"'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"\xff\xfe", "byte 0"),
        (b"a\x00b", "NUL"),
        (b"x" * ((1 << 20) + 1), "more than 1 MiB"),
    ],
)
def test_a_file_that_cannot_go_in_is_a_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "f.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=words):
        read_text(str(path))


def test_a_folder_is_not_a_text_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        read_text(str(tmp_path))


async def test_a_click_writes_the_completion_under_it(running: Running) -> None:
    app, pilot, field = running
    await pilot.press("/", "e")
    menu = app.query_one(CompletionMenu)
    third = menu._suggestions[2]
    await pilot.click(CompletionMenu, offset=(4, 2))
    await pilot.pause()
    assert field.text == third.insert and app.focused is field
