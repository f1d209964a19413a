"""The log's lines as they are shown: shortened, wrapped, found and copied across their rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from kits.screen_stage import Host, work_done
from rich.cells import cell_len
from textual.geometry import Offset
from textual.selection import Selection

from ds4chat.tui.log.lines import Shortener, hanging, starts
from ds4chat.tui.log.screen import LogScreen
from ds4chat.tui.log.view import LogView

LONG = (
    "2026-11-29 23:33:46,481 INFO ds4chat.llama: llama_context: flash attention is on and the cache of keys "
    "and values takes 90.00 MiB of the memory that the context was given"
)


def rows_of(line: str, width: int) -> list[str]:
    first = [*starts(line, width), len(line)]
    return [line[a:b] for a, b in pairwise(first)]


def test_the_day_stands_once_info_and_the_programs_name_nowhere() -> None:
    lines = Shortener()
    assert lines.shorten(
        [
            "2026-11-29 23:33:45,074 INFO ds4chat.llama: loaded",
            "2026-11-29 23:33:46,100 WARNING ds4chat.engine: slow",
            "Traceback (most recent call last):",
            "2026-11-30 00:00:01,000 ERROR other: gone",
        ]
    ) == [
        "── 2026-11-29 ──",
        "23:33:45 llama: loaded",
        "23:33:46 WARNING engine: slow",
        "Traceback (most recent call last):",
        "── 2026-11-30 ──",
        "00:00:01 ERROR other: gone",
    ]
    assert lines.shorten(["2026-11-30 00:00:02,000 INFO ds4chat.llama: on"]) == ["00:00:02 llama: on"]


def test_a_line_breaks_at_spaces_and_its_rows_hang_below_its_text() -> None:
    assert rows_of("23:33:45 llama: one two three four", 28) == ["23:33:45 llama: one two ", "three four"]
    assert hanging("23:33:45 llama", 28) == 9 and hanging("no clock", 28) == 0
    assert hanging("23:33:45 llama", 20) == 0, "a narrow screen has no room for it"
    assert rows_of("a/very/long/path/without/a/space", 10) == ["a/very/lon", "g/path/wit", "hout/a/spa", "ce"]


def test_wide_characters_count_two_cells_and_no_row_is_too_long() -> None:
    line = "模型已加载 ok 模型已加载"
    rows = rows_of(line, 8)
    assert "".join(rows) == line
    assert all(cell_len(row) <= 8 for row in rows)
    assert rows_of("模型", 1) == ["模", "型"], "a character that never fits has a row of its own"


async def test_at_80_columns_every_word_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LONG + "\n")
    app = Host(LogScreen(path))
    async with app.run_test(size=(80, 24)) as pilot:
        await work_done(pilot)
        view = app.screen.query_one(LogView)
        rows = [view.render_line(y).text.rstrip() for y in range(4)]
        assert rows == [
            "── 2026-11-29 ──",
            "23:33:46 llama: llama_context: flash attention is on and the cache of keys",
            "         and values takes 90.00 MiB of the memory that the context was",
            "         given",
        ]
        assert view.max_scroll_x == 0
        copied = view.get_selection(Selection(Offset(0, 1), Offset(14, 1)))
        assert copied == ("23:33:46 llama", "\n")
        given = next(s for s in view.render_line(3) if "given" in s.text)
        assert given.style is not None and given.style.meta["offset"] == (view.lines[1].index("given"), 1)


async def test_hits_and_the_line_on_top_keep_their_place_when_the_width_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"2026-11-29 12:00:{i:02},000 INFO x: {i} {'word ' * 30}\n" for i in range(60)))
    app = Host(LogScreen(path))
    async with app.run_test(size=(140, 24)) as pilot:
        await work_done(pilot)
        await pilot.press("slash", *"x: 30", "enter")
        await pilot.pause()
        view = app.screen.query_one(LogView)

        def shown() -> list[str]:
            return [view.render_line(y).text for y in range(view.size.height)]

        assert any("x: 30" in row for row in shown())
        top = shown()[0]
        await pilot.resize_terminal(60, 24)
        await pilot.pause()
        assert shown()[0][:14] == top[:14]
        await pilot.press("f")
        await pilot.pause()
        assert view.scroll_offset.y == view.max_scroll_y
        assert any("x: 59" in row for row in shown())
