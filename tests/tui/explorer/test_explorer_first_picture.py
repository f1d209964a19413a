"""The explorer's first picture: everything has its right width from the start."""

from __future__ import annotations

import pytest
from kits.chat_stage import Open
from kits.screen_stage import work_done

from ds4chat.tui.explorer.charts import histogram_lines
from ds4chat.tui.explorer.screen import ExplorerScreen
from ds4chat.tui.explorer.table import RowTable


@pytest.mark.parametrize(
    "size",
    [
        (80, 24),
        (140, 45),
        *(
            pytest.param(size, marks=pytest.mark.slow)
            for size in ((100, 30), (120, 40), (160, 50), (200, 30))
        ),
    ],
)
async def test_the_first_picture_has_its_right_width(
    opened: Open, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[int] = []
    charts: list[int] = []
    resized = RowTable.on_resize

    def noted(table: RowTable) -> None:
        tables.append(table.size.width)
        resized(table)

    def drawn(found: object, column: object, width: int) -> object:
        charts.append(width)
        return histogram_lines(found, column, width)  # type: ignore[arg-type]

    monkeypatch.setattr(RowTable, "on_resize", noted)
    monkeypatch.setattr("ds4chat.tui.explorer.charts.histogram_lines", drawn)
    async with opened(size=size) as chat:
        await chat.type("one", "enter")
        await chat.press("f11")
        await work_done(chat.pilot)
        screen = chat.app.screen
        assert isinstance(screen, ExplorerScreen)
        assert set(tables) == {screen.table.size.width}
        # There is room for them beside the table from somewhere above 100 columns on.
        assert set(charts) == ({screen._histogram.size.width} if size[0] > 100 else set())
